"""The protocol of a user: who answers the agent in an episode. The LLM simulator and the scripted user keep it.

Keeps the official rules of what a user knows: the agent's texts, its own messages and the results of its own tool calls, never
the agent's calls and their results. Ending the conversation is the user's alone, by a stop token in a text without calls.
"""

from __future__ import annotations

from typing import Any, Protocol, Sequence

from rti.trajectory import Message, ToolSchema

STOP, TRANSFER, OUT_OF_SCOPE = "###STOP###", "###TRANSFER###", "###OUT-OF-SCOPE###"
"""A user's text that holds one of these ends the conversation (the environment asks the official package's own check)."""


class UserFault(Exception):
    """The user gave what no conversation can go on with. The environment makes an EnvironmentFault of it: run again."""


class User(Protocol):
    """One instance serves one episode. It keeps its own history: each call brings what is new since its last answer."""

    async def reply(self, heard: Sequence[Message]) -> Message:
        """The next message of the user: role "user", and either a text or tool calls (text beside calls reaches nobody).

        `heard` is one message of role "assistant" (a text of the agent, the greeting first of all), or, after a message with
        tool calls, one of role "tool" per call in order (`content` is the tool's verbatim output, `name` the tool).
        Calls that are wrong (unknown tool, bad arguments) come back as tool messages that begin "Error: ".
        """
        ...


class UserMaker(Protocol):
    """Makes the user of an episode. It must not keep state between episodes."""

    def __call__(self, task: Any, tools: Sequence[ToolSchema], seed: int) -> User:
        """`task`: the official Task (user_scenario, initial_state, evaluation_criteria); an LLM may be told the scenario only.
        `tools`: the user's tools, empty in retail and airline. Same task and seed, same user."""
        ...
