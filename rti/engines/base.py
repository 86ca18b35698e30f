"""The protocol every inference engine keeps. Log-probabilities are natural logs of the *sampling* distribution.

Keeps invariant 1 (token ids in, token ids out) and the versions of invariant 2: each token names the weights that gave it.
"""

from __future__ import annotations

from typing import Any, Mapping, Protocol, Sequence

import msgspec
import numpy as np


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How to sample. `seed` fixes the request's own random stream: the reply depends on it and on the prompt, not on
    what else is in the batch. temperature 0 is greedy (its log-probabilities are of temperature 1)."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    stop_token_ids: tuple[int, ...] = ()
    seed: int = 0


class Generation(msgspec.Struct, frozen=True, kw_only=True):
    """What was sampled: n tokens, the stop token included where one was sampled."""

    token_ids: np.ndarray   # int32 [n]
    logps: np.ndarray       # float32 [n], of the distribution sampled from (after temperature and top-p)
    versions: np.ndarray    # int32 [n], the weights that gave each token
    finish_reason: str      # "stop" | "length"


class Scores(msgspec.Struct, frozen=True, kw_only=True):
    """Log-probabilities of given tokens, and the weights they are under."""

    logps: np.ndarray       # float32 [n]
    version: int


class EngineError(RuntimeError):
    """The engine could not serve: the infrastructure's fault, never the agent's. The episode is run again."""


class PromptTooLong(ValueError):
    """Prompt and at least one new token do not fit the engine's context. The agent's episode ends as truncated."""


def checked_ids(ids: Sequence[int], vocab_size: int) -> np.ndarray:
    """`ids` as an array of integers [n]. Raises ValueError where they are none, or not of the vocabulary."""
    array = np.asarray(ids)
    if array.ndim != 1 or not len(array) or array.dtype.kind not in "iu":
        raise ValueError(f"token ids must be a non-empty list of integers, got shape {array.shape} of {array.dtype}")
    if array.min() < 0 or array.max() >= vocab_size:
        raise ValueError(f"token ids must be in 0 .. {vocab_size - 1}, got {array.min()} .. {array.max()}")
    return array


def room_after(prompt_tokens: int, max_context: int) -> int:
    """Tokens that a reply may have. Raises PromptTooLong where there is room for none."""
    if prompt_tokens >= max_context:
        raise PromptTooLong(f"a prompt of {prompt_tokens} tokens leaves no room for a reply in a context of {max_context}")
    return max_context - prompt_tokens


def check_sampling(temperature: float, top_p: float) -> None:
    if not (temperature >= 0 and 0 < top_p <= 1):
        raise ValueError(f"temperature must be at least 0 and top_p in (0, 1], got {temperature} and {top_p}")


class Engine(Protocol):
    """Asynchronous; any number of calls may be in flight. A weight load keeps requests in flight alive."""

    max_context: int

    @property
    def version(self) -> int: ...

    async def generate(self, prompt_ids: Sequence[int], params: SamplingParams) -> Generation: ...

    async def score(self, prompt_ids: Sequence[int], response_ids: Sequence[int], temperature: float = 1.0) -> Scores:
        """log p(response[t] | prompt, response[:t]) with logits divided by `temperature`."""
        ...

    async def load_weights(self, state: Mapping[str, Any], version: int) -> None:
        """Replace the weights (Hugging Face names -> CPU tensors). Every token sampled after the return has `version`."""
        ...

    async def close(self) -> None: ...
