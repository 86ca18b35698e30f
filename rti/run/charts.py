"""Which keys of metrics.jsonl belong on one chart: the one table that the report's plots and TensorBoard's layout share."""

from __future__ import annotations

from typing import NamedTuple


class Chart(NamedTuple):
    """Curves over the steps. `scale` multiplies (100: shares as percent); `bound`: a key of the configuration whose value is
    drawn as a level under the name `bound_name`."""

    title: str
    unit: str
    curves: tuple[tuple[str, str], ...]     # (key, legend)
    scale: float = 1.0
    bound: str = ""
    bound_name: str = ""
    text: str = ""


CHARTS: dict[str, tuple[Chart, ...]] = {
    "Training": (
        Chart("Rollout Pass@G", "% of the groups", (("pass@G/before", "before intervention"), ("pass@G/after", "after")), 100,
             text="Groups in which at least one rollout succeeded; after: rescues included."),
        Chart("Reward", "mean", (("reward/before_mean", "plain rollouts"), ("reward/mean", "as trained on"))),
        Chart("Groups of a step", "groups", (("groups/trained", "trained"), ("groups/no_signal", "no signal"),
                                             ("groups/failed", "failed as a whole"), ("groups/rescued", "rescued"))),
        Chart("Entropy", "nats", (("policy/entropy", "at trained tokens"),)),
        Chart("Clipped tokens", "% of the trained tokens", (("policy/clip_low", "low"), ("policy/clip_high", "high")), 100),
        Chart("Policy drift", "nats", (("policy/approx_kl", "KL of behaviour to current"),
                                       ("policy/logp_gap", "mean |log-ratio|"))),
        Chart("Gradient norm", "norm", (("learner/grad_norm", "before it is scaled down"),)),
        Chart("Episodes", "tokens", (("episode/tokens", "agent tokens"), ("episode/length", "all tokens"))),
        Chart("How episodes ended", "% of the rollouts", (
            ("episode/ending/completed", "completed"), ("episode/ending/turn_limit", "turn limit"),
            ("episode/ending/truncated", "truncated"), ("episode/ending/empty_reply", "empty reply")), 100),
        Chart("Tool calls", "% of the calls", (("tools/malformed_share", "unreadable"), ("tools/error_share", "errors")), 100),
    ),
    "Intervention": (
        Chart("Steps under intervention", "steps", (
            ("intervention/steps", "all"), ("intervention/flagged", "flagged"), ("intervention/accepted", "accepted"),
            ("intervention/refused", "refused"))),
        Chart("Intervened rollouts", "% of them", (("intervention/success_share", "succeeded"),
                                                   ("intervention/accepted_trajectories_share", "with a correction")), 100),
        Chart("Perplexity of corrections", "perplexity", (("ppl/accepted_mean", "accepted, mean"),
                                                          ("ppl/accepted_p90", "accepted, 90th percentile"),
                                                          ("ppl/refused_mean", "refused by the gate, mean")),
             bound="intervention.delta", bound_name="gate"),
        Chart("Weights of corrected tokens", "weight", (("weight/mean", "mean"), ("weight/min", "least"),
                                                        ("weight/max", "most"))),
        Chart("Corrected tokens on a bound of the clip", "% of them", (("weight/clipped_low_share", "low"),
                                                                       ("weight/clipped_high_share", "high")), 100),
    ),
    "System": (
        Chart("Staleness", "versions", (("staleness/mean", "mean"), ("staleness/max", "most")),
             bound="async.max_staleness", bound_name="bound"),
        Chart("Throughput", "tokens/s", (("time/generator_tokens_per_s", "generated"), ("time/scored_tokens_per_s", "scored"),
                                         ("time/learner_tokens_per_s", "trained on"))),
        Chart("Idle", "% of the step's time", (("time/generator_idle_share", "generators"),
                                               ("time/learner_idle_share", "learner")), 100),
        Chart("Where a step's time goes", "s", (("time/rollout_s", "rollouts"), ("time/learner_s", "learner"),
                                                ("time/publish_s", "new weights"), ("time/checkpoint_s", "checkpoint"),
                                                ("time/evaluation_s", "evaluation"))),
        Chart("Lost and done again", "a step", (("system/restarts", "actors"),
                                                ("rollouts/lost_environment", "rollouts: environment"),
                                                ("rollouts/lost_infrastructure", "rollouts: infrastructure"))),
        Chart("Memory", "GB", (("system/peak_gb", "all processes, most so far"),
                               ("perf/learner_peak_gb", "learner's first rank"))),
    ),
}
