"""The numbers of a step's groups against counts made by hand or by a loop over tokens, and the table they are named in."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

from rti.mas.roles import REFUSAL_REASONS
from rti.run import metrics
from rti.run.ledger import DROPPED, PASSED, entry_for, totals, voided
from rti.run.metrics import KEYS, REFUSALS
from rti.run.statistics import failed_calls, flagged, group_metrics, ledger_metrics, refusal
from rti.trajectory import INTERVENTION_OUTCOMES, Ending, Group, Message, Source, Step, ToolCall
from tests.factories import make_group, make_intervention, make_trajectory

ROOT = Path(__file__).resolve().parents[2]


def measure(*groups: Group, version: int = 0, eps: float = 0.2) -> dict[str, float]:
    found = group_metrics(groups, learner_version=version, weight_eps=eps)
    metrics.check(found)
    return found


def test_rewards_and_pass_rates_before_and_after_a_rescue() -> None:
    found = measure(make_group(1, rewards=(1, 0, 0, 1)), make_group(2, rewards=(0, 0, 0, 0), rescued=1, attempts=1),
                    make_group(3, rewards=(0, 0, 0, 0)), make_group(4, rewards=(1, 1, 1, 1)))
    assert found["reward/before_mean"] == 6 / 16 and found["reward/mean"] == 7 / 16
    assert found["pass@G/before"] == 2 / 4 and found["pass@G/after"] == 3 / 4
    assert (found["groups/consumed"], found["groups/trained"], found["groups/no_signal"]) == (4, 2, 2)
    assert (found["groups/failed"], found["groups/rescued"]) == (2, 1)
    assert found["groups/failed_share"] == 0.5 and found["groups/rescued_share"] == 0.5
    assert found["reward/group_std"] == pytest.approx((0.5 + math.sqrt(3) / 4) / 4)


def test_rewards_by_class_are_those_of_the_plain_rollouts() -> None:
    found = measure(make_group(1, rewards=(1, 0, 0, 1), task_class="plain"),
                    make_group(2, rewards=(0, 0, 0, 0), rescued=0, task_class="ambiguous"))
    assert found["reward/class/plain"] == 0.5 and found["reward/class/ambiguous"] == 0.0
    assert not [k for k in measure(make_group(1)) if k.startswith("reward/class/")]


def test_a_shaped_reward_does_not_hide_that_all_failed() -> None:
    group = make_group(1, rewards=(0, 0, 0, 0))
    for member in group.members:
        member.reward = 0.3
    found = measure(group)
    assert found["pass@G/before"] == 0 and found["groups/failed"] == 1 and found["reward/mean"] == pytest.approx(0.3)


def test_staleness_is_learner_version_minus_oldest_token() -> None:
    old, new = make_group(1, version=2), make_group(2, version=5)
    old.members[3].samples[0].versions[old.members[3].samples[0].mask] = 4
    found = measure(old, new, version=5)
    assert found["staleness/mean"] == 1.5 and found["staleness/max"] == 3


def test_no_groups_and_no_intervention_leave_out_what_was_not_measured() -> None:
    for found in (measure(), measure(make_group(1))):
        assert not [k for k in found if k.startswith("ppl/") or k.startswith("intervention/chars")]
        assert "weight/mean" not in found and found["weight/tokens"] == 0
        assert "intervention/accepted_share" not in found and "groups/rescued_share" not in found
        assert found["intervention/rollouts"] == 0
        assert all(math.isfinite(v) for v in found.values())


def test_episodes_turns_tokens_and_endings() -> None:
    rng = np.random.default_rng(0)
    members = [make_trajectory(rng, turns=(3, 4), prompt_ids=range(5)),
               make_trajectory(rng, turns=(2,), ending=Ending.TRUNCATED, prompt_ids=range(5)),
               make_trajectory(rng, turns=(1, 1, 1), forks=True, prompt_ids=range(5), ending=Ending.TRUNCATED)]
    found = measure(Group(id="0-0", task_id="t", members=members, rewards_before=[0, 0, 0]))
    assert found["episode/turns"] == 2.0 and found["episode/tokens"] == 12 / 3
    assert found["episode/length"] == ((5 + 3 + 3 + 4) + (5 + 2) + 3 * 6) / 3
    assert found["episode/ending/truncated"] == 2 / 3 and found["episode/ending/completed"] == 1 / 3
    assert sum(v for k, v in found.items() if k.startswith("episode/ending/")) == pytest.approx(1)


def _step(*calls: ToolCall, replies: tuple[str, ...]) -> Step:
    observations = [Message(role="tool", content=text, tool_call_id=call.id) for call, text in zip(calls, replies)]
    return Step(message=Message(role="assistant", tool_calls=list(calls)), observations=observations)


def test_tool_calls_that_happened_could_not_be_read_or_failed() -> None:
    rng = np.random.default_rng(0)
    good, bad = ToolCall(name="poi_search", id="a"), ToolCall(name="", error="not JSON", id="b")
    used, silent, broken = (make_trajectory(rng) for _ in range(3))
    used.steps = [_step(good, bad, replies=("A 1.0,2.0", "error: not JSON")), _step(good, replies=("Error: no such place",))]
    silent.steps = [Step(message=Message(role="assistant", content="hello"))]
    broken.steps = [_step(bad, replies=("error: not JSON",))]
    found = measure(Group(id="0-0", task_id="t", members=[used, silent, broken], rewards_before=[0, 0, 0]))
    assert found["tools/used_share"] == 1 / 3 and found["tools/calls"] == 4 / 3
    assert found["tools/malformed_share"] == 2 / 4 and found["tools/error_share"] == 3 / 4


def test_replies_of_calls_without_ids_are_matched_in_order() -> None:
    calls = [ToolCall(name="a"), ToolCall(name="b")]
    step = Step(message=Message(role="assistant", tool_calls=calls),
                observations=[Message(role="tool", content="error: x"), Message(role="user", content="error"),
                              Message(role="tool", content="fine")])
    assert failed_calls(step) == 1
    assert failed_calls(Step(message=Message(role="assistant", tool_calls=calls))) == 0


# --- interventions ---------------------------------------------------------------------------------------------------
def test_flagged_is_accepted_plus_refused_and_the_reasons_add_up() -> None:
    rng = np.random.default_rng(0)
    outcomes = list(INTERVENTION_OUTCOMES)
    rollout = make_trajectory(rng, intervened=True, turns=[2] * len(outcomes), outcomes=outcomes)
    other = make_trajectory(rng, intervened=True, outcomes=["valid", "refused_gate"])
    lost = make_trajectory(rng, intervened=True, outcomes=["valid", "refused_gate"], ending=Ending.ENVIRONMENT)
    group = make_group(1, rewards=(0, 0, 0, 0))
    group.attempts = [rollout, other, lost]
    found = measure(group)
    assert found["intervention/rollouts"] == 2 and found["intervention/steps"] == len(outcomes) + 2
    assert found["intervention/flagged"] == len(outcomes) - 2 + 1
    assert found["intervention/accepted"] == 1 and found["intervention/refused"] == found["intervention/flagged"] - 1
    reasons = {k.removeprefix("intervention/refused/"): v for k, v in found.items() if k.startswith("intervention/refused/")}
    assert set(reasons) == set(REFUSALS) and sum(reasons.values()) == found["intervention/refused"]
    assert reasons["gate"] == 2 and reasons["verifier_leak"] == 1 and reasons["no_correction"] == 1
    assert found["intervention/accepted_trajectories_share"] == 0.5 and found["intervention/success_share"] == 0.0
    assert [found[f"intervention/malformed/{r}"] for r in ("validator", "corrector", "verifier")] == [1, 1, 1]


def test_each_reason_of_the_roles_and_the_guards_has_a_key() -> None:
    def refused(outcome: str, **fields: object) -> str | None:
        note = make_intervention(outcome)
        for name, value in fields.items():
            setattr(note, name, value)
        return refusal(note)

    for reason in REFUSAL_REASONS:
        assert refused("refused_verifier", verifier_reasons=[reason.upper() + " "]) == f"verifier_{reason}"
    assert refused("refused_verifier", verifier_reasons=["leak", "not_derivable"]) == "verifier_leak"
    assert refused("refused_verifier", verifier_reasons=["mood"]) == refused("refused_verifier", verifier_reasons=[]) \
        == "verifier_other"
    for guard, key in (("leak:coordinate", "guard_leak"), ("schema:missing", "guard_schema"), ("length", "guard_length"),
                       ("new one", "guard_other"), ("", "guard_other")):
        assert refused("refused_guard", guard=guard) == key
    for outcome in INTERVENTION_OUTCOMES:
        key = refusal(make_intervention(outcome))
        assert (key in REFUSALS) == (flagged(make_intervention(outcome)) and outcome != "accepted")


def test_perplexities_and_sizes_of_corrections() -> None:
    rng = np.random.default_rng(0)
    group = make_group(1, rewards=(0, 0, 0, 0))
    group.attempts = [make_trajectory(rng, corrected=(0, 1), turns=(3, 6)), make_trajectory(rng, corrected=(1,))]
    notes = [s.intervention for t in group.attempts for s in t.steps if s.intervention.outcome == "accepted"]
    for note, ppl in zip(notes, (1.5, 2.5, 4.5), strict=True):
        note.ppl_roll = ppl
    refused = make_trajectory(rng, intervened=True, outcomes=["refused_gate", "refused_gate"])
    refused.steps[1].intervention.ppl_roll = math.inf
    group.attempts.append(refused)
    notes[0].draft = Message(role="assistant", reasoning="abc", content="de")
    found = measure(group)
    assert found["ppl/accepted_mean"] == pytest.approx(8.5 / 3)
    assert found["ppl/accepted_p90"] == pytest.approx(np.percentile([1.5, 2.5, 4.5], 90))
    assert found["ppl/refused_mean"] == 17.5
    draft = len("go") + len("direction") + len(json.dumps({"origin": "1.0,2.0"}))
    fixed = len("first look") + len("poi_search") + len(json.dumps({"address": "A"}))
    assert found["intervention/chars_original"] == pytest.approx((5 + 2 * draft) / 3)
    assert found["intervention/chars_corrected"] == fixed
    assert found["intervention/calls_original"] == pytest.approx(2 / 3) and found["intervention/calls_corrected"] == 1


@pytest.mark.parametrize("eps", [0.2, 0.05, 0.5])
def test_weights_against_a_loop_over_the_tokens(eps: float) -> None:
    groups = [make_group(s, rewards=(0,) * 4, rescued=1, attempts=1, turns=(30, 9), weight_eps=eps) for s in range(6)]
    groups[0].attempts.append(make_trajectory(np.random.default_rng(9), corrected=(0, 1), weight_eps=eps))
    held, low, high = [], 0, 0
    for g in groups:
        for t in (*g.members, *g.attempts):
            for s in t.samples:
                for i in range(len(s.token_ids)):
                    if s.sources[i] == Source.CORRECTION:
                        ratio = math.exp(float(s.correction_logps[i]) - float(s.behaviour_logps[i]))
                        low, high = low + (ratio < 1 - eps), high + (ratio > 1 + eps)
                        held.append(min(max(ratio, 1 - eps), 1 + eps))
    found = measure(*groups, eps=eps)
    assert found["weight/tokens"] == len(held) == 6 * 30 + 9
    assert found["weight/mean"] == pytest.approx(np.mean(held), rel=1e-6)
    assert found["weight/std"] == pytest.approx(np.std(held), rel=1e-5)
    assert found["weight/min"] == pytest.approx(min(held), rel=1e-6)
    assert found["weight/max"] == pytest.approx(max(held), rel=1e-6)
    assert found["weight/clipped_low_share"] == low / len(held) and found["weight/clipped_high_share"] == high / len(held)


# --- the ledger ------------------------------------------------------------------------------------------------------
def test_ledger_entries_count_like_the_groups() -> None:
    groups = [make_group(1, version=3), make_group(2, rewards=(0,) * 4, rescued=1, attempts=1, group_id="0-1", version=2),
              make_group(3, rewards=(0,) * 4, group_id="0-2", version=3)]
    entries = [entry_for(g, step=4, learner_version=3) for g in groups]
    assert [e.disposition for e in entries] == ["trained", "trained", "no_signal"]
    assert [e.staleness for e in entries] == [0, 1, 0] and [e.attempts for e in entries] == [0, 2, 0]
    assert entries[1].ids[1] == "0-1/i1" and entries[1].rewards == [0, 1, 0, 0] and entries[1].tokens == 36
    entries += [voided("0-7", "t", step=4, learner_version=3, oldest_version=0, reason="old"),
                voided("0-8", "t", step=4, learner_version=3, oldest_version=0, reason="old", disposition=DROPPED),
                voided("0-9", "t", step=4, learner_version=3, oldest_version=3, reason="equal", disposition=PASSED)]
    t = totals(entries)
    assert t.passed == 1
    assert (t.consumed, t.trained, t.no_signal, t.voided, t.failed, t.rescued, t.intervened) == (3, 2, 1, 2, 2, 1, 2)
    counted, measured = ledger_metrics(entries), measure(*groups, version=3)
    metrics.check(counted)
    assert counted["groups/voided"] == 2 and counted["groups/passed"] == 1
    assert all(measured[k] == v for k, v in counted.items() if k not in ("groups/voided", "groups/passed", "buffer/reused"))
    assert entry_for(groups[0], step=4, learner_version=3, trained=False).disposition == "no_signal"


def test_a_group_that_is_used_again_counts_once() -> None:
    first, rescued = make_group(1, version=3), make_group(2, rewards=(0,) * 4, rescued=1, attempts=1, group_id="0-1", version=2)
    entries = [entry_for(first, step=5, learner_version=4), entry_for(rescued, step=5, learner_version=4, use=2)]
    t = totals(entries)
    assert (t.consumed, t.trained, t.failed, t.rescued, t.intervened, t.reused) == (1, 1, 0, 0, 0, 1)
    assert ledger_metrics(entries)["buffer/reused"] == 1
    alone = measure(first, version=4)
    both = group_metrics([first], learner_version=4, weight_eps=0.2, reused=[rescued])
    assert {k for k in both if both[k] != alone[k]} == {"staleness/mean", "staleness/max"} and both["staleness/max"] == 2


# --- the table -------------------------------------------------------------------------------------------------------
def test_every_metric_has_a_unit_and_a_meaning_and_stands_once() -> None:
    assert len(KEYS) == len(metrics.METRICS)
    assert all(m.unit and m.text and "|" not in m.text for m in metrics.METRICS)


def test_free_last_parts_are_for_classes_only() -> None:
    assert metrics.is_known("reward/class/ambiguous") and metrics.is_known("eval/class/x")
    assert not metrics.is_known("reward/class/") and not metrics.is_known("reward/other")


def test_the_learners_keys_are_in_the_table() -> None:
    source = "\n".join(p.read_text() for d in ("algos", "learner", "actors") for p in (ROOT / "rti" / d).rglob("*.py"))
    prefixes = "|".join(sorted({m.key.partition("/")[0] for m in metrics.METRICS if "/" in m.key}))
    used = set(re.findall(rf'"((?:{prefixes})/[\w@^/]+)"', source))
    assert {k for k in used if not metrics.is_known(k)} == set()
