"""A tiny policy on disk and learners of one rank; every learner is closed at the end of its test."""

from __future__ import annotations

from pathlib import Path

import pytest

from rti.config.schema import Config
from rti.learner.learner import Learner
from tests.learner.fixtures.groups import make_step, score
from tests.learner.fixtures.models import write_model


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("policy"))


@pytest.fixture
def groups(model_dir: Path):
    return score(make_step(), model_dir)


@pytest.fixture
def make_learner():
    made: list[Learner] = []

    def make(config: Config) -> Learner:
        learner = Learner(config)
        learner.setup()
        made.append(learner)
        return learner

    yield make
    for learner in reversed(made):     # the first one made the process group, so it leaves last
        learner.close()
