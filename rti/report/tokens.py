"""What each token of a turn reads and carries: its text, weight, log-ratio and log-probability, for the page's colours.

Keeps: the texts of a turn's tokens, put together, are the turn as the policy wrote it. Tokens that only together make a
character (bytes of one letter) are shown as one.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Callable, Sequence

import numpy as np

from rti.trajectory import Source, Trajectory

Decode = Callable[[Sequence[int]], str]

BROKEN = "\ufffd"       # what a decoder writes for bytes that are no whole character
LONGEST = 8             # tokens that may make up one character


class TokenTexts:
    """Texts of tokens by a decoder of ids, remembered. Without a decoder a token is shown by its number."""

    def __init__(self, decode: Decode | None):
        self._decode = decode
        self._text = lru_cache(maxsize=200_000)(self._after)

    def pieces(self, ids: Sequence[int]) -> list[tuple[str, int]]:
        """(text, how many tokens it takes), in order."""
        found, pending, before = [], [], -1
        for i in ids:
            pending.append(int(i))
            text = self._text(before, tuple(pending))
            if text.endswith(BROKEN) and len(pending) < LONGEST:
                continue
            found.append((text, len(pending)))
            before, pending = pending[-1], []
        if pending:
            found.append((self._text(before, tuple(pending)), len(pending)))
        return found

    def _after(self, before: int, ids: tuple[int, ...]) -> str:
        """Text of `ids` where `before` stands before them (-1: nothing): some decoders drop a space at the beginning."""
        if self._decode is None:
            return "".join(f"[{i}]" for i in ids)
        alone = self._decode(ids)
        if before < 0:
            return alone
        first = self._decode([before])
        both = self._decode([before, *ids])
        return both[len(first):] if both.startswith(first) else alone


def turns(trajectory: Trajectory, texts: TokenTexts) -> dict[int, dict[str, Any]]:
    """turn -> {"text": [..], "weight": [..], "logp": [..], "ratio": [..]}, a value a piece (the mean over its tokens).

    `weight` is left out where all are 1, `ratio` (correction over rollout log-probability, nats) where no token is corrected.
    """
    found: dict[int, dict[str, Any]] = {}
    for sample in trajectory.samples:
        agent = sample.mask
        for turn in np.unique(sample.turns[agent]).tolist():
            at = np.flatnonzero(agent & (sample.turns == turn))
            pieces = texts.pieces(sample.token_ids[at].tolist())
            sizes = np.array([n for _, n in pieces])
            made: dict[str, Any] = {"text": [text for text, _ in pieces], "logp": _means(sample.behaviour_logps[at], sizes)}
            if (sample.weights[at] != 1).any():
                made["weight"] = _means(sample.weights[at], sizes)
            if (sample.sources[at] == Source.CORRECTION).any():
                made["ratio"] = _means(np.nan_to_num(sample.correction_logps[at] - sample.behaviour_logps[at]), sizes)
            found[turn] = made
    return found


def _means(values: np.ndarray, sizes: np.ndarray) -> list[float]:
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    return [round(float(v), 4) for v in np.add.reduceat(values.astype(np.float64), starts) / sizes]
