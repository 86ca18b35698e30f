"""What makes sense, beyond types: choices, ranges, and keys that depend on each other. Pure; reports every fault at once.

Each fault says the key, its value, where the value came from, why it cannot work, and the mend.
"""

from __future__ import annotations

import math
import re
from typing import Any, Iterator, Mapping
from urllib.parse import urlsplit

from rti.config.keys import ConfigError, keys, leaves, value_of
from rti.config.schema import Config
from rti.config.teacher import ROLES, wanted

ENDPOINTS = (*(f"intervention.{role}.endpoint" for role in ROLES), "env.tau2.user_endpoint", "env.tau2.judge",
             "env.claw_eval.judge")
ENGINES = ("generators", "teacher.generators")

CHOICES: dict[str, tuple[str, ...]] = {
    "model.chat": ("auto", "lab", "hermes", "generic"),
    "model.dtype": ("auto", "float32", "bfloat16"),
    "model.attention": ("auto", "flash_attention_2", "sdpa"),
    "env.navigation.service": ("offline", "amap", "replay"),
    "env.tau2.domain": ("telecom", "retail", "airline"),
    "env.tau2.profile": ("paper", "official"),
    "env.tau2.user": ("llm", "scripted"),
    "env.tau2.nl_assertions": ("judge", "skip"),
    "env.claw_eval.judged_by": ("endpoint", "rules"),
    "algo.name": ("rti", "grpo", "gspo", "aepo", "opd", "luffy"),
    "algo.aggregation": ("sequence", "token"),
    "algo.ratio": ("behaviour", "proximal"),
    "intervention.denominator": ("roll", "correction", "one"),
    "intervention.replace": ("random", "first"),
    "intervention.prompts": ("auto", "full", "compact", "generic"),
    **{f"{engines}.engine": ("torch", "vllm") for engines in ENGINES},
    **{f"{engines}.device": ("auto", "cpu", "cuda") for engines in ENGINES},
    **{f"{engines}.update": ("in_flight", "drain") for engines in ENGINES},
    **{f"{engines}.weights": ("auto", "object_store", "nccl", "gloo") for engines in ENGINES},
    "teacher.dtype": ("auto", "float32", "bfloat16"),
    "learner.device": ("auto", "cpu", "cuda"),
    **{f"intervention.{role}.player": ("policy", "teacher", "endpoint", "rules") for role in ROLES},
}
"""The words that a text key may hold."""

OR_A_MODULE = frozenset({"intervention.prompts"})
"""Keys that may hold the dotted name of a module of the user's own instead."""

ENVIRONMENTS = ("navigation", "tau2", "claw_eval")
"""Environment packages that ship with RTI; any other comes with `env.class`."""

AT_LEAST: dict[str, float] = {
    "seed": 0, "steps": 0,
    "env.navigation.results": 1, "env.navigation.max_turns": 1, "env.navigation.observation_chars": 100,
    "env.claw_eval.variants": 1, "env.claw_eval.max_turns": 1, "env.claw_eval.fault_rate": 0,
    "env.tau2.max_turns": 1, "env.tau2.user_temperature": 0, "env.tau2.user_max_tokens": 1,
    "rollout.group_size": 2, "rollout.groups_per_step": 1, "rollout.max_tokens": 1, "rollout.max_context": 2,
    "rollout.retries": 0,
    "algo.clip_low": 0, "algo.clip_high": 0, "algo.kl_coef": 0, "algo.distill_coef": 0,
    "algo.dynamic_sampling": 0, "algo.entropy_advantage": 0, "algo.branch_balance": 0, "algo.branch_base": 0,
    "algo.branch_gamma": 0, "algo.branch_penalty": 0, "algo.branch_tokens": 1,
    "algo.high_entropy": -10,
    "intervention.attempts": 1, "intervention.delta": 0, "intervention.weight_eps": 0,
    "hardware.nodes": 1, "hardware.gpus_per_node": 0, "hardware.gpu_gb": 0,
    **{f"{engines}.{key}": 1 for engines in ENGINES for key in ("replicas", "tensor_parallel", "concurrency")},
    **{f"{engines}.{key}": 0 for engines in ENGINES for key in ("max", "threads", "cache_mb", "prefix_cache_mb")},
    "env_workers.count": 1, "env_workers.episodes": 1, "env_workers.max": 0, "ray.idle_s": 0,
    "interveners.min": 1, "interveners.max": 1, "interveners.episodes": 1,
    "learner.world_size": 1, "learner.lr": 0, "learner.warmup_steps": 0, "learner.beta1": 0, "learner.beta2": 0,
    "learner.weight_decay": 0, "learner.pack_tokens": 1, "learner.threads": 0, "learner.max_skipped": 1,
    "async.max_staleness": 0, "buffer.memory_mb": 0, "buffer.reuse": 1,
    "checkpoint.every": 0, "checkpoint.keep": 1, "checkpoint.grace_s": 0,
    "evaluation.every": 0, "evaluation.samples": 1, "evaluation.tasks": 0, "evaluation.temperature": 0,
    "records.trajectories": -1, "ray.num_cpus": 0, "ray.restarts": 0,
    **{f"{section}.cpus": 0 for section in (*ENGINES, "env_workers", "interveners", "learner")},
    **{f"intervention.{role}.temperature": 0 for role in ROLES},
    **{f"intervention.{role}.max_tokens": 1 for role in ROLES},
    **{f"{endpoint}.concurrency": 1 for endpoint in ENDPOINTS}, **{f"{endpoint}.retries": 0 for endpoint in ENDPOINTS},
}
"""Smallest value, itself allowed."""

ABOVE_ZERO = frozenset({
    "env.navigation.requests_per_second", "rollout.temperature", "rollout.timeout_s", "algo.advantage_eps",
    "algo.importance_cap", "algo.shaping", *(f"{engines}.gpu_share" for engines in ENGINES),
    "learner.adam_eps", "learner.max_grad_norm", "ray.start_timeout_s",
    "ray.call_timeout_s", *(f"{endpoint}.timeout_s" for endpoint in ENDPOINTS),
})
BELOW_ONE = frozenset({*(f"{engines}.gpu_share" for engines in ENGINES), "algo.clip_low", "intervention.weight_eps",
                       "learner.beta1", "learner.beta2", "env.claw_eval.fault_rate"})
MAY_BE_INFINITE = frozenset({"intervention.delta", "algo.clip_high", "algo.importance_cap", "learner.max_grad_norm"})

LARGEST, LARGEST_SEED = 10**12, 2**63 - 1
"""No count, size, time or rate of a run is larger. What lies beyond is a slip, and would overflow somewhere later."""

Fault = tuple[str, str, str]   # key, why, the mend

_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")


def validate(config: Config, origins: Mapping[str, str] | None = None) -> None:
    """Raise ConfigError with every fault of `config`. `origins` says where a key's value came from."""
    origins = origins or {}
    checks = (_choices, _bounds, _training, _users, _claw_eval, _roles, _teacher, _places, _secrets)
    faults = [f for check in checks for f in check(config)]
    if faults:
        raise ConfigError("\n".join(_sentence(config, origins, *fault) for fault in faults))


def _sentence(config: Config, origins: Mapping[str, str], name: str, why: str, mend: str) -> str:
    value, origin = value_of(config, name), origins.get(name, "its default")
    if _holds_secret(name, value):
        return f"{name} (from {origin.replace(value, '...')}): {why}. {mend}."
    return f"{name} is {value!r} (from {origin}): {why}. {mend}."


def _choices(config: Config) -> Iterator[Fault]:
    for name, allowed in CHOICES.items():
        value = value_of(config, name)
        if value not in allowed and not (name in OR_A_MODULE and _DOTTED.fullmatch(value)):
            own = ", or give a module of your own as my_pkg.my_module" if name in OR_A_MODULE else ""
            yield name, "there is no such choice", f"Choose {_listed(allowed)}{own}"
    if not config.env.class_ and config.env.name not in ENVIRONMENTS:
        yield ("env.name", f"no environment of that name ships with RTI (there: {_listed(ENVIRONMENTS)})",
               "Name one of them, or give your own with env.class=my_pkg.MyTaskSet")


def _bounds(config: Config) -> Iterator[Fault]:
    for name, value in leaves(config).items():
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            continue
        if not math.isfinite(value):
            if name not in MAY_BE_INFINITE:
                yield name, "it must be finite", f"Give a number {_allowed(name)}"
        elif abs(value) > _largest(name):
            yield name, "it is too large", f"Give a number {_allowed(name)}"
        if value == 0 and math.copysign(1, value) < 0 and name not in ABOVE_ZERO:
            yield name, "it is a negative zero", f"Give a number {_allowed(name)}, without a sign where it is 0"
        if name in AT_LEAST and not value >= AT_LEAST[name]:
            yield name, _why_at_least(name), f"Give {AT_LEAST[name]} or more"
        if name in ABOVE_ZERO and not value > 0:
            yield name, "it must be above 0", "Give a positive number"
        if name in BELOW_ONE and not value < 1:
            yield name, "it must stay below 1", "Give a number in [0, 1)"


def _largest(name: str) -> int:
    return LARGEST_SEED if name == "seed" else LARGEST


def _allowed(name: str) -> str:
    least = "above 0" if name in ABOVE_ZERO else f"from {AT_LEAST[name]:g}" if name in AT_LEAST else f"from -{_largest(name):g}"
    return f"{least}, below 1" if name in BELOW_ONE else f"{least}, up to {_largest(name):g}"


def _why_at_least(name: str) -> str:
    if name == "rollout.group_size":
        return "advantages compare the members of a group, so that a group of one teaches nothing"
    return f"it must be at least {AT_LEAST[name]}"


def _training(config: Config) -> Iterator[Fault]:
    rollout, learner = config.rollout, config.learner
    if rollout.top_p != 1:
        yield ("rollout.top_p", "the ratio compares the learner's full distribution with the one sampled from, and "
               "top-p sampling cuts that one short", "Set it to 1; use rollout.temperature to sharpen sampling")
    if rollout.max_tokens >= rollout.max_context:
        yield ("rollout.max_tokens", f"one turn must fit the episode's {rollout.max_context} tokens beside the prompt",
               "Raise rollout.max_context or lower this")
    if learner.pack_tokens < rollout.max_context:
        yield ("learner.pack_tokens", f"a sample has up to rollout.max_context = {rollout.max_context} tokens, never split",
               f"Give {rollout.max_context} or more")
    if config.algo.name == "gspo" and (config.algo.ratio, config.algo.aggregation) != ("behaviour", "sequence"):
        key = "ratio" if config.algo.ratio != "behaviour" else "aggregation"
        yield (f"algo.{key}", "GSPO has one ratio for a whole sequence, under the policy that sampled it",
               "Leave algo.ratio at behaviour and algo.aggregation at sequence, or choose algo=grpo")
    if config.algo.name == "aepo" and config.algo.ratio != "behaviour":
        yield ("algo.ratio", "AEPO's clip is of the ratio to what sampled the token",
               "Leave it at behaviour, or choose algo=grpo")
    if (most := config.async_.max_staleness + 1) < config.buffer.reuse:
        yield ("buffer.reuse", f"with async.max_staleness = {most - 1} a group gets too old after {most} steps",
               f"Give {most} or less, or raise async.max_staleness")
    for engines in ENGINES:
        if value_of(config, f"{engines}.tensor_parallel") > 1 and value_of(config, f"{engines}.engine") == "torch":
            yield (f"{engines}.tensor_parallel", "the torch engine keeps a whole replica on one GPU",
                   f"Set it to 1, or take {engines}.engine=vllm")
    for least, most in (("env_workers.count", "env_workers.max"), ("generators.replicas", "generators.max")):
        if 0 < value_of(config, most) < value_of(config, least):
            yield (most, f"it is below {least} = {value_of(config, least)}",
                   "Raise it or lower the other; 0 keeps the number fixed")
    if config.interveners.min > config.interveners.max:
        yield "interveners.min", f"it is above interveners.max = {config.interveners.max}", "Raise the one or lower the other"


def _users(config: Config) -> Iterator[Fault]:
    if config.env.class_ or config.env.name != "tau2" or config.env.tau2.user != "llm":
        return
    for part in ("base_url", "model"):
        if not getattr(config.env.tau2.user_endpoint, part):
            yield (f"env.tau2.user_endpoint.{part}", "a language model plays the user, and this says which",
                   "Give it, or set env.tau2.user=scripted")


def _claw_eval(config: Config) -> Iterator[Fault]:
    claw = config.env.claw_eval
    if config.env.class_ or config.env.name != "claw_eval":
        return
    if claw.home and claw.tasks not in ("families", "official"):
        yield "env.claw_eval.tasks", "env.claw_eval.home names a checkout, which gives the tasks", "Leave one of the two out"
    if bool(claw.judge.base_url) != bool(claw.judge.model):
        missing = "model" if claw.judge.base_url else "base_url"
        yield f"env.claw_eval.judge.{missing}", "a judge has an address and a model", "Give both, or neither for no judge"


def _roles(config: Config) -> Iterator[Fault]:
    for role in ROLES:
        r = getattr(config.intervention, role)
        for part in ("base_url", "model"):
            if r.player == "endpoint" and not getattr(r.endpoint, part):
                yield (f"intervention.{role}.endpoint.{part}", "an endpoint plays this role, and this says which",
                       "Give it, e.g. " + ("http://127.0.0.1:8000/v1" if part == "base_url" else "the model's name there"))


def _teacher(config: Config) -> Iterator[Fault]:
    asked = wanted(config)
    if asked and not config.teacher.path:
        yield "teacher.path", f"{asked} needs a teacher", "Name a model that has the policy's own tokenizer"


def _places(config: Config) -> Iterator[Fault]:
    if not config.name or config.name in (".", "..") or "/" in config.name:
        yield "name", "it names the run directory runs/<name>", "Give a plain name; use run_dir for another place"
    if not config.model.path:
        yield "model.path", "there is no policy to train", "Give lab or a Hugging Face directory"
    if config.env.class_ is not None and not _DOTTED.fullmatch(config.env.class_):
        yield "env.class", "it must be a module and a class in it", "Write it as my_pkg.MyTaskSet"
    navigation = config.env.navigation
    if navigation.service == "replay" and not navigation.record and not config.env.class_:
        yield "env.navigation.record", "service is replay, and this names the recording", "Give the file"
    for name in _urls():
        url = value_of(config, name)
        if url and (urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).netloc):
            yield name, "it is not an http or https address", "Write it as http://host:port/path"


def _secrets(config: Config) -> Iterator[Fault]:
    """A run writes its configuration down, so that it may hold names of environment variables, never what they hold."""
    for name in (n for n in keys() if n.endswith("key_env")):
        if _holds_secret(name, value_of(config, name)):
            yield (name, "it must be the name of an environment variable, and what is given does not look like one "
                   "(it is not shown, in case it is the key itself)", "Export the key and give the variable's name")
    for name in _urls():
        if _holds_secret(name, value_of(config, name)):
            yield name, "it holds a user name or password, which a run would write down", "Leave it out of the address"


def _holds_secret(name: str, value: Any) -> bool:
    if name.endswith("key_env"):
        return bool(value) and not _ENV_NAME.fullmatch(value)
    return name.endswith("base_url") and "@" in urlsplit(value).netloc


def _urls() -> list[str]:
    return [n for n in keys() if n.endswith("base_url")]


def _listed(words: tuple[str, ...]) -> str:
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " or " + words[-1]
