"""A user without a language model: deterministic, made from the task. For training, tests and CI; docs/tau2.md says its limits.

It tells what the scenario lets it know, does on its device what the agent names, reports what the device says word for word,
says yes to a list of details that is what it wants and no to any other, and ends when it has what it came for, when it is
transferred, or when the agent gets nowhere. Unlike a model it reads the task's criteria: they say what "right" is.
"""

from __future__ import annotations

import re
from typing import Any, Sequence

from rti.envs.tau2.domain import Domain
from rti.envs.tau2.scripted.device import Device, Move
from rti.envs.tau2.scripted.story import Story
from rti.envs.tau2.scripted.wishes import Wishes
from rti.envs.tau2.user import STOP, TRANSFER
from rti.trajectory import Message, ToolCall, ToolSchema

STUCK = 4
"""Agent texts in a row that bring nothing new after which the user gives up."""

_TRANSFERRED = re.compile(r"\btransferr(ed|ing)( you)? to a human", re.IGNORECASE)
_REFUSED = re.compile(r"\b(cannot|can't|unable|unfortunately|not (allowed|possible|eligible|able)|against (our|the) policy)\b",
                      re.IGNORECASE)


class ScriptedUsers:
    """See rti.envs.tau2.user.UserMaker. The seed changes nothing: the same task has the same user."""

    def __init__(self, domain: Domain) -> None:
        self._writes = domain.writes

    def __call__(self, task: Any, tools: Sequence[ToolSchema], seed: int) -> ScriptedUser:
        story = Story(task.user_scenario)
        device = Device(story.text, [t.name for t in tools]) if tools else None
        return ScriptedUser(story, device, Wishes(task.evaluation_criteria, self._writes))


class ScriptedUser:
    """See rti.envs.tau2.user.User."""

    def __init__(self, story: Story, device: Device | None, wishes: Wishes) -> None:
        self._story, self._device, self._wishes = story, device, wishes
        self._todo: list[Move] = []
        self._asked: list[Move] = []        # what the message before this one called
        self._report: list[str] = []
        self._opened = False
        self._idle = self._refusals = 0

    async def reply(self, heard: Sequence[Message]) -> Message:
        if heard[0].role == "tool":
            self._take(heard)
        else:
            said = self._hear(heard[-1].content)
            if said:
                return Message(role="user", content=said)
        if self._todo:
            move = self._todo.pop(0)
            self._asked = [move]
            return Message(role="user", tool_calls=[ToolCall(name=move.name, arguments=move.arguments)])
        return Message(role="user", content=self._reported())

    def _hear(self, text: str) -> str:
        """The answer to the agent's text; "" where the device is to be used first."""
        if not self._opened:
            self._opened = True
            return self._story.opening()
        self._wishes.told(text)
        if _TRANSFERRED.search(text):
            return TRANSFER
        if self._device and (moves := self._device.moves(text)):
            self._idle = 0
            self._todo = moves
            return ""
        return self._converse(text)

    def _converse(self, text: str) -> str:
        if not self._device and (judged := self._wishes.judge(text)) is not None:
            return self._agree(judged)
        if not self._device and self._wishes.fulfilled(self._refusals_after(text)):
            return f"That is all I needed, thank you. {STOP}"
        answer, new = self._story.answer(text)
        self._idle = 0 if new else self._idle + 1
        if self._idle >= STUCK:
            return f"This is not getting me anywhere. Goodbye. {STOP}"
        return answer or "I cannot tell you more about that. " + self._story.reminder()

    def _agree(self, judged: str) -> str:
        self._idle = 0 if judged == "yes" else self._idle + 1
        if self._idle >= STUCK:
            return f"No. This is not getting me anywhere. Goodbye. {STOP}"
        if judged == "yes":
            return "Yes, please go ahead."
        if judged == "unlisted":
            return "Please list exactly what you are going to do first."
        return f"No, that is not what I want. {self._story.reminder()}"

    def _refusals_after(self, text: str) -> int:
        self._refusals += bool(_REFUSED.search(text))
        return self._refusals

    def _take(self, results: Sequence[Message]) -> None:
        for move, result in zip(self._asked, results):
            if move.wanted:
                switch = self._device.after_look(move, result.content)
                self._todo[:0] = switch
                if not switch:
                    self._report.append(f"{move.then}: I left it, it is already {move.wanted}.")
            else:
                self._report.append(f"{move.name}: {result.content}")
                self._device.saw(move.name, result.content)

    def _reported(self) -> str:
        report, self._report = "\n".join(self._report), []
        if self._device.satisfied:
            return f"{report}\nThat solves it, thank you. {STOP}"
        return f"{report}\n{self._device.complaint}"
