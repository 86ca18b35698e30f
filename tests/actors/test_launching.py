"""Entry points: what Ray's environment is set to, which checkpoint is resumed, how errors are shown, signals."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models

from rti.actors import launching
from rti.actors.evaluation import policy_in
from rti.actors.training import Stopper, _place
from rti.chat.tokens import OtherTokens
from rti.config.keys import ConfigError
from rti.config.load import load, load_run_config
from rti.config.schema import Config, ModelConfig, RayConfig
from rti.learner import checkpoint as checkpoints
from rti.run.directory import RunDirectory

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def clean_environment(monkeypatch):
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_ADDRESS", "PYTHONPATH", "RTI_DEBUG"):
        monkeypatch.setenv(name, "")        # so that what the test sets is undone, also where nothing was set before
        monkeypatch.delenv(name)


def test_a_local_cluster_gets_a_token_of_its_own(clean_environment):
    launching.prepare(RayConfig())
    first = os.environ["RAY_AUTH_TOKEN"]
    assert os.environ["RAY_AUTH_MODE"] == "token" and len(first) == 64
    assert str(Path(launching.__file__).parents[2]) in os.environ["PYTHONPATH"].split(os.pathsep)


def test_a_cluster_that_is_joined_keeps_the_users_authentication(clean_environment, monkeypatch):
    launching.prepare(RayConfig(address="10.0.0.1:6379"))
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    launching.prepare(RayConfig())
    assert "RAY_AUTH_MODE" not in os.environ and launching.cluster_address(RayConfig()) == "10.0.0.1:6379"


def test_a_teacher_is_looked_for_only_where_it_is_asked(tmp_path):
    launching.check_teacher(load("lab.yaml", ["teacher.path=/nowhere"]))
    launching.check_teacher(load("lab.yaml", ["algo=opd", "teacher.path=lab"]))
    with pytest.raises(ConfigError, match="teacher.path is '/nowhere'"):
        launching.check_teacher(load("lab.yaml", ["algo=luffy", "teacher.path=/nowhere"]))


def test_a_teacher_of_another_tokenizer_is_refused_before_anything_starts(tmp_path):
    other = Tokenizer(models.BPE(vocab={"a": 0}, merges=[]))
    other.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text("{}")
    words = [f"teacher.path={tmp_path}", "intervention.validator.player=teacher"]
    with pytest.raises(OtherTokens, match="whose tokenizer is not that of the policy 'lab'"):
        launching.check_teacher(load("lab.yaml", words))


@pytest.mark.parametrize("path", ["/nowhere", "./nothing", "."])
def test_a_policy_that_is_not_there_is_refused_before_anything_starts(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="there is no Hugging Face directory"):
        launching.check_model(ModelConfig(path=path))
    launching.check_model(ModelConfig(path="owner/model"))
    (tmp_path / "config.json").write_text("{}")
    launching.check_model(ModelConfig(path="."))


def whole_checkpoint(run: Path, step: int) -> Path:
    path = checkpoints.step_directory(run / "checkpoints", step)
    work = checkpoints.temporary(path)
    (work / "hf").mkdir(parents=True)
    (work / "hf" / "config.json").write_text("{}")
    checkpoints.complete(path)
    return path


@pytest.fixture
def run_dir(tmp_path) -> Path:
    with RunDirectory.open(tmp_path / "run", Config()):
        pass
    whole_checkpoint(tmp_path / "run", 2)
    whole_checkpoint(tmp_path / "run", 4)
    return tmp_path / "run"


def test_resume_takes_a_checkpoint_or_the_newest_of_a_run(run_dir):
    config = Config(run_dir=str(run_dir))
    assert _place(config, "auto")[1] is None and _place(config, "never")[1] is None
    assert _place(config, str(run_dir / "checkpoints" / "step-000002"))[1].name == "step-000002"
    assert _place(config, str(run_dir))[1].name == "step-000004"


def test_resume_refuses_what_is_no_checkpoint_of_this_run(run_dir, tmp_path):
    config = Config(run_dir=str(run_dir))
    (run_dir / "checkpoints" / "step-000004" / "COMPLETE").unlink()
    with pytest.raises(ConfigError, match="not a whole checkpoint.*COMPLETE"):
        _place(config, str(run_dir / "checkpoints" / "step-000004"))
    with pytest.raises(ConfigError, match="no such directory"):
        _place(config, str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match=f"Add run_dir={run_dir}"):
        _place(Config(run_dir=str(tmp_path / "other")), str(run_dir / "checkpoints" / "step-000002"))


def test_an_evaluation_takes_a_policy_a_checkpoint_or_a_run(run_dir, tmp_path):
    newest = run_dir / "checkpoints" / "step-000004"
    assert policy_in(str(run_dir)) == policy_in(str(newest)) == policy_in(str(newest / "hf")) == newest / "hf"
    with pytest.raises(ConfigError, match="neither a Hugging Face directory, nor a run's directory, nor a whole checkpoint"):
        policy_in(str(tmp_path))


async def test_the_first_signal_stops_and_a_stop_that_came_early_is_not_lost(capsys):
    stops = []
    stopper = Stopper()
    with stopper:
        os.kill(os.getpid(), signal.SIGTERM)
        assert await stopper.unless_stopped(asyncio.sleep(30)) is None
        stopper.then(lambda: stops.append(1))
    assert stops == [1]
    assert "SIGTERM: stopping" in capsys.readouterr().err


def test_a_second_signal_ends_at_once_unless_it_is_an_echo_of_the_first():
    program = """if True:
        import asyncio, os, signal, sys
        from rti.actors import training
        async def main():
            with training.Stopper():
                for _ in range(2):
                    os.kill(os.getpid(), signal.SIGINT)
                    await asyncio.sleep(0.05)
                print("alive", flush=True)
                training.ECHO_S = 0.01
                os.kill(os.getpid(), signal.SIGINT)
                await asyncio.sleep(30)
        asyncio.run(main())
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout == "alive\n" and done.returncode == -signal.SIGINT


async def test_without_a_signal_the_work_gives_its_result_or_its_error():
    async def fail():
        raise ConfigError("as asked")

    with Stopper() as stopper:
        assert await stopper.unless_stopped(asyncio.sleep(0, "done")) == "done"
        with pytest.raises(ConfigError, match="as asked"):
            await stopper.unless_stopped(fail())


def test_a_dry_run_shows_the_placement_and_starts_nothing():
    done = subprocess.run([sys.executable, "launch/rti.py", "--config", "qwen3-8b.yaml", "--dry-run"], cwd=ROOT,
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "8.19 billion parameters" in done.stdout and "generator-0 (4/4)" in done.stdout and "learner-3" in done.stdout
    assert "Nothing was started" in done.stdout and not (ROOT / "runs" / "qwen3-8b").exists()


def test_a_dry_run_of_what_cannot_fit_fails_with_the_mend_alone():
    done = subprocess.run([sys.executable, "launch/rti.py", "--config", "qwen3-8b.yaml", "--dry-run", "hardware.gpu_gb=40"],
                          cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "GPU 4 (learner-0) would need" in done.stderr and "raise learner.world_size above 4" in done.stderr


def test_the_configuration_is_printed_with_its_sources_and_nothing_is_started(tmp_path):
    words = ["--config", "lab.yaml", "algo=grpo", f"run_dir={tmp_path / 'run'}", "--print-config"]
    done = subprocess.run([sys.executable, "launch/rti.py", *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and not (tmp_path / "run").exists(), done.stderr
    (tmp_path / "config.yaml").write_text(done.stdout)
    assert load_run_config(tmp_path) == load("lab.yaml", ["algo=grpo", f"run_dir={tmp_path / 'run'}"])
    lines = done.stdout.splitlines()
    above = {line.strip().partition(":")[0]: before.strip() for before, line in zip(lines, lines[1:])}
    assert above["run_dir"] == f"# command-line word 'run_dir={tmp_path / 'run'}'"
    assert re.search(r"# .*configs/lab\.yaml:\d+$", done.stdout, re.M) and "grpo.yaml" in above["name"]


def test_a_dry_run_of_the_lab_needs_no_gpu():
    text = launching.dry_run(load("lab.yaml"))
    assert "CPU  generator-0" in text and "0 GPUs" in text
