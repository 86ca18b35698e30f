"""A whole run, made once, and a copy of it for each test to break."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.run.made_run import make_run


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "whole")


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "run"))
