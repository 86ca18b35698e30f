"""Each invariant of the audit that stored groups show is broken on purpose: exit code 1, and the place named."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable

import numpy as np
import pytest

from rti.run import trajectories
from rti.run.audit import audit, main
from rti.run.files import write_atomic
from rti.trajectory import Ending, Group, Message, Source, ToolCall
from tests.run.breaking import breaches, edit_groups, expect
from tests.run.made_run import EVIDENCE, make_config, make_run


def _trained(group: Group, member: int = 0) -> tuple[Any, int]:
    sample = group.members[member].samples[0]
    return sample, int(np.flatnonzero(sample.mask)[1])


def _set(field: str, value: float, member: int = 0) -> Callable[[list[Group]], None]:
    def change(groups: list[Group]) -> None:
        sample, at = _trained(groups[1], member)
        getattr(sample, field)[at] = value
    return change


@pytest.mark.parametrize(("field", "value", "word"), [
    ("behaviour_logps", np.nan, "no finite behaviour log-probability"),
    ("behaviour_logps", -np.inf, "no finite behaviour log-probability"),
    ("behaviour_logps", 0.5, "above 0"),
    ("versions", -1, "names no policy version"),
    ("versions", 3, "is of version 3"),
    ("weights", 0.0, "not positive"),
    ("weights", np.nan, "not positive"),
])
def test_a_trained_token_without_its_record(run: Path, field: str, value: float, word: str) -> None:
    edit_groups(run, _set(field, value))
    expect(run, "trained-tokens", "trajectories/step-000001.rti record 2", "rollout 0-1/0, sample 0", word, only=False)


@pytest.mark.parametrize(("field", "value"), [("weights", 1.0), ("behaviour_logps", -1.0), ("versions", 0)])
def test_a_token_of_the_context_with_a_record(run: Path, field: str, value: float) -> None:
    def change(groups: list[Group]) -> None:
        getattr(groups[0].members[0].samples[0], field)[0] = value

    edit_groups(run, change)
    expect(run, "trained-tokens", "record 1", "token of the context")


def test_arrays_of_unequal_length(run: Path) -> None:
    def change(groups: list[Group]) -> None:
        sample = groups[0].members[0].samples[0]
        sample.weights = sample.weights[:-1]

    edit_groups(run, change)
    expect(run, "trained-tokens", "record 1", "sample.weights must be")


def test_another_temperature(run: Path) -> None:
    edit_groups(run, lambda groups: setattr(groups[0].members[1], "temperature", 1.0))
    expect(run, "trained-tokens", "rollout 0-0/1", "temperature 1.0", "0.8")


def test_a_lost_episode_kept(run: Path) -> None:
    edit_groups(run, lambda groups: setattr(groups[0].members[1], "ending", Ending.INFRASTRUCTURE))
    expect(run, "trained-tokens", "rollout 0-0/1", "infrastructure")


def test_a_weight_outside_the_clip(run: Path) -> None:
    edit_groups(run, _set("weights", 1.5, member=2))
    expect(run, "weights", "rollout 0-1/i1", "1.5", "is outside")


def test_a_weight_off_an_intervened_token(run: Path) -> None:
    edit_groups(run, _set("weights", 1.1))
    expect(run, "weights", "rollout 0-1/0", "other than 1", only=False)


def test_a_weight_that_is_not_the_ratio(run: Path) -> None:
    def change(groups: list[Group]) -> None:
        sample, at = _trained(groups[1], 2)
        sample.weights[at] = 1.0 if abs(sample.weights[at] - 1) > 0.01 else 0.9

    edit_groups(run, change)
    expect(run, "weights", "not the clipped ratio")


def test_weights_although_reweight_is_off(tmp_path: Path) -> None:
    config = make_config()
    config.intervention.reweight = False
    expect(make_run(tmp_path / "run", 1, config), "weights", "intervention.reweight is off")


def test_a_correction_above_delta(run: Path) -> None:
    def change(groups: list[Group]) -> None:
        sample = groups[1].members[2].samples[0]
        fixed = sample.sources == Source.CORRECTION
        sample.behaviour_logps[fixed] -= 3.0
        sample.correction_logps[fixed] -= 3.0
        groups[1].members[2].steps[0].intervention.ppl_roll *= float(np.exp(3))

    edit_groups(run, change)
    expect(run, "gate", "rollout 0-1/i1", "step 0", "above delta 5")


def test_a_perplexity_noted_wrong(run: Path) -> None:
    edit_groups(run, lambda groups: setattr(groups[1].members[2].steps[0].intervention, "ppl_roll", 1.01))
    expect(run, "gate", "is noted as 1.01")


def test_intervened_tokens_of_a_refused_correction(run: Path) -> None:
    edit_groups(run, lambda groups: setattr(groups[1].members[2].steps[0].intervention, "outcome", "refused_gate"))
    expect(run, "gate", "steps [0]")


def test_intervened_tokens_in_a_plain_rollout(run: Path) -> None:
    edit_groups(run, lambda groups: setattr(groups[1].members[2], "intervened", False))
    expect(run, "gate", "not an intervened rollout", only=False)


def test_a_stored_group_that_the_ledger_does_not_know(run: Path) -> None:
    edit_groups(run, lambda groups: setattr(groups[0], "id", "5-5"))
    expect(run, "stored-groups", "group 5-5", "no step that consumed it")


def test_a_stored_group_of_another_step(run: Path) -> None:
    path = trajectories.path_of(run / "trajectories", 3)
    write_atomic(path, path.with_name("step-000001.rti").read_bytes() + path.read_bytes())
    expect(run, "stored-groups", "step-000003.rti record 1", "group 0-0", "no step that consumed it")


def test_a_stored_group_with_other_rewards(run: Path) -> None:
    edit_groups(run, lambda groups: setattr(groups[0].members[1], "reward", 1.0))
    expect(run, "stored-groups", "record 1", "rewards is [1.0, 1.0, 0.0, 1.0]")


def test_a_rescue_that_did_not_succeed(run: Path) -> None:
    edit_groups(run, lambda groups: setattr(groups[1].members[2], "success", False))
    expect(run, "stored-groups", "member 2 took a place", "did not succeed")


@pytest.mark.parametrize(("change", "word"), [
    (lambda g: setattr(g.members[2], "group_id", "0-7"), "rollout 0-1/i1 is of group 0-7"),
    (lambda g: setattr(g.members[0], "task_id", "t9"), "and task t9, the group is of task t1"),
    (lambda g: setattr(g.attempts[0], "id", "0-1/0"), "rollout 0-1/0 stands in it twice"),
    (lambda g: setattr(g.attempts[0], "intervened", False), "is not an intervened rollout"),
    (lambda g: g.members[0].steps.pop(), "has tokens of a turn beyond its 1"),
    (lambda g: setattr(g, "replaced", 7), "member 7 was replaced, and there are 4"),
])
def test_a_rollout_that_does_not_belong_to_its_group(run: Path, change: Callable[[Group], Any], word: str) -> None:
    edit_groups(run, lambda groups: change(groups[1]))
    expect(run, "stored-groups", "record 2", word, only=False)


# --- evidence --------------------------------------------------------------------------------------------------------
def _correct_with(text: str = "", **arguments: str) -> Callable[[list[Group]], None]:
    def change(groups: list[Group]) -> None:
        calls = [ToolCall(name="poi_search", arguments=arguments)] if arguments else []
        step = groups[1].members[2].steps[0]
        step.message = step.intervention.correction = Message(role="assistant", content=text, tool_calls=calls)
    return change


@pytest.mark.parametrize("change", [
    _correct_with(region="Hubei"), _correct_with(address="QINGSHAN"), _correct_with("I go to 114.38,30.64 now"),
    _correct_with(location="114.380000, 30.640000"),
])
def test_evidence_in_an_accepted_correction(run: Path, change: Callable[[list[Group]], None]) -> None:
    edit_groups(run, change)
    text = expect(run, "evidence-hidden", "record 2", "rollout 0-1/i1", "the correction of step 0")
    assert "Hubei" not in text and "114.38" not in text


def test_evidence_that_the_user_or_a_tool_showed_is_no_leak(run: Path) -> None:
    def change(groups: list[Group]) -> None:
        rescue = groups[1].members[2]
        for member in (*groups[1].members, *groups[1].attempts):
            member.prompt = [*member.prompt[:1], Message(role="user", content="To Qingshan, please.")]
        _correct_with(address="Qingshan")(groups)
        rescue.steps[0].observations = [Message(role="tool", content="Qingshan, Hubei 114.38,30.64")]
        fixed = Message(role="assistant", tool_calls=[ToolCall(name="direction", arguments={"to": "114.380000,30.640000"})])
        rescue.steps[1].message = rescue.steps[1].intervention.correction = fixed
        rescue.steps[1].intervention.outcome = "accepted"

    edit_groups(run, change)
    assert "evidence-hidden" not in breaches(audit(run))


def test_a_part_of_a_longer_word_is_no_leak(run: Path) -> None:
    edit_groups(run, _correct_with("Hubeiland has no such place."))
    assert main([str(run)]) == 0


def test_what_a_plain_rollout_wrote_by_itself_is_no_secret(run: Path) -> None:
    def change(groups: list[Group]) -> None:
        _correct_with(region="Hubei")(groups)
        call = ToolCall(name="poi_search", arguments={"region": "Hubei"})
        groups[1].members[0].steps[0].message = Message(role="assistant", tool_calls=[call])

    edit_groups(run, change)
    assert main([str(run)]) == 0


def test_evidence_in_a_system_message(run: Path) -> None:
    location = EVIDENCE["stops"][0]["location"]

    def change(groups: list[Group]) -> None:
        for member in (*groups[0].members, *groups[0].attempts):
            member.prompt = [Message(role="system", content=f"The answer is {location}."), *member.prompt[1:]]

    edit_groups(run, change)
    expect(run, "evidence-hidden", "record 1", "its system message holds a coordinate")


def test_other_ids_behind_the_same_prompt(run: Path) -> None:
    def change(groups: list[Group]) -> None:
        groups[1].members[2].samples[0].token_ids[2] += 1

    edit_groups(run, change)
    expect(run, "evidence-hidden", "rollout 0-1/i1", "other ids")


def _everybody_reads(text: str, role: str = "user", groups: tuple[int, ...] = (0,)) -> Callable[[list[Group]], None]:
    def change(made: list[Group]) -> None:
        for group in (made[i] for i in groups):
            for rollout in (*group.members, *group.attempts):
                kept = [m for m in rollout.prompt if m.role != role]
                rollout.prompt = sorted([*kept, Message(role=role, content=text)], key=lambda m: m.role == "user")
    return change


@pytest.mark.parametrize(("text", "word"), [
    ("From A to B. Reference: 114.38, 30.64", "its user message holds a coordinate"),
    ('From A to B.\n{"order_level": 3}', "its user message holds the field order_level"),
])
def test_evidence_in_a_user_message(run: Path, text: str, word: str) -> None:
    edit_groups(run, _everybody_reads(text))
    expect(run, "evidence-hidden", "record 1", "rollout 0-0/0", word)


def test_a_sentence_of_the_evidence_in_a_user_message(run: Path) -> None:
    sentence = "The agent says that the trip starts in Qingshan and ends elsewhere."

    def change(groups: list[Group]) -> None:
        for rollout in groups[0].members:
            rollout.evidence = {"criteria": [sentence]}
        _everybody_reads(f"From A to B. {sentence.upper()}")(groups)

    edit_groups(run, change)
    assert sentence not in expect(run, "evidence-hidden", "its user message holds a text of 67 characters")


def test_the_prompt_of_a_role_in_the_place_of_a_rollouts(run: Path) -> None:
    def change(groups: list[Group]) -> None:
        rescue = groups[1].members[2]
        rescue.prompt = [rescue.prompt[0], Message(role="user", content="From A to B.\n\nRequired actions: Qingshan, Hubei")]

    edit_groups(run, change)
    expect(run, "evidence-hidden", "rollout 0-1/i1", "a text of 5 characters", "beside what the group's other rollouts read")


def test_a_simulated_user_that_says_more_to_one_rollout_is_no_leak(run: Path) -> None:
    def change(groups: list[Group]) -> None:
        for i, rollout in enumerate(groups[1].members):
            says = ["Hello.", "Hello there.", "I want to go to Qingshan, Hubei.", "Good day."][i]
            rollout.prompt = [rollout.prompt[0], Message(role="user", content=says)]

    edit_groups(run, change)
    assert main([str(run)]) == 0


def test_a_system_message_that_comes_in_the_middle(run: Path) -> None:
    def change(groups: list[Group]) -> None:
        groups[0].members[1].steps[0].observations.append(Message(role="system", content="Hint: 114.380000,30.640000"))

    edit_groups(run, change)
    expect(run, "evidence-hidden", "rollout 0-0/1", "its system message holds a coordinate")


def test_a_policy_for_agents_that_all_tasks_share_is_no_leak(run: Path) -> None:
    edit_groups(run, _everybody_reads("The office lies at 114.38,30.64.", "system", groups=(0, 1, 2)))
    assert main([str(run)]) == 0
