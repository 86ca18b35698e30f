"""The user as a language model: the official guidelines and scenario, the official history with its roles flipped.

Keeps: the model is told the scenario alone, never the criteria. A reply that no conversation can go on with (empty, or calls
that cannot be read) is drawn again a few times under another seed, then a UserFault; a dead service is the service's own fault.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Sequence

import msgspec

from rti.envs.tau2 import official
from rti.envs.tau2.judge import Chat
from rti.envs.tau2.user import UserFault
from rti.trajectory import Message, ToolSchema

DRAWS = 3
_GUIDELINES = {True: "simulation_guidelines_tools.md", False: "simulation_guidelines.md"}


class SimulatedUser:
    """See rti.envs.tau2.user.User."""

    def __init__(self, chat: Chat, system: str, tools: Sequence[ToolSchema], seed: int, temperature: float,
                 max_tokens: int) -> None:
        self._chat, self._tools, self._seed = chat, tools, seed
        self._temperature, self._max_tokens = temperature, max_tokens
        self._history = [Message(role="system", content=system)]

    async def reply(self, heard: Sequence[Message]) -> Message:
        self._history += [Message(role="user", content=m.content) if m.role == "assistant" else m for m in heard]
        for draw in range(DRAWS):
            answer = await self._chat.chat(self._history, temperature=self._temperature, max_tokens=self._max_tokens,
                                           tools=self._tools, seed=self._seed + 1000 * draw + len(self._history))
            said = answer.message
            if said.tool_calls or said.content.strip():
                break
        else:
            raise UserFault(f"the user model gave {DRAWS} empty replies in a row; mend: another model, or a higher "
                            "env.tau2.user_max_tokens, which its thinking may use up")
        calls = [msgspec.structs.replace(c, id=c.id or f"user_{len(self._history)}_{i}") for i, c in enumerate(said.tool_calls)]
        self._history.append(Message(role="assistant", content=said.content, tool_calls=calls))
        return Message(role="user", content=said.content, tool_calls=calls)


class SimulatedUsers:
    """See rti.envs.tau2.user.UserMaker. `data`: the official layout's folder, whose guidelines are used where it has any."""

    def __init__(self, chat: Chat, data: Path, temperature: float, max_tokens: int) -> None:
        self._chat, self._data, self._temperature, self._max_tokens = chat, data, temperature, max_tokens

    def __call__(self, task: Any, tools: Sequence[ToolSchema], seed: int) -> SimulatedUser:
        return SimulatedUser(self._chat, system_prompt(self._data, task, bool(tools)), tools, seed, self._temperature,
                             self._max_tokens)


def system_prompt(data: Path, task: Any, has_tools: bool) -> str:
    """The official prompt: its guidelines (those with tools where the user has some) in the package's template, and the task's
    scenario. Upstream names a field otherwise, and marks where the guidelines of a voice would stand."""
    user = official.load().user
    file = data / "user_simulator" / _GUIDELINES[has_tools]
    guidelines = (file.read_text(encoding="utf-8") if file.is_file()
                  else user.get_global_user_sim_guidelines(use_tools=has_tools)).replace("<PERSONA_GUIDELINES>", "")
    return user.SYSTEM_PROMPT.format(
        global_user_sim_guidelines=guidelines, global_user_sim_guidelines_with_persona=guidelines,
        instructions=str(task.user_scenario))
