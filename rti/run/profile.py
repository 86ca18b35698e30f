"""How hard each task is for a policy: profile.json, which launch/eval.py --profile writes and launch/data.py claw-eval reads.

Keeps: a sample that was lost to environment or infrastructure is in neither number, as in every evaluation.
"""

from __future__ import annotations

from pathlib import Path
from typing import Sequence

import msgspec

PROFILE = "profile.json"


class ProfileError(ValueError):
    """A file that is no profile."""


class TaskProfile(msgspec.Struct, frozen=True, kw_only=True):
    """`passed` of a task's `samples` rollouts succeeded (Pass@n, n = `samples`: whether any did), and `lost` came to no end."""

    id: str
    cls: str = ""
    samples: int
    passed: int
    lost: int = 0


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured: `model` at `temperature`, with `samples` rollouts asked for of each task."""

    model: str
    samples: int
    temperature: float
    tasks: list[TaskProfile]


def write_profile(path: Path, profile: Profile) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(profile), indent=1) + b"\n")


def read_profile(path: Path) -> Profile:
    """Raises ProfileError where there is none, or its numbers cannot be."""
    try:
        profile = msgspec.json.decode(path.read_bytes(), type=Profile)
    except OSError as e:
        raise ProfileError(f"cannot read the profile {path}: {e.strerror}; mend: make it with launch/eval.py --profile") from e
    except msgspec.DecodeError as e:
        raise ProfileError(f"{path} is no profile: {e}; mend: make it with launch/eval.py --profile") from e
    if wrong := _wrong(profile.tasks):
        raise ProfileError(f"{path} says of {wrong.id} that {wrong.passed} of {wrong.samples} rollouts passed, which cannot be")
    return profile


def _wrong(tasks: Sequence[TaskProfile]) -> TaskProfile | None:
    return next((t for t in tasks if not 0 <= t.passed <= t.samples), None)
