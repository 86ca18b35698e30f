"""Seeds of all random streams of a run, derived from the run's seed and from what the stream is for.

Keeps invariant 7: a stream depends on names (epoch, position, member, attempt), never on the order in which things arrive or
on which worker ran them. Two streams with different names are independent, so that evaluating cannot change training.
"""

from __future__ import annotations

import hashlib

import numpy as np


def derive(seed: int, *parts: int | str) -> int:
    """A seed of 63 bits for the stream named by `parts`: stable across processes, machines and Python versions.

    >>> derive(0, "rollout", 1) == derive(0, "rollout", 1), derive(0, "rollout", 1) == derive(0, "rollout", "1")
    (True, False)
    """
    digest = hashlib.sha256()
    for part in (seed, *parts):
        if isinstance(part, str):
            data, tag = part.encode(), b"s"
        elif isinstance(part, (int, np.integer)) and not isinstance(part, bool):
            data, tag = str(int(part)).encode(), b"i"
        else:
            raise TypeError(f"a seed is derived from integers and strings, not from the {type(part).__name__} {part!r}")
        digest.update(tag + len(data).to_bytes(8, "little") + data)     # the length keeps ("a", "bc") from ("ab", "c")
    return int.from_bytes(digest.digest()[:8], "little") >> 1


def generator(seed: int, *parts: int | str) -> np.random.Generator:
    """A numpy stream of its own (PCG64, whose output numpy keeps stable between releases)."""
    return np.random.Generator(np.random.PCG64(derive(seed, *parts)))
