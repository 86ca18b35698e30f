"""Asking a running run for another scale: what is refused, what is taken, what the record says, what a resume makes of it."""

import json
import threading

import pytest

from rti.config.keys import ConfigError
from rti.run import control
from rti.run.control import Change, ask, changes, main, present, restore, take
from rti.run.directory import RunDirectory
from tests.actors.fakes import make_config


@pytest.fixture
def run(tmp_path):
    with RunDirectory.open(tmp_path / "run", make_config(interveners__max=3)) as run:
        yield run


def asked(run, *words):
    """Ask in a thread of its own, as another process would, while the run takes what there is."""
    answers = []

    def call():
        try:
            answers.append(ask(run.path, words, wait_s=20.0))
        except ConfigError as error:
            answers.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    while thread.is_alive():
        take(run.path, run.config, step=4)
        thread.join(0.02)
    return answers[0]


def test_a_change_is_taken_into_the_running_configuration_and_recorded(run):
    answer = asked(run, "interveners.max=8", "env_workers.count=2")
    assert str(answer) == "taken: interveners.max=8 env_workers.count=2"
    assert run.config.interveners.max == 8 and run.config.env_workers.count == 2
    (line,) = [json.loads(line) for line in (run.path / "control.jsonl").read_text().splitlines()]
    assert line["values"] == {"interveners.max": 8, "env_workers.count": 2} and line["step"] == 4
    assert " on " in line["who"] and line["at"].startswith("20")
    assert list((run.path / "control").iterdir()) == []


@pytest.mark.parametrize("words, why", [
    (["rollout.group_size=4"], r"rollout.group_size cannot be changed while a run goes on. What can: interveners.min"),
    (["interveners.maxx=4"], r"did you mean interveners.max\?"),
    (["interveners.max=0"], "must be at least 1"),
    (["interveners.max=four"], "interveners.max"),
    (["interveners.min=5"], "above interveners.max = 3"),
    (["generators.replicas=3", "generators.max=2"], "below generators.replicas = 3"),
])
def test_what_makes_no_sense_is_refused_before_the_run_hears_of_it(run, words, why):
    with pytest.raises(ConfigError, match=why):
        ask(run.path, words)
    assert not (run.path / "control").exists()


def test_a_request_that_an_earlier_one_has_made_senseless_is_refused_by_the_run(run):
    for id, values in (("1", {"interveners.max": 2}), ("2", {"interveners.min": 3}), ("3", {"steps": 9})):
        request = Change(id=id, at="now", who="me", values=values)
        control.write_json(run.path / "control" / f"{id}.json", request)
    first, second, third = take(run.path, run.config, step=1)
    assert not first.refused and "above interveners.max = 2" in second.refused and "asked for by me" in second.refused
    assert "steps cannot be changed" in third.refused
    assert (run.config.interveners.min, run.config.interveners.max) == (1, 2)
    assert present(run.path) == {"interveners.max": 2}


def test_a_request_that_cannot_be_read_is_answered_and_goes(run):
    (run.path / "control").mkdir()
    (run.path / "control" / "9.json").write_text("{")
    assert "cannot be read" in take(run.path, run.config, step=0)[0].refused
    assert take(run.path, run.config, step=0) == []


def test_a_run_that_has_ended_and_a_directory_without_a_run_are_refused(run, tmp_path, capsys):
    with pytest.raises(ConfigError, match="not a run's directory"):
        ask(tmp_path, ["interveners.max=2"])
    run.close()
    assert main([str(run.path), "interveners.max=2"]) == 1
    assert "no run goes on in" in capsys.readouterr().err


def test_a_run_that_does_not_answer_is_not_left_with_the_request(run):
    with pytest.raises(ConfigError, match="did not answer within 0.05 s"):
        ask(run.path, ["interveners.max=2"], wait_s=0.05)
    assert list((run.path / "control").iterdir()) == [] and changes(run.path) == []


def test_what_was_taken_holds_after_a_resume_until_the_configuration_changes_its_section(run):
    asked(run, "interveners.max=8", "env_workers.count=2")
    run.close()
    with (run.path / "control.jsonl").open("ab") as torn:
        torn.write(b'{"id":')

    def resumed(**more):
        config = make_config(**more)
        with RunDirectory.open(run.path, config):
            restore(run.path, config)
        return config.interveners.min, config.interveners.max, config.env_workers.count

    assert resumed(interveners__max=3) == (1, 8, 2)
    assert resumed(interveners__max=5) == (1, 5, 2), "the command that resumes says something else than before"
    assert resumed(interveners__max=5) == (1, 5, 2)
    assert changes(run.path)[-1].who == "the configuration of the resumed run"
