"""The bound of docs/theory.md on a quadratic problem whose every constant is known: measured, and set against it.

J(theta) = -1/2 theta' H theta. A sample's gradient is h(theta, x) = -H theta + v x with x = -1 or +1. The policy's own samples
have both signs equally often; an intervened one (a share lam of all) has +1 with probability `tilt`, and weighs
clip(p / q, 1 - eps, 1 + eps). Prints one line a case and a JSON object last; --plot FILE draws the curves.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

CURVATURE = np.array([1.0, 0.7, 0.4, 0.2])      # the diagonal of H; L is the largest
NOISE = np.array([0.6, 0.6, 0.6, 0.6])          # v
START = np.full(4, 0.8)
RADIUS = 2.0        # of a ball around the optimum that no run leaves (measured, and tested)
STEPS = (100, 400, 1600, 6400)
RUNS = 200


@dataclass(frozen=True)
class Case:
    """`lam`: share of intervened samples; `eps`: half the width of the weights' clip; `tilt`: q(+1)."""

    lam: float
    eps: float = 0.2
    tilt: float = 0.8

    @property
    def q(self) -> np.ndarray:
        return np.array([1 - self.tilt, self.tilt])     # of x = -1, +1

    @property
    def exact(self) -> np.ndarray:
        """w* = p / q: with it an intervened sample is unbiased."""
        return 0.5 / self.q

    @property
    def used(self) -> np.ndarray:
        return np.clip(self.exact, 1 - self.eps, 1 + self.eps)

    @property
    def eps_cal(self) -> float:
        """E_q |w - w*|."""
        return float(self.q @ np.abs(self.used - self.exact))

    @property
    def G(self) -> float:
        """No sample's gradient is longer within RADIUS."""
        return float(CURVATURE.max() * RADIUS + np.linalg.norm(NOISE))

    @property
    def V(self) -> float:
        """Bounds the second moment of a weighted sample, and so its variance."""
        return (1 + self.lam * ((1 + self.eps) ** 2 - 1)) * self.G ** 2

    def bias(self, theta: np.ndarray) -> np.ndarray:
        """E[g] - grad J(theta), exactly."""
        off = self.q * (self.used - self.exact)
        return self.lam * (off.sum() * -CURVATURE * theta + (off @ [-1, 1]) * NOISE)

    def rate(self, steps: int) -> float:
        """The learning rate of the theorem."""
        lipschitz, gap = CURVATURE.max(), START @ (CURVATURE * START) / 2
        return min(1 / (4 * lipschitz), np.sqrt(2 * gap / (lipschitz * self.V * steps)))

    def bound(self, steps: int) -> float:
        """What the theorem allows for the mean of |grad J|^2 over the steps."""
        lipschitz, gap = CURVATURE.max(), START @ (CURVATURE * START) / 2
        return float(16 * lipschitz * gap / steps + 4 * np.sqrt(2 * gap * lipschitz * self.V / steps)
                     + 3 * (self.lam * self.G * self.eps_cal) ** 2)


@dataclass(frozen=True)
class Measured:
    mean: float         # of |grad J|^2 over steps and runs
    last: float         # the same over the last tenth of the steps
    farthest: float     # the largest |theta| of any run


def measure(case: Case, steps: int, seed: int = 0) -> Measured:
    """RUNS ascents of `steps` steps, one sample each."""
    rng = np.random.default_rng(seed)
    theta, eta = np.tile(START, (RUNS, 1)), case.rate(steps)
    squares, farthest = np.empty(steps), 0.0
    for k in range(steps):
        gradient = -theta * CURVATURE
        squares[k] = (gradient ** 2).sum(1).mean()
        intervened = rng.random(RUNS) < case.lam
        positive = rng.random(RUNS) < np.where(intervened, case.tilt, 0.5)
        weights = np.where(intervened, case.used[positive.astype(int)], 1.0)
        theta = theta + eta * weights[:, None] * (gradient + np.where(positive, 1.0, -1.0)[:, None] * NOISE)
        farthest = max(farthest, float(np.linalg.norm(theta, axis=1).max()))
    return Measured(float(squares.mean()), float(squares[-max(1, steps // 10):].mean()), farthest)


def table(cases: list[Case]) -> list[dict[str, float]]:
    """A row for every case and number of steps."""
    rows = []
    for case in cases:
        for steps in STEPS:
            found = measure(case, steps)
            rows.append({"lam": case.lam, "eps_cal": round(case.eps_cal, 4), "steps": steps, "mean": round(found.mean, 5),
                         "last": round(found.last, 5), "bound": round(case.bound(steps), 5)})
    return rows


def plot(rows: list[dict[str, float]], path: Path) -> None:
    """Measured means over the number of steps, a line for every case, and what is 1 / sqrt(K)."""
    import matplotlib
    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    for lam, eps_cal in dict.fromkeys((r["lam"], r["eps_cal"]) for r in rows):
        own = [r for r in rows if (r["lam"], r["eps_cal"]) == (lam, eps_cal)]
        axes.loglog([r["steps"] for r in own], [r["mean"] for r in own], "o-", label=rf"$\lambda$ = {lam:g}, "
                    rf"$\epsilon_{{cal}}$ = {eps_cal:g}")
    first = rows[0]
    axes.loglog(STEPS, [first["mean"] * np.sqrt(STEPS[0] / k) for k in STEPS], "k:", label=r"$\propto 1/\sqrt{K}$")
    axes.set(xlabel="steps K", ylabel=r"mean of $|\nabla J|^2$ over the steps")
    axes.legend()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plot", type=Path, help="write the curves here")
    args = parser.parse_args()
    rows = table([Case(0.0), Case(0.5, eps=2.0), Case(0.25), Case(0.5), Case(1.0)])
    for row in rows:
        print(*(f"{k} {v:<9}" for k, v in row.items()))
    if args.plot:
        plot(rows, args.plot)
    print(json.dumps({"benchmark": "convergence", "runs": RUNS, "rows": rows}))


if __name__ == "__main__":
    main()
