"""Which rollouts of a group are branches of others: AEPO's balance of a group's budget (arXiv 2510.14545, section 3.2). Pure.

Of k rollouts m are whole ones and k - m branches. Entropies H in nats:

    m   = k sigmoid(beta (H_root - mean of H_tool))         rounded, at least 1
    P_t = (P0 + gamma (H_t - H_root)) (1 - penalty l)       to branch at turn t, between 0 and 1

H_root is the entropy of the first turn, H_tool those of turns that follow an observation, H_t that of turn t, l the turns in a
row before t that were branched at. Engines give the log-probability of the token they sampled, not the whole distribution: the
entropy of a turn is taken as the mean of -log p over its first tokens, whose expectation it is. Keeps invariant 7: what comes
out depends on the rollouts and the random stream alone.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Sequence

import numpy as np

from rti.config.schema import AlgoConfig
from rti.trajectory import Trajectory


class Site(NamedTuple):
    """Where a branch leaves a rollout: all turns before `turn` are shared."""

    rollout: int
    turn: int


def entropies(trajectory: Trajectory, tokens: int) -> list[float]:
    """Of each turn, nats, on its first `tokens` tokens. Ends before a turn whose tokens are not all known: what follows it
    cannot be repeated token by token."""
    turns = np.concatenate([s.turns for s in trajectory.samples]) if trajectory.samples else np.empty(0, np.int16)
    logps = np.concatenate([s.behaviour_logps for s in trajectory.samples]) if trajectory.samples else np.empty(0, np.float32)
    found = []
    for number, step in enumerate(trajectory.steps):
        own = logps[turns == number]
        if not len(own) or len(own) != step.n_tokens:
            break
        found.append(-float(np.mean(own[:tokens], dtype=np.float64)))
    return found


def whole_rollouts(size: int, first: Sequence[float], beta: float) -> int:
    """m. `first`: the entropies of the group's first rollout; with no turn after an observation there is nowhere to branch."""
    if len(first) < 2:
        return size
    gap = first[0] - float(np.mean(first[1:]))
    share = 1 / (1 + math.exp(-max(-50.0, min(50.0, beta * gap))))
    return max(1, min(size, round(size * share)))


def probability(entropy: float, root: float, row: int, config: AlgoConfig) -> float:
    """P_t. `row` is l."""
    wish = config.branch_base + config.branch_gamma * (entropy - root)
    return max(0.0, min(1.0, wish)) * max(0.0, 1 - config.branch_penalty * row)


def sites(rollouts: Sequence[Sequence[float]], count: int, config: AlgoConfig, rng: np.random.Generator) -> list[Site]:
    """At most `count` sites, turn by turn over all rollouts (their entropies), so that no rollout takes the whole budget."""
    found: list[Site] = []
    rows = [0] * len(rollouts)
    for turn in range(1, max(map(len, rollouts), default=0)):
        for i, known in enumerate(rollouts):
            if len(found) == count:
                return found
            if turn < len(known):
                branches = rng.random() < probability(known[turn], known[0], rows[i], config)
                rows[i] = rows[i] + 1 if branches else 0
                found += [Site(i, turn)] * branches
    return found
