"""One policy and one undisturbed run for all tests of the whole system."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.policy import write_policy
from tests.end_to_end.runs import Run, write_config


@pytest.fixture(scope="session")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_policy(tmp_path_factory.mktemp("policy"))


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, policy: Path) -> Run:
    """A synchronous run from its first step to its last, evaluations included."""
    directory = tmp_path_factory.mktemp("undisturbed")
    run = Run(write_config(directory, policy, evaluation__before=True, evaluation__after=True, records__report=True))
    run.finish()
    return run
