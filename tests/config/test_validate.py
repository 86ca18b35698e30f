"""Values of the right type that cannot work are refused with key, value, why and the mend, all of them at once."""

import pytest

from rti.config.keys import keys
from rti.config.load import ConfigError, load
from rti.config.validate import ABOVE_ZERO, AT_LEAST, BELOW_ONE, CHOICES, MAY_BE_INFINITE


def refusal(*words):
    with pytest.raises(ConfigError) as caught:
        load("lab.yaml", words)
    return str(caught.value)


@pytest.mark.parametrize("word, why", [
    ("rollout.group_size=1", "a group of one teaches nothing"),
    ("rollout.top_p=0.9", "Set it to 1"),
    ("rollout.temperature=0", "above 0"),
    ("rollout.max_tokens=512", "Raise rollout.max_context"),
    ("learner.pack_tokens=100", "never split"),
    ("interveners.min=3", "above interveners.max"),
    ("algo.name=ppo", "rti, grpo, gspo"),
    ("algo.name=opd", "Name a model that has the policy's own tokenizer"),
    ("algo.name=luffy", "algo.name=luffy needs a teacher"),
    ("intervention.corrector.player=teacher", "intervention.corrector.player=teacher needs a teacher"),
    ("algo.shaping=0", "above 0"),
    ("teacher.generators.engine=jax", "torch"),
    ("teacher.generators.tensor_parallel=2", "take teacher.generators.engine=vllm"),
    ("intervention.denominator=two", "roll, correction or one"),
    ("intervention.replace=last", "random or first"),
    ("intervention.weight_eps=1", "below 1"),
    ("intervention.attempts=0", "at least 1"),
    ("intervention.delta=-1", "at least 0"),
    ("generators.engine=jax", "torch"),
    ("async.max_staleness=-1", "at least 0"),
    ("buffer.reuse=0", "at least 1"),
    ("buffer.reuse=2", "too old after 1 steps. Give 1 or less, or raise async.max_staleness"),
    ("learner.lr=inf", "finite"),
    ("learner.beta1=1", "below 1"),
    ("env.name=chess", "env.class=my_pkg.MyTaskSet"),
    ("env.class=MyTaskSet", "my_pkg.MyTaskSet"),
    ("env.navigation.service=replay", "names the recording"),
    ("env.navigation.base_url=localhost:80", "http"),
    ("intervention.validator.player=endpoint", "intervention.validator.endpoint.base_url"),
    ("intervention.corrector.endpoint.concurrency=0", "at least 1"),
    ("intervention.corrector.endpoint.timeout_s=0", "above 0"),
    ("name=a/b", "use run_dir"),
    ("name=", "plain name"),
    ("model.path=", "no policy"),
])
def test_a_value_that_cannot_work_is_refused_with_the_mend(word, why):
    message = refusal(word)
    assert why in message and f"command-line word '{word}'" in message or "its default" in message
    assert why in message


def test_all_faults_are_reported_at_once():
    message = refusal("rollout.group_size=1", "algo.name=x", "learner.lr=-1")
    assert all(key in message for key in ("rollout.group_size", "algo.name", "learner.lr")) and message.count("\n") == 2


def test_a_value_from_a_file_is_refused_with_its_line(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("steps: 3\nrollout:\n  group_size: 1\n")
    with pytest.raises(ConfigError, match=r"rollout.group_size is 1 \(from .*mine.yaml:3\)"):
        load(str(path))


@pytest.mark.parametrize("word, secret", [
    ("env.navigation.key_env=sk-abc 123", "sk-abc 123"),
    ("intervention.validator.endpoint.base_url=http://me:hunter2@host/v1", "hunter2"),
])
def test_a_secret_in_the_wrong_place_is_refused_without_repeating_it(word, secret):
    assert secret not in refusal(word)


@pytest.mark.parametrize("words, why", [
    (["env.claw_eval.home=there", "env.claw_eval.tasks=build/claw-eval"], "Leave one of the two out"),
    (["env.claw_eval.judge.base_url=http://127.0.0.1:8000/v1"], "env.claw_eval.judge.model"),
    (["env.claw_eval.judge.model=m"], "env.claw_eval.judge.base_url"), (["env.claw_eval.judged_by=coin"], "endpoint or rules"),
])
def test_what_contradicts_itself_about_claw_eval_is_refused(words, why):
    assert why in refusal("env.name=claw_eval", *words)


def test_settings_at_their_bounds_are_accepted():
    load("lab.yaml", ["intervention.delta=0", "intervention.delta=inf", "learner.max_grad_norm=inf", "rollout.group_size=2",
                      "intervention.weight_eps=0", "steps=0", "records.trajectories=-1", "evaluation.temperature=0",
                      "env.name=mine", "env.class=a.B"])


def test_every_number_has_a_bound_and_every_rule_a_key():
    ruled = set(AT_LEAST) | ABOVE_ZERO
    numbers = {k.name for k in keys().values() if k.kind in (int, float)} - {"rollout.top_p"}
    assert numbers <= ruled
    assert ruled | BELOW_ONE | MAY_BE_INFINITE | set(CHOICES) <= keys().keys()


@pytest.mark.parametrize("word, why", [
    ("learner.lr=1e300", "it is too large. Give a number from 0, up to 1e+12"),
    ("rollout.timeout_s=1e300", "it is too large. Give a number above 0, up to 1e+12"),
    ("steps=99999999999999999999999", "it is too large. Give a number from 0, up to 1e+12"),
    ("seed=9223372036854775808", "it is too large. Give a number from 0, up to 9.22337e+18"),
    ("learner.lr=-0.0", "it is a negative zero. Give a number from 0, up to 1e+12"),
    ("rollout.temperature=-0.0", "it must be above 0"),
    ("learner.lr=1e999", "it must be finite. Give a number from 0, up to 1e+12"),
    ("learner.beta1=inf", "it must be finite. Give a number from 0, below 1"),
    ("name=${steps", "'${steps' is no whole interpolation: write ${key} with both braces"),
    ("learner.lr=${", "'${' is no whole interpolation"),
])
def test_a_value_that_no_machine_can_hold_or_no_reader_can_take_names_the_range(word, why):
    said = refusal(word)
    assert word.partition("=")[0] in said and f"command-line word '{word}'" in said and why in said
