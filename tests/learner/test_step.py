"""The learner's step on one rank: against a naive float64 implementation, and everything that must change nothing."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from rti.control.faults import StepInterrupted
from rti.learner.learner import LearnerDiverged
from rti.trajectory import Ending, Group, Source, decode_at
from tests.factories import make_group
from tests.learner.fixtures.groups import make_step, score
from tests.learner.fixtures.models import learner_config, write_model

TIMINGS = ("perf/",)


def without_timings(metrics: dict) -> dict:
    return {k: v for k, v in metrics.items() if not k.startswith(TIMINGS)}


def naive_loss_and_gradient(groups: list[Group], model_dir: Path, *, weighted: bool, eps: float = 0.2, kl: float = 0.0,
                            reference_dir: Path | None = None) -> tuple[float, dict[str, torch.Tensor]]:
    """The objective of DESIGN section 4 in float64: one forward pass a sample, one Python loop over tokens."""
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float64, attn_implementation="eager")
    reference = AutoModelForCausalLM.from_pretrained(reference_dir or model_dir, dtype=torch.float64)
    members = []
    for group in groups:
        rewards = [m.reward for m in group.members]
        mean = sum(rewards) / len(rewards)
        std = math.sqrt(sum((r - mean) ** 2 for r in rewards) / len(rewards))
        if std > 0:
            members += [(m, (m.reward - mean) / (std + 1e-6)) for m in group.members]
    total = torch.zeros((), dtype=torch.float64)
    for member, advantage in members:
        tokens = []
        for sample in member.samples:
            ids = torch.from_numpy(sample.token_ids.astype(np.int64))[None]
            logps = torch.log_softmax(model(ids).logits[0] / member.temperature, -1)
            with torch.no_grad():
                ref = torch.log_softmax(reference(ids).logits[0] / member.temperature, -1)
            for t in range(len(sample.token_ids)):
                if sample.sources[t] == Source.CONTEXT:
                    continue
                now, then = logps[t - 1, ids[0, t]], float(sample.behaviour_logps[t])
                rho = torch.exp(now - then)
                w = float(sample.weights[t]) if weighted else 1.0
                term = w * torch.minimum(rho * advantage, torch.clamp(rho, 1 - eps, 1 + eps) * advantage)
                x = ref[t - 1, ids[0, t]] - now
                tokens.append(term - kl * (torch.exp(x) - x - 1))
        total = total + torch.stack(tokens).sum() / len(tokens)
    loss = -total / len(members)
    loss.backward()
    return loss.item(), {name: p.grad for name, p in model.named_parameters()}


def assert_same_gradient(got: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], tolerance: float = 1e-5) -> None:
    assert got.keys() == expected.keys()
    for name in got:
        torch.testing.assert_close(got[name].double(), expected[name].double(), rtol=1e-4, atol=tolerance, msg=name)


def test_an_interrupted_step_leaves_no_trace_and_can_be_run_again(make_learner, model_dir, groups):
    config = learner_config(model_dir, pack_tokens=64)
    learner, undisturbed = make_learner(config), make_learner(config)
    for each in (learner, undisturbed):
        each.step(groups, 1)
    weights = learner.state_dict_for_engine()
    moments = {name: state.clone() for name, state in learner._state().items()}
    loss, calls = learner.algorithm.loss, []

    def interrupted_in_the_second(*given):
        calls.append(torch.rand(()))        # something that draws
        if len(calls) == 2:
            learner.interrupt(2)
        return loss(*given)

    object.__setattr__(learner.algorithm, "loss", interrupted_in_the_second)        # it is frozen
    drawn = torch.get_rng_state()
    with pytest.raises(StepInterrupted, match="step 2"):
        learner.step(groups, 2)
    assert len(calls) == 2 and torch.equal(torch.get_rng_state(), drawn) and learner.version == 1
    assert all(torch.equal(weights[k], w) for k, w in learner.state_dict_for_engine().items())
    assert all(torch.equal(moments[k], m) for k, m in learner._state().items())
    object.__setattr__(learner.algorithm, "loss", loss)        # it is frozen
    assert without_timings(learner.step(groups, 2)) == without_timings(undisturbed.step(groups, 2))
    expected = undisturbed.state_dict_for_engine()
    assert all(torch.equal(expected[k], w) for k, w in learner.state_dict_for_engine().items())


def test_an_interrupt_of_another_step_interrupts_nothing(make_learner, model_dir, groups):
    learner = make_learner(learner_config(model_dir))
    learner.interrupt(1)
    assert learner.step(groups, 2)["learner/updated"] == 1


@pytest.mark.parametrize("algo", ["rti", "grpo"])
@pytest.mark.parametrize("tied", [True, False])
def test_loss_and_gradient_equal_a_naive_float64_implementation(tmp_path, make_learner, algo, tied):
    model_dir = write_model(tmp_path / "policy", tied=tied)
    groups = score(make_step(rescued=algo == "rti"), model_dir)
    metrics, gradient = make_learner(learner_config(model_dir, algo=algo)).gradient(groups)
    loss, expected = naive_loss_and_gradient(groups, model_dir, weighted=algo == "rti")
    assert metrics["policy/loss"] == pytest.approx(loss, abs=1e-6)
    assert_same_gradient(gradient, expected)
    assert metrics["policy/clip_low"] > 0 and metrics["policy/clip_high"] > 0       # the test saw clipped tokens


def test_the_kl_term_is_to_the_initial_policy(tmp_path, make_learner, model_dir, groups):
    config = learner_config(model_dir, algo="grpo", lr=1e-2)
    config.algo.kl_coef = 0.3
    learner = make_learner(config)
    learner.step(groups, 1)
    learner.export_hf(tmp_path / "moved")
    metrics, gradient = learner.gradient(groups)
    loss, expected = naive_loss_and_gradient(groups, tmp_path / "moved", weighted=False, kl=0.3, reference_dir=model_dir)
    assert metrics["policy/reference_kl"] > 1e-3
    assert metrics["policy/loss"] == pytest.approx(loss, abs=1e-6)
    assert_same_gradient(gradient, expected)


@pytest.mark.parametrize("pack_tokens", [40, 56, 4096])
def test_micro_batching_changes_neither_loss_nor_gradient(make_learner, model_dir, groups, pack_tokens):
    whole, expected = make_learner(learner_config(model_dir, pack_tokens=100_000)).gradient(groups)
    metrics, gradient = make_learner(learner_config(model_dir, pack_tokens=pack_tokens)).gradient(groups)
    assert whole["learner/micro_batches"] == 1 and (pack_tokens > 1000 or metrics["learner/micro_batches"] > 4)
    assert metrics["policy/loss"] == pytest.approx(whole["policy/loss"], abs=1e-7)
    assert_same_gradient(gradient, expected, 1e-6)
    measured = [k for k in whole if k.startswith("policy/")]
    assert {k: metrics[k] for k in measured} == pytest.approx({k: whole[k] for k in measured}, rel=1e-4, abs=1e-6)
    assert metrics["learner/padding_share"] < 0.05


def test_without_a_failed_group_rti_updates_the_weights_exactly_as_grpo(make_learner, model_dir):
    groups = score(make_step(rescued=False), model_dir)
    learners = [make_learner(learner_config(model_dir, algo=name)) for name in ("rti", "grpo")]
    for step in range(3):
        metrics = [without_timings(x.step(groups, step)) for x in learners]
    assert all(metrics[0][k] == v for k, v in metrics[1].items())
    rti, grpo = (x.state_dict_for_engine() for x in learners)
    assert all(torch.equal(rti[k], grpo[k]) for k in rti)


def test_with_every_rewrite_refused_rti_is_grpo_exactly(make_learner, model_dir):
    """delta = 0: the gate refuses every rewrite, so no token of an intervened rollout is intervened."""
    group = make_group(5, rewards=(0, 0, 0, 1), turns=[4, 3])
    group.members[3].intervened = True
    groups = score([group], model_dir)
    (_, rti), (_, grpo) = (make_learner(learner_config(model_dir, algo=name)).gradient(groups) for name in ("rti", "grpo"))
    assert all(torch.equal(rti[k], grpo[k]) for k in rti)


def test_the_ratio_is_one_on_unchanged_weights(make_learner, model_dir):
    groups = score(make_step(rescued=False), model_dir, noise=0.0)
    metrics, _ = make_learner(learner_config(model_dir)).gradient(groups)
    assert metrics["policy/ratio_min"] == pytest.approx(1, abs=1e-4)
    assert metrics["policy/ratio_max"] == pytest.approx(1, abs=1e-4)
    assert metrics["policy/logp_gap_max"] < 1e-4 and metrics["policy/clip_low"] == metrics["policy/clip_high"] == 0


def test_the_same_groups_in_the_same_order_give_the_same_bits(make_learner, model_dir, groups):
    runs = []
    for _ in range(2):
        learner = make_learner(learner_config(model_dir, pack_tokens=64))
        metrics = [without_timings(learner.step(groups, step)) for step in range(3)]
        runs.append((metrics, learner.state_dict_for_engine()))
    assert runs[0][0] == runs[1][0]
    assert all(torch.equal(runs[0][1][k], runs[1][1][k]) for k in runs[0][1])


def test_a_step_moves_the_weights_the_version_and_the_loss(make_learner, model_dir, groups):
    learner = make_learner(learner_config(model_dir))
    before = learner.state_dict_for_engine()
    losses = [learner.step(groups, step)["policy/loss"] for step in range(5)]
    after = learner.state_dict_for_engine()
    assert learner.version == 5 and losses[-1] < losses[0]
    assert any(not torch.equal(before[k], after[k]) for k in before)


@pytest.mark.parametrize("kl_coef", [0.0, 0.5])
def test_groups_that_teach_nothing_cost_no_update(make_learner, model_dir, kl_coef):
    config = learner_config(model_dir)
    config.algo.kl_coef = kl_coef
    learner = make_learner(config)
    lost = make_group(3, rewards=(1, 0, 0))
    lost.members[1].ending = lost.members[2].ending = Ending.INFRASTRUCTURE
    before = learner.state_dict_for_engine()
    alike = [make_group(1, rewards=(0, 0, 0)), make_group(2, rewards=(1, 1))]
    for groups in (alike, [make_group(4, rewards=(1,))], [lost], []):
        metrics = learner.step(groups, 1)
        assert metrics["learner/updated"] == metrics["learner/skipped"] == 0
        assert metrics["learner/groups_no_signal"] == metrics["learner/groups"] == len(groups)
    after = learner.state_dict_for_engine()
    assert learner.version == 0 and all(torch.equal(before[k], after[k]) for k in before)


def test_a_silent_group_beside_a_teaching_one_changes_no_bit(make_learner, model_dir, groups):
    (_, with_silent), (_, without) = (make_learner(learner_config(model_dir)).gradient(g) for g in (groups, groups[:-1]))
    assert not groups[-1].teaches and all(torch.equal(with_silent[k], without[k]) for k in without)


@pytest.mark.parametrize("bad", [float("nan"), float("-inf")])
def test_non_finite_behaviour_log_probabilities_leave_the_step_finite(make_learner, model_dir, groups, bad):
    sample = groups[0].members[0].samples[0]
    sample.behaviour_logps[np.flatnonzero(sample.mask)[:2]] = bad
    learner = make_learner(learner_config(model_dir))
    metrics = learner.step(groups, 1)
    assert metrics["learner/nonfinite_tokens"] == 2 and metrics["learner/updated"] == 1
    assert math.isfinite(metrics["learner/grad_norm"]) and math.isfinite(metrics["policy/loss"])
    assert all(torch.isfinite(t).all() for t in learner.state_dict_for_engine().values())


def explosive(groups: list[Group]) -> list[Group]:
    """A behaviour log-probability so low that the ratio, and with it the gradient, is infinite."""
    member = next(m for m in groups[0].members if m.reward == 0)
    sample = member.samples[0]
    sample.behaviour_logps[np.flatnonzero(sample.mask)[0]] = -3e38
    return groups


def test_a_non_finite_gradient_skips_the_step_and_is_counted(make_learner, model_dir, groups, tmp_path):
    learner = make_learner(learner_config(model_dir, tmp_path, max_skipped=3))
    before = learner.state_dict_for_engine()
    bad = explosive(score(make_step(), model_dir))
    for k in (1, 2):
        metrics = learner.step(bad, k)
        assert metrics["learner/skipped"] == 1 and metrics["learner/skipped_total"] == k and metrics["learner/updated"] == 0
    after = learner.state_dict_for_engine()
    assert learner.version == 0 and all(torch.equal(before[k], after[k]) for k in before)
    good = learner.step(groups, 3)       # one good step ends the row
    assert good["learner/updated"] == 1 and learner.version == 1 and good["learner/skipped_total"] == 2
    learner.step(bad, 4), learner.step(bad, 5)
    with pytest.raises(LearnerDiverged, match="step-000006.rti") as raised:
        learner.step(bad, 6)
    assert "learner.max_skipped" in str(raised.value)
    data, offset, saved = (tmp_path / "failed_batches" / "step-000006.rti").read_bytes(), 0, []
    while offset < len(data):
        group, offset = decode_at(data, offset, Group)
        saved.append(group.id)
    assert saved == [g.id for g in bad]


def test_a_skipped_step_leaves_no_trace_in_the_next(make_learner, model_dir, groups):
    clean, spoilt = (make_learner(learner_config(model_dir)) for _ in range(2))
    spoilt.step(explosive(score(make_step(), model_dir)), 1)
    clean.step(groups, 2), spoilt.step(groups, 2)
    a, b = clean.state_dict_for_engine(), spoilt.state_dict_for_engine()
    assert all(torch.equal(a[k], b[k]) for k in a)


def test_an_update_is_adamw_with_warm_up_clipping_and_no_decay_of_norms(make_learner, model_dir, groups):
    config = learner_config(model_dir, lr=1e-2, warmup_steps=4, weight_decay=0.5, max_grad_norm=0.01)
    learner = make_learner(config)
    before = learner.state_dict_for_engine()
    _, gradient = learner.gradient(groups)
    metrics = learner.step(groups, 1)
    after = learner.state_dict_for_engine()
    norm = math.sqrt(sum(float(g.double().square().sum()) for g in gradient.values()))
    assert metrics["learner/grad_norm"] == pytest.approx(norm, rel=1e-6) and norm > 0.01
    assert metrics["learner/lr"] == pytest.approx(1e-2 / 4)
    for name, g in gradient.items():
        g = g.double() * (0.01 / norm)
        decay = 0.5 if g.ndim >= 2 else 0.0
        expected = before[name].double() * (1 - metrics["learner/lr"] * decay) - metrics["learner/lr"] * g / (g.abs() + 1e-8)
        torch.testing.assert_close(after[name].double(), expected, rtol=1e-4, atol=1e-6, msg=name)
    rates = [learner.step(groups, k)["learner/lr"] for k in range(2, 6)]
    assert rates == pytest.approx([5e-3, 7.5e-3, 1e-2, 1e-2])


def test_weights_for_engines_are_copies_and_tied_weights_go_once(tmp_path, make_learner, groups):
    for tied, extra in ((True, 0), (False, 1)):
        path = write_model(tmp_path / f"tied-{tied}", tied=tied)
        learner = make_learner(learner_config(path))
        state = learner.state_dict_for_engine()
        own = dict(AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).named_parameters())
        assert state.keys() == own.keys() and ("lm_head.weight" in state) == (not tied)
        assert all(torch.equal(state[k], own[k]) for k in own)
        kept = {k: v.clone() for k, v in state.items()}
        learner.step(groups, 1)
        assert all(torch.equal(kept[k], state[k]) for k in kept)


def test_an_exported_directory_loads_as_the_same_policy_with_its_tokenizer_files(tmp_path, make_learner, model_dir, groups):
    learner = make_learner(learner_config(model_dir))
    learner.step(groups, 1)
    learner.export_hf(tmp_path / "out")
    learner.export_hf(tmp_path / "out")     # over an older one
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32).state_dict()
    assert all(torch.equal(loaded[k], v) for k, v in learner.state_dict_for_engine().items())
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "out" / name).read_bytes() == (model_dir / name).read_bytes()
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_settings_that_cannot_train_are_refused(model_dir, make_learner, groups):
    config = learner_config(model_dir)
    config.rollout.top_p = 0.9
    with pytest.raises(ValueError, match="top_p"):
        make_learner(config)
    with pytest.raises(ValueError, match="raise learner.pack_tokens"):
        make_learner(learner_config(model_dir, pack_tokens=8)).step(groups, 1)
    groups[0].members[1].samples[0].token_ids[2] = 97
    with pytest.raises(ValueError, match="token id 97.*has 97 tokens"):
        make_learner(learner_config(model_dir)).step(groups, 1)


def test_bfloat16_computes_in_bfloat16_over_float32_master_weights(make_learner, model_dir, groups):
    config = learner_config(model_dir, lr=1e-6)
    exact, exact_gradient = make_learner(config).gradient(groups)
    low = learner_config(model_dir, lr=1e-6)
    low.model.dtype = "bfloat16"
    learner = make_learner(low)
    metrics, gradient = learner.gradient(groups)
    assert metrics["policy/loss"] == pytest.approx(exact["policy/loss"], abs=0.02)
    assert all(g.dtype == torch.float32 for g in gradient.values())

    def flat(gradients: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.cat([g.flatten() for g in gradients.values()])

    assert torch.cosine_similarity(flat(gradient), flat(exact_gradient), dim=0) > 0.97
    before = {k: p.full_tensor().detach().clone() for k, p in learner._names.items()}
    learner.step(groups, 1)     # an update of 1e-6 is below bfloat16's resolution: only float32 weights can hold it
    moved = [(before[k] != p.full_tensor()).float().mean() for k, p in learner._names.items()]
    assert all(p.dtype == torch.float32 for p in learner._names.values()) and min(moved) > 0.5
    assert all(t.dtype == torch.bfloat16 for t in learner.state_dict_for_engine().values())
