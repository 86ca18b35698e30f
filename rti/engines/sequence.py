"""One request as the torch engine works on it: its tokens, how far they are cached, and what is to come back.

Keeps the per-token versions of invariant 2: a token gets the version of the weights that gave it, at the moment it is sampled.
"""

from __future__ import annotations

import itertools
from concurrent.futures import Future
from typing import TYPE_CHECKING

import numpy as np

from rti.engines.base import Generation, SamplingParams, Scores
from rti.engines.kv_cache import BLOCK, block_digests

if TYPE_CHECKING:
    import torch

    from rti.engines.kv_cache import Pool


_order = itertools.count()


class Sequence:
    """`ids[:n_tokens]` are known, `ids[:n_cached]` have keys and values. While `pool` is set it decodes; before, it prefills.

    Prefilling reads `ids[:n_prefill]`; the logits at `logits_from` and after it are used.
    """

    def __init__(self, ids: np.ndarray, n_prompt: int, n_tokens: int, temperature: float) -> None:
        self.ids, self.n_prompt, self.n_tokens, self.temperature = ids, n_prompt, n_tokens, temperature
        self.future: Future = Future()
        self.order = next(_order)
        self.slot = -1
        self.restart()

    def restart(self) -> None:
        """Forget what is cached: at the beginning, and when the weights changed."""
        raise NotImplementedError

    def _prefill(self, n_prefill: int, logits_from: int) -> None:
        self.n_prefill, self.logits_from, self.n_cached = n_prefill, logits_from, 0
        self.staging: torch.Tensor | None = None    # keys and values while prefilling
        self.pool: Pool | None = None               # where they are while decoding
        self.digests = block_digests(self.ids[:n_prefill])

    def shareable_digest(self) -> bytes | None:
        """Of the next block to read, where it is whole and none of its logits are needed: another's will do."""
        end = self.n_cached + BLOCK
        return self.digests[end // BLOCK - 1] if end <= self.logits_from else None


class GenerateSequence(Sequence):
    def __init__(self, prompt: np.ndarray, params: SamplingParams, n_new: int, stop_ids: frozenset[int]) -> None:
        self.params, self.stop_ids = params, stop_ids
        self.logps = np.empty(n_new, np.float32)
        self.versions = np.empty(n_new, np.int32)
        super().__init__(np.concatenate([prompt, np.zeros(n_new, np.int32)]), len(prompt), len(prompt), params.temperature)

    def restart(self) -> None:
        self._prefill(self.n_tokens, self.n_tokens - 1)

    @property
    def n_new(self) -> int:
        return self.n_tokens - self.n_prompt

    def accept(self, token: int, logp: float, version: int) -> str | None:
        """Append a sampled token. Returns the finish reason where it was the last one."""
        at = self.n_tokens - self.n_prompt
        self.ids[self.n_tokens], self.logps[at], self.versions[at] = token, logp, version
        self.n_tokens += 1
        if token in self.stop_ids:
            return "stop"
        return "length" if at + 1 == len(self.logps) else None

    def result(self, reason: str) -> Generation:
        n = self.n_new
        return Generation(token_ids=self.ids[self.n_prompt:self.n_tokens].copy(), logps=self.logps[:n].copy(),
                          versions=self.versions[:n].copy(), finish_reason=reason)


class ScoreSequence(Sequence):
    def __init__(self, prompt: np.ndarray, response: np.ndarray, temperature: float) -> None:
        self.logps = np.empty(len(response), np.float32)
        ids = np.concatenate([prompt, response])
        super().__init__(ids, len(prompt), len(ids), temperature)

    def restart(self) -> None:
        self._prefill(self.n_tokens - 1, self.n_prompt - 1)    # nothing follows the last token

    def result(self, version: int) -> Scores:
        return Scores(logps=self.logps.copy(), version=version)
