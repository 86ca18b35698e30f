"""A run whose rollouts hold what a page must not obey, made by the code that a real run uses."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from rti.run import trajectories
from rti.trajectory import Message
from tests.run.made_run import make_config, make_run

HOSTILE = "</script><script>window.hacked = 1</script><img src=x onerror=\"window.hacked = 1\"> <b>bold</b> & \u202edlob"


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three steps; the last turn of the first stored rollout says HOSTILE, and so does its environment."""
    path = make_run(tmp_path_factory.mktemp("report") / "made", config=make_config())
    file = trajectories.files(path / "trajectories")[3]
    groups = list(trajectories.read(file))
    member = groups[0].members[0]
    told = msgspec.structs.replace(member.steps[-1], message=Message(role="assistant", content=HOSTILE, reasoning=HOSTILE),
                                   observations=[Message(role="tool", name="<i>tool</i>", content=HOSTILE)])
    groups[0].members[0] = msgspec.structs.replace(member, steps=[*member.steps[:-1], told])
    trajectories.write(file, groups)
    return path
