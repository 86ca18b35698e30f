"""Every key of metrics.jsonl, with unit and meaning: the one table that the code, the docs and the tests share.

docs/records.md holds this table (`python -m rti.run.metrics` prints it). Nothing is logged under a key that is not here.
Keys under `time/`, `perf/`, `system/`, `endpoint/` and `rollouts/lost_` depend on the clock, the machine or what died; all
others of a synchronous run are the same in every run of the same seed and configuration (invariant 7).
"""

from __future__ import annotations

import difflib
import math
import sys
from pathlib import Path
from typing import Any, Mapping, NamedTuple

from rti.commands import guarded
from rti.config.schema import Config
from rti.trajectory import Ending

REFUSALS = {
    "verifier_leak": "refused by the Verifier: names or implies hidden material",
    "verifier_fabricated_tool_result": "refused by the Verifier: a value that no tool returned",
    "verifier_wrong_tool_arguments": "refused by the Verifier: arguments that contradict the visible history",
    "verifier_unreasonable_calibration": "refused by the Verifier: not a sensible next step",
    "verifier_not_derivable": "refused by the Verifier: not derivable from the visible history",
    "verifier_other": "refused by the Verifier: another reason, or none",
    "guard_leak": "refused by a guard: a literal of the evidence that is nowhere in the visible history",
    "guard_schema": "refused by a guard: arguments that violate the tool's schema",
    "guard_length": "refused because the turn is longer than the policy itself could write it",
    "guard_other": "refused by a guard: anything else",
    "gate": "refused by the perplexity gate",
    "no_correction": "the Corrector offered nothing, or the draft itself",
    "corrector_malformed": "the Corrector's output could not be read",
    "verifier_malformed": "the Verifier's output could not be read",
}
"""Why a flagged step was not corrected. Each flagged and not accepted step counts under exactly one."""

ROLES = ("validator", "corrector", "verifier")


_ANY, _FROM_0, _UP_TO_1 = (-math.inf, math.inf), (0.0, math.inf), (0.0, 1.0)
RANGES: dict[str, tuple[float, float]] = {
    "step": (1, math.inf), "reward": _ANY, "loss": _ANY, "perplexity": (1, math.inf),
    **dict.fromkeys(("share", "outcome", "probability", "0 or 1"), _UP_TO_1),
}
"""unit -> smallest and largest value, themselves allowed; from 0 on for all others. A row may narrow or widen its own, and
`bounds` knows what depends on the configuration."""

MAY_BE_NULL = frozenset({"reward", "loss", "norm", "nats", "ratio", "perplexity", "probability", "weight"})
"""Units of what is computed from numbers that need not be finite. A count, a share or a time is never null."""


class Metric(NamedTuple):
    key: str        # ends in "*" where the last part is free (a task class)
    unit: str
    text: str
    range: tuple[float, float] | None = None    # where it is not that of the unit


def _m(prefix: str, *rows: tuple[Any, ...]) -> list[Metric]:
    return [Metric(prefix + key, *rest) for key, *rest in rows]


METRICS: tuple[Metric, ...] = (
    *_m("", ("step", "step", "number of the optimiser step, from 1")),
    *_m("reward/",
        ("mean", "reward", "mean over the members as consumed, rescues included"),
        ("before_mean", "outcome", "mean outcome of the plain rollouts, before any replacement"),
        ("class/*", "outcome", "the same for the tasks of one class"),
        ("group_std", "reward", "mean over the groups of the rewards' population standard deviation", _FROM_0)),
    *_m("pass@G/",
        ("before", "share", "groups in which at least one plain rollout succeeded"),
        ("after", "share", "groups in which at least one member succeeded, rescues included")),
    *_m("groups/",
        ("consumed", "groups", "consumed by the step (trained and no_signal)"),
        ("trained", "groups", "took part in the update"),
        ("no_signal", "groups", "all rewards equal: consumed without being trained on"),
        ("voided", "groups", "thrown away since the last step (too old, or lost); their tasks run again"),
        ("passed", "groups", "passed over by dynamic sampling: they teach nothing, and the step took others in their places"),
        ("failed", "groups", "every plain rollout failed"),
        ("failed_share", "share", "groups/failed over groups/consumed"),
        ("rescued", "groups", "failed groups in which an intervened rollout took a member's place"),
        ("rescued_share", "share", "groups/rescued over groups/failed"),
        ("branches", "rollouts", "that share their first turns with another one of their group; only with algo.name=aepo"),
        ("branches_dropped", "rollouts", "whole ones instead of branches, because the environment did not answer alike again")),
    *_m("buffer/",
        ("reused", "groups", "that an earlier step consumed and this one consumed once more (buffer.reuse); of the other keys "
                             "only learner/*, policy/* and staleness/* count them")),
    *_m("staleness/",
        ("mean", "versions", "learner version at consumption minus oldest version of any token, mean over the groups"),
        ("max", "versions", "the same, largest; never above async.max_staleness")),
    *_m("episode/",
        ("turns", "turns", "agent turns, mean over the members as consumed"),
        ("tokens", "tokens", "agent tokens, mean over the members"),
        ("length", "tokens", "all tokens with prompts and tool outputs, mean over the members"),
        *((f"ending/{e}", "share", f"members whose episode ended as {e}") for e in Ending)),
    *_m("tools/",
        ("used_share", "share", "members with at least one readable tool call. Near 0: the chat format or its parser is wrong"),
        ("calls", "calls", "tool calls, mean over the members"),
        ("malformed_share", "share", "tool calls that could not be read"),
        ("error_share", "share", "tool calls answered by an error, the unreadable ones included")),
    *_m("intervention/",
        ("rollouts", "rollouts", "intervened rollouts run (with algo=luffy the teacher's), those that failed included"),
        ("success_share", "share", "intervened rollouts that succeeded"),
        ("accepted_trajectories_share", "share", "intervened rollouts with at least one accepted correction"),
        ("steps", "steps", "steps of the intervened rollouts"),
        ("flagged", "steps", "steps whose draft the Validator judged invalid"),
        ("flagged_share", "share", "intervention/flagged over intervention/steps"),
        ("accepted", "steps", "flagged steps whose correction took the draft's place"),
        ("accepted_share", "share", "intervention/accepted over intervention/flagged"),
        ("refused", "steps", "flagged steps that went on with the draft; the sum of the keys below"),
        *((f"refused/{key}", "steps", text) for key, text in REFUSALS.items()),
        *((f"malformed/{role}", "steps", f"steps at which the {role.capitalize()}'s output could not be read")
          for role in ROLES),
        ("calls_original", "calls", "tool calls of the drafts that were replaced, mean over the accepted steps"),
        ("calls_corrected", "calls", "tool calls of the corrections that replaced them, mean"),
        ("chars_original", "characters", "reasoning, content and calls of the drafts that were replaced, mean"),
        ("chars_corrected", "characters", "the same of the corrections that replaced them, mean")),
    *_m("ppl/",
        ("accepted_mean", "perplexity", "of the accepted corrections under the rollout prompt, mean over the steps"),
        ("accepted_p90", "perplexity", "the same, 90th percentile"),
        ("refused_mean", "perplexity", "of the corrections that the gate refused, mean over those that are finite")),
    *_m("weight/",
        ("tokens", "tokens", "tokens of accepted corrections in all intervened rollouts, taken or not"),
        ("mean", "weight", "mean over those tokens"),
        ("std", "weight", "standard deviation over those tokens"),
        ("min", "weight", "smallest"),
        ("max", "weight", "largest"),
        ("clipped_low_share", "share", "of those tokens, weight on the lower bound of its clip"),
        ("clipped_high_share", "share", "of those tokens, weight on the upper bound of its clip")),
    *_m("teacher/",
        ("written_tokens", "tokens", "of the teacher's own rollouts, which intervention/rollouts counts; only with algo=luffy"),
        ("judged_tokens", "tokens", "of the policy's that the teacher gave a log-probability for; only with algo=opd")),
    *_m("policy/",
        ("loss", "loss", "of the whole step, the KL term included"),
        ("trained_tokens", "tokens", "tokens in the update"),
        ("intervened_tokens", "tokens", "of these, written by the Corrector"),
        ("teacher_tokens", "tokens", "of these, written by the teacher; only with algo=luffy"),
        ("teacher_probability", "probability", "of the teacher's tokens under the current policy, mean"),
        ("teacher_kl", "nats", "reverse KL of behaviour policy to teacher over the trained tokens; only with algo=opd", _ANY),
        ("ratio_mean", "ratio", "current over behaviour probability, mean over the trained tokens"),
        ("ratio_min", "ratio", "smallest"),
        ("ratio_max", "ratio", "largest"),
        ("clip_low", "share", "trained tokens whose ratio the lower bound clips (negative advantage)"),
        ("clip_high", "share", "trained tokens whose ratio the upper bound clips (positive advantage)"),
        ("clip_kept", "share", "trained tokens that the upper bound clips and that keep their gradient; only with aepo"),
        ("importance_mean", "weight", "truncated importance weight of the trained tokens, mean; only with algo.ratio=proximal"),
        ("importance_capped", "share", "of the trained tokens, importance weight cut at algo.importance_cap"),
        ("approx_kl", "nats", "KL of behaviour to current policy, over the tokens that the policy sampled itself"),
        ("logp_gap", "nats", "mean absolute difference of current and behaviour log-probability over those tokens"),
        ("logp_gap_max", "nats", "the same, largest"),
        ("entropy", "nats", "of the current policy at the trained tokens, mean"),
        ("reference_kl", "nats", "KL to the reference policy, mean over the trained tokens; only with algo.kl_coef"),
        ("reference_kl_term", "nats", "the same as it enters the loss, before algo.kl_coef"),
        ("weight_mean", "weight", "over the intervened tokens in the update, mean"),
        ("weight_min", "weight", "the same, smallest"),
        ("weight_max", "weight", "the same, largest"),
        ("weight_clipped", "share", "of the intervened tokens in the update, weight on a bound of its clip"),
        ("intervened_ratio_mean", "ratio", "ratio on the intervened tokens, mean"),
        ("intervened_clip_high", "share", "intervened tokens whose ratio the upper bound clips")),
    *_m("learner/",
        ("version", "version", "of the weights after the step: updates published since the start"),
        ("lr", "1/step", "learning rate of the step"),
        ("grad_norm", "norm", "of the gradient before it is scaled down; null where it was not finite"),
        ("updated", "0 or 1", "1 where the step changed the weights"),
        ("skipped", "0 or 1", "1 where the update was left out because the gradient was not finite"),
        ("skipped_total", "steps", "steps so skipped since the start"),
        ("groups", "groups", "given to the learner; no key but the version is there where no group teaches"),
        ("groups_no_signal", "groups", "of these, without an advantage"),
        ("trajectories", "rollouts", "in the update"),
        ("members_left_out", "rollouts", "members of trained groups that do not train (rollout.train_truncated)"),
        ("nonfinite_tokens", "tokens", "left out of loss and denominator, because a log-probability was not finite"),
        ("tokens", "tokens", "forwarded, prompts and tool outputs included"),
        ("micro_batches", "batches", "packed micro-batches of one rank"),
        ("padding_share", "share", "of the tokens in the packed batches, padding")),
    *_m("rollouts/",
        ("plain", "rollouts", "plain rollouts of the groups that the step consumed"),
        ("lost_environment", "rollouts", "since the last step, lost because the environment broke; run again"),
        ("lost_infrastructure", "rollouts", "since the last step, lost because an engine, a worker or the network broke; run "
                                            "again")),
    *_m("eval/",
        ("p@1", "share", "on the test tasks, where the step ended with an evaluation"),
        ("avg_p@k", "share", "pass@k averaged over k"),
        ("avg_p^k", "share", "pass^k averaged over k"),
        ("class/*", "share", "p@1 of the tasks of one class")),
    *_m("time/",
        ("wall_s", "s", "since the run began, without the time it stood still between stop and resume"),
        ("step_s", "s", "of the step, from the end of the one before"),
        ("rollout_s", "s", "spent waiting for groups"),
        ("learner_s", "s", "spent in the learner"),
        ("publish_s", "s", "from new weights to the last generator that serves them"),
        ("checkpoint_s", "s", "that the step waited for a checkpoint"),
        ("evaluation_s", "s", "that the step waited for an evaluation"),
        ("episode_s", "s", "of an episode, mean over the members"),
        ("generator_tokens_per_s", "tokens/s", "sampled by all generators together"),
        ("scored_tokens_per_s", "tokens/s", "scored by all generators together"),
        ("learner_tokens_per_s", "tokens/s", "trained tokens over the time in the learner"),
        ("generator_idle_share", "share", "of the step's time, generators without a request"),
        ("learner_idle_share", "share", "of the step's time, learner without a batch")),
    *_m("perf/",
        ("learner_step_s", "s", "of the learner's step as its first rank sees it"),
        ("learner_tokens_per_s", "tokens/s", "learner/tokens over that time"),
        ("learner_peak_gb", "GB", "most memory of the learner's first rank so far (of its GPU where it has one)")),
    *_m("system/",
        ("buffer_groups", "groups", "waiting in the replay buffer after the step"),
        ("buffer_mb", "MB", "that they take in memory"),
        ("buffer_spilled", "groups", "of these, on the disk alone (buffer.memory_mb)"),
        ("env_workers", "actors", "env workers alive"),
        ("interveners", "actors", "interveners alive"),
        ("generators", "actors", "generators that are there or coming back"),
        ("restarts", "actors", "restarted since the last step"),
        ("peak_gb", "GB", "most memory of all processes of the run together, so far")),
    *_m("endpoint/",
        ("requests/*", "requests", "since the last step, to the endpoint that plays a role, each attempt one"),
        ("retries/*", "requests", "of these, made again after a fault that may pass"),
        ("failures/*", "calls", "that ended in an error after all attempts"),
        ("prompt_tokens/*", "tokens", "that the service counted in prompts"),
        ("completion_tokens/*", "tokens", "that the service counted in replies")),
)

KEYS: dict[str, Metric] = {m.key: m for m in METRICS}
_FAMILIES = tuple(m.key[:-1] for m in METRICS if m.key.endswith("*"))
_CLOCK = ("time/", "perf/", "system/", "endpoint/", "rollouts/lost_")


class UnknownMetric(KeyError):
    """A key that the table does not hold."""

    def __str__(self) -> str:
        return str(self.args[0])


def is_known(key: str) -> bool:
    return key in KEYS or any(key.startswith(f) and len(key) > len(f) for f in _FAMILIES)


def metric_of(key: str) -> Metric | None:
    """The row of a key, that of its family where its last part is free; None where the table has none."""
    return KEYS.get(key) or next((m for m in METRICS if m.key.endswith("*") and is_known(key)
                                  and key.startswith(m.key[:-1])), None)


def bounds(metric: Metric, config: Config) -> tuple[float, float]:
    """Smallest and largest value that a run of this configuration can have logged."""
    intervention = config.intervention
    if metric.unit == "weight" and metric.key not in ("weight/std", "policy/importance_mean"):
        return max(0.0, 1 - intervention.weight_eps), 1 + intervention.weight_eps
    if metric.key.startswith("ppl/accepted"):
        return 1, intervention.delta
    if metric.key.startswith("staleness/"):
        return 0, config.async_.max_staleness
    return metric.range or RANGES.get(metric.unit, _FROM_0)


def check(values: Mapping[str, Any]) -> None:
    """Raise where a key is not in the table or a value is not a number: records nobody can look up are not written."""
    for key, value in values.items():
        if not is_known(key):
            near = difflib.get_close_matches(key, KEYS, 1)
            raise UnknownMetric(f"metric {key!r} is not in the table of rti/run/metrics.py; add it there with unit and meaning"
                                + (f", or did you mean {near[0]!r}?" if near else ""))
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(f"metric {key!r} must be a plain number, got {type(value).__name__}")


def finite(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values as JSON can hold them: a number that is not finite is None (null)."""
    return {k: v if isinstance(v, int) or math.isfinite(v) else None for k, v in values.items()}


def comparable(values: Mapping[str, Any]) -> dict[str, Any]:
    """Without what depends on clock, machine and deaths: what a resumed run must repeat bit for bit."""
    return {k: v for k, v in values.items() if not k.startswith(_CLOCK)}


def markdown() -> str:
    """The table for docs/records.md."""
    rows = [f"| `{m.key.replace('*', '<role>' if m.key.startswith('endpoint/') else '<class>')}` | {m.unit} | {m.text} |"
            for m in METRICS]
    return "\n".join(["| key | unit | meaning |", "|---|---|---|", *rows])


def main() -> None:
    """Print the table, or with `--write` put it into docs/records.md of this checkout."""
    if sys.argv[1:] != ["--write"]:
        print(markdown())
        return
    page = Path(__file__).resolve().parents[2] / "docs" / "records.md"
    before, found, after = page.read_text().partition("| key | unit | meaning |\n")
    rest = after[after.index("\n\n"):] if found else ""
    page.write_text(before + markdown() + rest)


if __name__ == "__main__":
    sys.exit(guarded(main))
