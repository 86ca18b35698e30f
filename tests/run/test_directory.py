"""The run directory: beginning, locking, resuming, rewinding, and records that survive a kill."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rti.config.keys import ConfigError
from rti.config.load import load_run_config
from rti.run import trajectories
from rti.run.directory import RunDirectory, evaluation_metrics, summary
from rti.run.files import JsonLines, RecordError, read_lines
from rti.run.ledger import entry_for
from rti.run.lock import DirectoryLock, RunLocked, holder
from rti.run.metrics import UnknownMetric, comparable
from rti.run.tensorboard import read_scalars
from tests.factories import make_group
from tests.run.made_run import EVALUATION, make_config, make_groups, make_run, run_step


def lines(path: Path) -> list[dict]:
    return [line.value for line in read_lines(path).lines]


# --- beginning -----------------------------------------------------------------------------------------------------
def test_a_new_run_writes_its_configuration_and_reads_it_back(tmp_path: Path) -> None:
    config = make_config()
    with RunDirectory.open(tmp_path / "deep" / "run", config) as run:
        assert not run.resumed
        assert load_run_config(run.path) == config


def test_a_run_directory_is_its_owners_alone_and_one_that_is_there_keeps_its_rights(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        for resume in (True, False):    # the second moves the first aside
            with RunDirectory.open(tmp_path / "deep" / "run", make_config(), resume=resume):
                assert stat.S_IMODE((tmp_path / "deep" / "run").stat().st_mode) == 0o700
        (tmp_path / "shared").mkdir(mode=0o770)
        with RunDirectory.open(tmp_path / "shared", make_config()):
            assert stat.S_IMODE((tmp_path / "shared").stat().st_mode) == 0o770
    finally:
        os.umask(before)


def test_a_file_or_a_foreign_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match="is a file"):
        RunDirectory.open(tmp_path / "file", make_config())
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("")
    with pytest.raises(RecordError, match="holds thesis.tex .* not a run's directory"):
        RunDirectory.open(tmp_path / "home", make_config())
    assert holder(tmp_path / "home") == ""


def test_a_run_that_died_before_its_first_byte_is_begun_anew(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("")
    with RunDirectory.open(tmp_path, make_config()) as run:
        assert not run.resumed


def test_a_run_that_ended_before_any_work_takes_another_configuration(tmp_path: Path) -> None:
    """A wrong key ends a run at its start; the same command with the key put right goes on in its place."""
    RunDirectory.open(tmp_path, make_config(seed=1)).close()
    with RunDirectory.open(tmp_path, make_config(seed=2)) as run:
        assert run.resumed and run.rewind_to(0) == []
        run_step(run, 1)
    assert load_run_config(tmp_path).seed == 2
    with pytest.raises(ConfigError, match="seed: 2 in the run directory, 3 now"):
        RunDirectory.open(tmp_path, make_config(seed=3))


def test_without_resume_an_earlier_run_is_moved_aside(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run", 1)
    for name in ("run.1", "run.2"):
        with RunDirectory.open(path, make_config(seed=7), resume=False) as run:
            assert not run.resumed and run.step == 0
            assert lines(path / "metrics.jsonl") == []
            run_step(run, 1)
        assert (tmp_path / name / "metrics.jsonl").is_file()
    assert (tmp_path / "run.1" / "summary.json").is_file()


# --- the lock --------------------------------------------------------------------------------------------------------
def test_two_runs_in_one_directory_are_refused_naming_the_holder(tmp_path: Path) -> None:
    with RunDirectory.open(tmp_path / "run", make_config()):
        for resume in (True, False):
            with pytest.raises(RunLocked, match=rf"in use by process {os.getpid()} on .* another name or run_dir"):
                RunDirectory.open(tmp_path / "run", make_config(), resume=resume)
        assert f"process {os.getpid()}" in holder(tmp_path / "run")
    with RunDirectory.open(tmp_path / "run", make_config()) as run:
        assert run.resumed


def test_a_killed_holder_gives_the_lock_back(tmp_path: Path) -> None:
    code = ("import sys, time; from pathlib import Path; from rti.run.lock import DirectoryLock\n"
            "lock = DirectoryLock(Path(sys.argv[1])); print('held', flush=True); time.sleep(60)")
    child = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "held\n"
    with pytest.raises(RunLocked, match=f"process {child.pid} "):
        DirectoryLock(tmp_path)
    child.send_signal(signal.SIGKILL)
    child.wait()
    DirectoryLock(tmp_path).release()
    assert holder(tmp_path) == ""


def test_a_program_started_meanwhile_does_not_keep_the_lock(tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(30)"], close_fds=False)
    lock.release()
    DirectoryLock(tmp_path).release()
    child.kill()
    child.wait()


def test_a_failed_open_leaves_no_lock(tmp_path: Path) -> None:
    make_run(tmp_path / "run", 1)
    with pytest.raises(ConfigError):
        RunDirectory.open(tmp_path / "run", make_config(seed=5))
    assert holder(tmp_path / "run") == ""


# --- records -----------------------------------------------------------------------------------------------------------
def test_each_step_is_logged_once_and_in_order_with_the_time_it_ran(tmp_path: Path) -> None:
    now = [10.0]
    with RunDirectory.open(tmp_path, make_config(), clock=lambda: now[0]) as run:
        now[0] = 12.5
        assert run.log(1, {"reward/mean": 0.5}) == {"step": 1, "reward/mean": 0.5, "time/wall_s": 2.5}
        for step in (1, 3):
            with pytest.raises(ValueError, match="the next step is 2"):
                run.log(step, {"reward/mean": 0.5})
        run.log(2, {"policy/loss": float("nan"), "learner/grad_norm": float("inf")})
    second = {"step": 2, "policy/loss": None, "learner/grad_norm": None, "time/wall_s": 2.5}
    assert lines(tmp_path / "metrics.jsonl")[1] == second


def test_unknown_keys_and_values_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    with RunDirectory.open(tmp_path, make_config()) as run:
        with pytest.raises(UnknownMetric, match="did you mean 'reward/mean'"):
            run.log(1, {"reward/maen": 1.0})
        for value in ("1", None, True, np.float32(1)):
            with pytest.raises(TypeError, match="reward/mean"):
                run.log(1, {"reward/mean": value})
        assert lines(tmp_path / "metrics.jsonl") == []


def test_groups_are_entered_for_the_next_step_only(tmp_path: Path) -> None:
    with RunDirectory.open(tmp_path, make_config()) as run:
        with pytest.raises(ValueError, match="group 0-0 is entered for step 2; the next step is 1"):
            run.consume([entry_for(make_group(), step=2, learner_version=0)])
        assert run.ledger() == []


def test_what_a_killed_process_wrote_is_there(tmp_path: Path) -> None:
    """SIGKILL right after the calls returned: every line is whole."""
    code = ("import sys; from pathlib import Path; from rti.run.directory import RunDirectory\n"
            "from tests.run.made_run import make_config, run_step\n"
            "run = RunDirectory.open(Path(sys.argv[1]), make_config())\n"
            "run_step(run, 1); run_step(run, 2); print('done', flush=True); import time; time.sleep(60)")
    root = Path(__file__).resolve().parents[2]
    child = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=root,
                             env={**os.environ, "PYTHONPATH": str(root)})
    assert child.stdout.readline() == "done\n"
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert [line["step"] for line in lines(tmp_path / "metrics.jsonl")] == [1, 2]
    with RunDirectory.open(tmp_path, make_config()) as run:
        assert run.resumed and len(run.ledger()) == 7
        assert len(list(trajectories.read(tmp_path / "trajectories/step-000002.rti"))) == 3


def test_as_many_groups_are_kept_as_configured(tmp_path: Path) -> None:
    config = make_config()
    config.records.trajectories = 1
    with RunDirectory.open(tmp_path / "one", config) as run:
        run_step(run, 1)
    assert [g.id for g in trajectories.read(tmp_path / "one/trajectories/step-000001.rti")] == ["0-1"]   # the rescued one
    config.records.trajectories = 0
    with RunDirectory.open(tmp_path / "none", config) as run:
        run_step(run, 1)
    assert not (tmp_path / "none/trajectories").exists()


def test_scalars_reach_tensorboard_and_can_be_switched_off(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run", 2)
    shown = read_scalars(path / "tensorboard")
    assert shown["learner/version"] == [(1, 1.0), (2, 2.0)]
    assert shown["eval/p@1"] == [(0, 0.25), (2, 0.25)] and shown["eval/class/plain"] == [(0, 0.5), (2, 0.5)]
    config = make_config()
    config.records.tensorboard = False
    assert not (make_run(tmp_path / "off", 1, config) / "tensorboard").exists()


# --- resume --------------------------------------------------------------------------------------------------------
def test_a_resumed_directory_is_rewound_before_it_is_written(tmp_path: Path) -> None:
    make_run(tmp_path, 2)
    with RunDirectory.open(tmp_path, make_config()) as run:
        for write in (lambda: run.log(3, {}), lambda: run.consume([]), lambda: run.save_trajectories(3, []),
                      lambda: run.save_evaluation(2, EVALUATION), lambda: run.write_summary({})):
            with pytest.raises(RuntimeError, match="rewind_to"):
                write()


def test_a_changed_key_is_refused_and_a_changeable_one_is_written_down(tmp_path: Path) -> None:
    make_run(tmp_path, 1)
    with pytest.raises(ConfigError, match="seed: 0 in the run directory, 3 now"):
        RunDirectory.open(tmp_path, make_config(seed=3))
    with RunDirectory.open(tmp_path, make_config(steps=90)):
        assert load_run_config(tmp_path).steps == 90


@pytest.mark.parametrize("step", [0, 1, 2, 4])
def test_a_rewound_and_repeated_run_equals_the_uninterrupted_one(tmp_path: Path, step: int) -> None:
    whole, again = make_run(tmp_path / "whole", 4), make_run(tmp_path / "again", 4)
    before = (again / "ledger.jsonl").read_bytes()
    with RunDirectory.open(again, make_config()) as run:
        kept = run.rewind_to(step)
        assert {e.step for e in kept} == set(range(1, step + 1)) and run.step == step
        assert before.startswith((again / "ledger.jsonl").read_bytes())     # the bytes of kept entries never change
        assert list(trajectories.files(again / "trajectories")) == list(range(1, step + 1))
        assert (run.evaluation(4) is not None) == (step == 4) and run.evaluation(0) == EVALUATION
        for s in range(step + 1, 5):
            run_step(run, s)
    assert (again / "ledger.jsonl").read_bytes() == (whole / "ledger.jsonl").read_bytes()
    for s in range(1, 5):
        name = f"trajectories/step-{s:06d}.rti"
        assert (again / name).read_bytes() == (whole / name).read_bytes()
    pairs = zip(lines(whole / "metrics.jsonl"), lines(again / "metrics.jsonl"), strict=True)
    assert all(comparable(a) == comparable(b) for a, b in pairs)
    assert read_scalars(again / "tensorboard")["reward/mean"] == read_scalars(whole / "tensorboard")["reward/mean"]


def test_the_time_a_run_stood_still_is_not_counted(tmp_path: Path) -> None:
    now = [0.0]
    with RunDirectory.open(tmp_path, make_config(), clock=lambda: now[0]) as run:
        for step, at in ((1, 5.0), (2, 9.0)):
            now[0] = at
            run_step(run, step)
    now[0] = 1000.0
    with RunDirectory.open(tmp_path, make_config(), clock=lambda: now[0]) as run:
        run.rewind_to(1)
        now[0] = 1003.0
        run_step(run, 2)
        assert run.wall_s == 8.0
    assert lines(tmp_path / "metrics.jsonl")[1]["time/wall_s"] == 8.0


def test_a_run_that_is_rewound_while_it_runs_has_used_the_time(tmp_path: Path) -> None:
    now = [0.0]
    with RunDirectory.open(tmp_path, make_config(), clock=lambda: now[0]) as run:
        for step in (1, 2, 3):
            now[0] += 5.0
            run_step(run, step)
        run.rewind_to(1)
        assert run.wall_s == 15.0
        run_step(run, 2)
    assert [line["step"] for line in lines(tmp_path / "metrics.jsonl")] == [1, 2]
    assert [step for step, _ in read_scalars(tmp_path / "tensorboard")["reward/mean"]] == [1, 2]


def test_torn_tails_are_cut_and_kept_entries_survive(tmp_path: Path) -> None:
    make_run(tmp_path, 2)
    for name in ("ledger.jsonl", "metrics.jsonl"):
        with (tmp_path / name).open("a") as f:
            f.write('{"step": 3, "gro')
    with RunDirectory.open(tmp_path, make_config()) as run:
        run.rewind_to(2)
        run_step(run, 3)
        assert [e.step for e in run.ledger()] == [1] * 3 + [2] * 4 + [3] * 3


def test_a_ledger_that_disagrees_with_the_checkpoint_is_refused_and_nothing_is_cut(tmp_path: Path) -> None:
    make_run(tmp_path, 3)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*.jsonl")}
    with RunDirectory.open(tmp_path, make_config()) as run:
        known = {e.group_id for e in run.ledger() if e.consumed and e.step <= 2}
        for consumed in (known - {"0-1"}, known | {"0-77"}):
            with pytest.raises(RecordError, match=r"differ in 1 consumed groups \(0-"):
                run.rewind_to(2, consumed)
        with pytest.raises(RecordError, match="whole up to 3 only, and the checkpoint is of step 5"):
            run.rewind_to(5)
        assert {p: p.read_bytes() for p in tmp_path.rglob("*.jsonl")} == before
        run.rewind_to(2, known)


def test_metrics_that_lost_a_line_are_refused(tmp_path: Path) -> None:
    make_run(tmp_path, 3)
    text = (tmp_path / "metrics.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "metrics.jsonl").write_text(text[0] + text[2])
    with RunDirectory.open(tmp_path, make_config()) as run:
        with pytest.raises(RecordError, match="whole up to 1 only"):
            run.rewind_to(3)
        run.rewind_to(1)


# --- the end -------------------------------------------------------------------------------------------------------
def test_the_summary_has_the_documented_form(tmp_path: Path) -> None:
    found = json.loads((make_run(tmp_path, 3) / "summary.json").read_text())
    assert found["before"] == EVALUATION and found["after"] == EVALUATION
    assert (found["steps"], found["groups_failed"], found["groups_rescued"], found["peak_gb"]) == (3, 6, 3, 1.5)
    assert found["groups_consumed"] == 9 and found["groups_trained"] == 6 and found["groups_voided"] == 1
    assert found["wall_s"] >= 0


def test_a_further_step_makes_the_summary_untrue_and_removes_it(tmp_path: Path) -> None:
    make_run(tmp_path, 2)
    with RunDirectory.open(tmp_path, make_config()) as run:
        run.rewind_to(2)
        assert (tmp_path / "summary.json").is_file()
        run_step(run, 3)
        assert not (tmp_path / "summary.json").exists()
        run.write_summary(summary(run, before=None, after=None, peak_gb=0.0, restarts=0))
    assert json.loads((tmp_path / "summary.json").read_text())["steps"] == 3


def test_an_evaluation_becomes_metrics_without_what_was_not_measured() -> None:
    assert evaluation_metrics(EVALUATION) == {"eval/p@1": 0.25, "eval/avg_p@k": 0.4375, "eval/avg_p^k": 0.1,
                                              "eval/class/plain": 0.5, "eval/class/ambiguous": 0.0}
    assert evaluation_metrics({"p@1": None, "by": {"plain": {"p@1": None}}}) == {}


# --- files ---------------------------------------------------------------------------------------------------------
def test_a_damaged_line_is_named_with_file_and_number(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}\n[2]\n')
    with pytest.raises(RecordError, match=r"a\.jsonl:2: expected an object, found list"):
        read_lines(path)
    path.write_text('{"a": 1}\n{"a": \n{"a": 3}\n')
    with pytest.raises(RecordError, match=r"a\.jsonl:2: not JSON"):
        read_lines(path)


def test_json_lines_keep_what_others_appended(tmp_path: Path) -> None:
    file = JsonLines(tmp_path / "a.jsonl")
    file.append({"n": 1}, {"n": 2})
    assert file.cut(lambda v: v["n"] == 2) == [{"n": 2}]
    file.append({"n": 3})
    file.close()
    assert (tmp_path / "a.jsonl").read_text() == '{"n":2}\n{"n":3}\n'


def test_the_last_of_the_json_lines_is_amended_and_the_others_stay_to_the_byte(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"n": 1}\n')
    file = JsonLines(path)
    file.append({"n": 2})
    file.amend({"more": 0.5})
    before = path.stat().st_ino
    file.amend({"more": 0.5})
    assert path.stat().st_ino == before, "what it holds already is not written again"
    file.append({"n": 3})
    file.close()
    assert path.read_text() == '{"n": 1}\n{"n":2,"more":0.5}\n{"n":3}\n'


def test_a_full_disk_leaves_whole_lines(tmp_path: Path) -> None:
    code = ("import resource, sys; from pathlib import Path; from rti.run.files import JsonLines\n"
            "file = JsonLines(Path(sys.argv[1])); file.append({'n': 1})\n"
            "resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))\n"
            "try: file.append({'long': 'x' * 200})\n"
            "except OSError: pass\n"
            "else: raise SystemExit('it was written')\n"
            "file.append({'n': 2})")
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "a.jsonl")], check=True)
    assert (tmp_path / "a.jsonl").read_text() == '{"n":1}\n{"n":2}\n'


def test_what_killed_writes_left_is_removed(tmp_path: Path) -> None:
    make_run(tmp_path, 1)
    left = [tmp_path / ".summary.json.1.partial", tmp_path / "trajectories/.step-000002.rti.1.partial"]
    for path in left:
        path.write_text("half")
    with RunDirectory.open(tmp_path, make_config()):
        assert not any(path.exists() for path in left)


def test_a_truncated_trajectory_file_gives_the_groups_before_the_cut_and_the_offset(tmp_path: Path) -> None:
    path = tmp_path / "step-000001.rti"
    groups = make_groups(1, 0)
    trajectories.write(path, groups)
    data = path.read_bytes()
    read = []
    for cut in (len(data) - 1, len(data) - 5000):
        path.write_bytes(data[:cut])
        with pytest.raises(RecordError, match=r"step-000001\.rti: record 3 at byte \d+: truncated.* 2 before it are whole"):
            read = []
            for group in trajectories.read(path):
                read.append(group.id)
        assert read == ["0-0", "0-1"]
    path.write_bytes(data + b"RTI")
    with pytest.raises(RecordError, match=f"record 4 at byte {len(data)}"):
        list(trajectories.read(path))
    path.write_bytes(b"")
    assert list(trajectories.read(path)) == []


def test_the_groups_kept_are_those_that_show_most() -> None:
    plain, rescued, failed = make_groups(1, 0)
    silent = make_group(9, rewards=(1, 1, 1, 1), group_id="0-9")
    groups = [silent, plain, failed, rescued]
    assert trajectories.select(groups, 1) == [rescued]
    assert trajectories.select(groups, 2) == [failed, rescued]
    assert trajectories.select(groups, 3) == [plain, failed, rescued]
    assert trajectories.select(groups, -1) == groups and trajectories.select(groups, 9) == groups
    assert trajectories.select(groups, 0) == []
