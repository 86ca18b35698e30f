"""Files compose, words override, and whatever is wrong is refused naming the key, the mend and where it came from."""

import dataclasses
import subprocess
import sys

import pytest
import yaml
from hypothesis import given, settings, strategies as st

from rti.config import schema
from rti.config.load import ConfigError, check_resumable, configs_dir, dump, load, load_run_config


@pytest.fixture
def write(tmp_path):
    def write(name, text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return str(path)
    return write


def refusal(*args):
    with pytest.raises(ConfigError) as caught:
        load(*args)
    return str(caught.value)


NEED_A_USER = ("telecom.yaml", "retail.yaml", "airline.yaml")
USER = ("env.tau2.user_endpoint.base_url=http://127.0.0.1:8000/v1", "env.tau2.user_endpoint.model=user-model")


@pytest.mark.parametrize("name", sorted(p.name for p in configs_dir().glob("*.yaml")))
def test_every_shipped_configuration_is_valid(name):
    assert isinstance(load(name, USER if name in NEED_A_USER else ()), schema.Config)


@pytest.mark.parametrize("name", NEED_A_USER)
def test_a_tau2_run_without_a_user_is_refused_with_what_to_set(name):
    message = refusal(name)
    assert "env.tau2.user_endpoint.base_url is ''" in message and "env.tau2.user_endpoint.model is ''" in message
    assert "env.tau2.user=scripted" in message


def test_a_name_is_a_path_first_and_a_shipped_configuration_second(write, tmp_path, monkeypatch):
    assert load("lab.yaml").name == "lab"
    monkeypatch.chdir(tmp_path)
    assert load("lab").name == "lab"
    write("lab.yaml", "name: mine")
    assert load("lab.yaml").name == "mine"


def test_an_absent_configuration_is_refused_with_what_there_is():
    message = refusal("lap.yaml")
    assert "lap.yaml" in message and "lab.yaml" in message


def test_the_files_own_keys_win_over_its_defaults_and_words_win_over_both(write):
    write("base.yaml", "steps: 1\nseed: 1\nlearner: {lr: 1e-3, beta1: 0.8}")
    mine = write("mine.yaml", "steps: 2\nlearner:\n  lr: 2e-3\ndefaults: [base.yaml]")
    config = load(mine, ["learner.lr=3e-3"])
    assert (config.steps, config.seed, config.learner.lr, config.learner.beta1) == (2, 1, 3e-3, 0.8)


def test_later_defaults_win_over_earlier_ones(write):
    write("a.yaml", "steps: 1")
    write("b.yaml", "steps: 2")
    assert load(write("mine.yaml", "defaults: [a.yaml, b.yaml]")).steps == 2


def test_a_choice_mixes_a_file_in_and_a_word_swaps_it(write):
    write("algo/one.yaml", "algo: {name: rti}\nintervention: {delta: 2}")
    write("algo/two.yaml", "algo: {name: grpo}\nseed: 7")
    mine = write("mine.yaml", "defaults:\n  - algo: one")
    assert (load(mine).algo.name, load(mine).intervention.delta, load(mine).seed) == ("rti", 2.0, 0)
    swapped = load(mine, ["algo=two"])
    assert (swapped.algo.name, swapped.intervention.delta, swapped.seed) == ("grpo", 5.0, 7)


def test_a_word_makes_a_choice_that_no_file_made(write):
    assert load(write("mine.yaml", "algo: {name: rti}"), ["algo=grpo"]).algo.name == "grpo"


def test_a_choice_on_the_command_line_never_loses_silently(write):
    mine = write("mine.yaml", "defaults: [{algo: rti}]\nalgo:\n  name: rti")
    message = refusal(mine, ["algo=grpo"])
    assert "algo=grpo" in message and "mine.yaml:3" in message and "overruled" in message
    assert load(mine, ["algo=grpo", "algo.name=grpo"]).algo.name == "grpo"


def test_an_absent_choice_is_refused_with_what_there_is():
    message = refusal("lab.yaml", ["algo=grop"])
    assert "algo=grop" in message and all(name in message for name in ("grpo", "gspo", "luffy", "opd", "rti"))


def test_defaults_that_lead_back_to_themselves_are_refused(write):
    write("b.yaml", "defaults: [a.yaml]")
    assert "a.yaml -> b.yaml -> a.yaml" in refusal(write("a.yaml", "defaults: [b.yaml]"))


@pytest.mark.parametrize("text, expected", [
    ("learner.lr=1e-6", 1e-6), ("learner.lr=3", 3.0), ("intervention.delta=inf", float("inf")),
    ("intervention.delta=.inf", float("inf")), ("steps=12", 12), ("records.tensorboard=false", False),
    ("name=007", "007"), ("env.navigation.record=", ""), ("env.class=a.b", "a.b"), ("env.class=null", None),
    ("async.max_staleness=3", 3), ("name=${seed}", "0"), ("env.options={a: [1, x]}", {"a": [1, "x"]}),
    ("env.options.a.b=1.5", {"a": {"b": 1.5}}),
])
def test_words_are_read_as_yaml_of_the_keys_type(text, expected):
    name = text.partition("=")[0]
    value = load("lab.yaml", [text])
    for part in name.split("."):
        part = part + "_" if part in ("async", "class") else part
        if isinstance(value, dict):
            break
        value = getattr(value, part)
    assert value == expected and type(value) is type(expected)


def test_a_section_can_be_given_as_one_word():
    config = load("lab.yaml", ["learner={lr: 1e-5, beta1: 0.5}"])
    assert (config.learner.lr, config.learner.beta1) == (1e-5, 0.5)


@pytest.mark.parametrize("word, key, near", [
    ("learner.lrr=1", "learner.lrr", "learner.lr"), ("lr=1", "lr", "learner.lr"),
    ("rollout.groupsize=8", "rollout.groupsize", "rollout.group_size"),
    ("async_.max_staleness=1", "async_.max_staleness", "async.max_staleness"),
    ("learner.temperature=1", "learner.temperature", ".temperature"), ("stpes=1", "stpes", "steps"),
])
def test_an_unknown_word_is_refused_with_the_nearest_key(word, key, near):
    message = refusal("lab.yaml", [word])
    assert f"unknown key {key};" in message and near in message and f"command-line word '{word}'" in message


def test_an_unknown_key_in_a_file_is_refused_with_file_line_and_nearest_key(write):
    write("base.yaml", "seed: 1\nlearner:\n  lr: 1e-3\n  weight_decoy: 0.1\n")
    message = refusal(write("mine.yaml", "defaults: [base.yaml]\nsteps: 3"))
    assert "base.yaml:4" in message and "learner.weight_decoy" in message and "learner.weight_decay" in message


@pytest.mark.parametrize("word, kind", [
    ("steps=many", "an integer"), ("steps=1.5", "an integer"), ("steps=true", "an integer"), ("steps=null", "an integer"),
    ("steps=[1]", "an integer"), ("learner.lr=fast", "a number"), ("learner.lr=.nan", "a number"),
    ("records.tensorboard=maybe", "true or false"), ("records.tensorboard=1", "true or false"), ("name=[a]", "a text"),
    ("name=null", "a text"), ("env.options=3", "a mapping"), ("env.class={a: 1}", "text or null"),
])
def test_an_ill_typed_word_is_refused_naming_the_type(word, kind):
    message = refusal("lab.yaml", [word])
    assert kind in message and word in message and word.partition("=")[0] + " must be" in message


def test_an_ill_typed_key_in_a_file_is_refused_with_its_line(write):
    message = refusal(write("mine.yaml", "seed: 1\nrollout:\n  group_size: eight\n"))
    assert "mine.yaml:3" in message and "rollout.group_size must be an integer" in message and "eight" in message


@pytest.mark.parametrize("text, said", [
    ("learner: 3", "a section"), ("learner: [1]", "a section"), ("- a", "found a list"), ("seed: 1\nseed: 2", "stands twice"),
    ("seed: [1", "not YAML"), ("defaults: base.yaml", "must be a list"), ("defaults: [[a]]", "an entry of defaults"),
    ("defaults: [absent.yaml]", "no file absent.yaml"), ("seed: !!python/name:os.system 1", "must be"),
    ("env: {options: {a: !!python/name:os.system }}", "env.options"), ("steps: ${absent}", "absent"),
    ("steps: ${name}", "run"), ("name: ${", "name"), ("? [a]\n: 1", "a key must be a word"),
    ("env: {? [a] : 1}", "a key must be a word"),
])
def test_a_file_that_is_not_a_configuration_is_refused_with_its_name(write, text, said):
    message = refusal(write("mine.yaml", text))
    assert "mine.yaml" in message and said in message


@pytest.mark.parametrize("word", ["steps", "=3", "", "--steps"])
def test_a_word_that_sets_nothing_is_refused(word):
    assert "expected key=value" in refusal("lab.yaml", [word])


def test_an_empty_section_and_an_empty_file_change_nothing(write):
    assert load(write("mine.yaml", "learner:\n")) == load(write("empty.yaml", "")) == schema.Config()


def test_the_environment_is_not_read_into_a_configuration_that_a_run_writes_down(monkeypatch):
    monkeypatch.setenv("SECRET", "hunter2")
    message = refusal("lab.yaml", ["env.options.key=${oc.env:SECRET}"])
    assert "hunter2" not in message and "env.options.key" in message


# --- writing, reading back, resuming -----------------------------------------------------------------------------
def test_a_written_configuration_reads_back_unchanged(tmp_path):
    config = load("lab.yaml", ["async.max_staleness=2", "intervention.delta=inf", "env.options={a: [1, {b: null}]}",
                               "env.class=a.b", "name=北京 007", "learner.lr=1e-6"])
    (tmp_path / "config.yaml").write_text(dump(config), encoding="utf-8")
    assert load_run_config(tmp_path) == load_run_config(tmp_path / "config.yaml") == config


def test_a_written_configuration_is_spelled_as_a_user_writes_it():
    tree = yaml.safe_load(dump(schema.Config()))
    assert tree["async"] == {"max_staleness": 0} and "class" in tree["env"]


@settings(max_examples=25, deadline=None)
@given(name=st.text(st.characters(codec="utf-8", exclude_characters="/\0${"), min_size=1), lr=st.floats(0, 1),
       steps=st.integers(0, 10**9), flag=st.booleans())
def test_any_values_survive_writing_and_reading(tmp_path_factory, name, lr, steps, flag):
    config = schema.Config(name=name, steps=steps)
    config.learner.lr, config.records.tensorboard = lr, flag
    if name in (".", ".."):
        return
    path = tmp_path_factory.mktemp("run") / "config.yaml"
    path.write_text(dump(config), encoding="utf-8", newline="")
    assert load_run_config(path) == config


def test_an_absent_run_configuration_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="no configuration there"):
        load_run_config(tmp_path)


def test_a_resumed_run_refuses_a_changed_configuration_and_lists_the_keys():
    old = load("lab.yaml")
    with pytest.raises(ConfigError) as caught:
        check_resumable(old, load("lab.yaml", ["learner.lr=1", "seed=3", "steps=99"]))
    message = str(caught.value)
    assert "learner.lr: 0.0002 in the run directory, 1.0 now" in message and "seed: 0" in message and "steps" not in message


def test_a_resumed_run_may_change_what_is_declared_changeable():
    words = ["steps=99", "ray.restarts=1", "generators.replicas=2", "learner.threads=1", "rollout.timeout_s=1"]
    check_resumable(load("lab.yaml"), load("lab.yaml", words))


def test_the_declared_changeable_keys_exist():
    from rti.config.keys import keys
    assert schema.CHANGEABLE <= keys().keys()


def test_loading_leaves_the_schemas_defaults_alone():
    before = dataclasses.asdict(schema.Config())
    load("lab.yaml", ["env.options.a=1", "learner.lr=1"])
    assert dataclasses.asdict(schema.Config()) == before


def test_the_command_prints_the_resolved_configuration_or_one_clear_line():
    def run(*words):
        return subprocess.run([sys.executable, "-m", "rti.config.load", *words], capture_output=True, text=True)
    good = run("lab.yaml", "algo=grpo")
    assert good.returncode == 0 and yaml.safe_load(good.stdout)["algo"]["name"] == "grpo"
    bad = run("lab.yaml", "stepz=1")
    assert bad.returncode == 2 and bad.stderr.startswith("error: ") and "Traceback" not in bad.stderr
