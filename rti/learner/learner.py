"""The learner: groups in, one optimiser step, new weights out. Plain torch, 1..N ranks, no Ray.

    learner = Learner(config, rank, world_size, init_method="tcp://127.0.0.1:29500")
    learner.setup()
    metrics = learner.step(groups, step)          # on every rank, with the same groups
    weights = learner.state_dict_for_engine()     # full tensors on rank 0

Keeps invariants 7, 8 and 9 as far as they are the learner's: the same groups in the same order give the same bits, a step
that teaches nothing changes nothing and leaves the version alone, and the loss and gradient depend neither on the
micro-batches nor on the number of ranks, since every denominator is that of the whole step. A step that is interrupted ends
between two micro-batches, at the same one on all ranks, and leaves everything as it was.
"""

from __future__ import annotations

import os
import resource
import shutil
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Iterator, Sequence

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from transformers import PreTrainedModel

from rti.algos import load_algorithm
from rti.algos.base import Metrics, TokenBatch, finish
from rti.config.schema import Config
from rti.control.faults import StepInterrupted
from rti.learner import checkpoint, sharding
from rti.learner.batch import StepBatch, prepare
from rti.learner.checkpoint import CheckpointError
from rti.learner.export import write_hf
from rti.learner.loading import load_policy
from rti.learner.optimiser import clip_gradient, gradient_norm, learning_rate, make_optimiser
from rti.learner.packing import Row, collate, plan
from rti.learner.policy import PackedPolicy
from rti.learner.randomness import random_state, set_random_state
from rti.modeling import resolve_attention, resolve_device, resolve_dtype
from rti.trajectory import Group, encode

SAVE_TIMEOUT_S = 1800.0
"""How long wait_saved waits for a checkpoint before it says that the storage hangs."""


class LearnerDiverged(RuntimeError):
    """The gradient was not finite for learner.max_skipped steps in a row."""


class Learner:
    """One rank. Every method but the properties is to be called on all ranks, in the same order."""

    def __init__(self, config: Config, rank: int = 0, world_size: int = 1, *, device: str | None = None,
                 init_method: str | None = None) -> None:
        if config.rollout.top_p != 1:
            raise ValueError(f"rollout.top_p is {config.rollout.top_p}; training needs 1: a ratio is of full distributions")
        self.config, self.rank, self.world_size = config, rank, world_size
        self.device = resolve_device(device or config.learner.device)
        self.dtype = resolve_dtype(config.model.dtype, self.device)
        self.algorithm = load_algorithm(config.algo, config.intervention, config.rollout.train_truncated)
        self.version = 0            # updates made: what the engines call the version of their weights
        self.skipped = 0            # steps skipped for a gradient that was not finite
        self.skipped_in_row = 0
        self._init_method = init_method
        self._created_group = False
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._saving: Future | None = None
        self._unwanted: int | None = None       # the step that is to be interrupted

    # --- life ----------------------------------------------------------------------------------------------------
    def setup(self) -> None:
        """Join the process group and load the policy that the configuration names."""
        torch.set_num_threads(self.config.learner.threads or len(os.sched_getaffinity(0)))
        self._created_group = sharding.join_group(self.rank, self.world_size, self.device, self._init_method)
        self._save_group = dist.new_group(backend="gloo", timeout=sharding.TIMEOUT)     # once: saves overlap with training
        self._control_group = dist.new_group(backend="gloo", timeout=sharding.TIMEOUT)  # interrupts, beside saves and NCCL
        self._mesh = sharding.make_mesh(self.device, self.world_size)
        self.policy = self._load_policy()
        self._reference = self._load_policy().requires_grad_(False) if self.algorithm.kl_coef > 0 else None
        self._names = {name.removeprefix("model."): p for name, p in self.policy.named_parameters()}
        self._optimiser = make_optimiser(self.policy, self.config.learner)

    def close(self) -> None:
        """Wait for a checkpoint in the making, then leave the process group."""
        self.wait_saved()
        self._executor.shutdown()
        if self._created_group:
            sharding.leave_group()

    def _load_policy(self) -> PackedPolicy:
        return load_policy(
            self.config.model.path, attention=resolve_attention(self.config.model.attention, self.device), dtype=self.dtype,
            device=self.device, mesh=self._mesh, group=self._save_group,
            recompute=self.config.learner.activation_checkpointing)

    @property
    def model(self) -> PreTrainedModel:
        return self.policy.model

    # --- the step ------------------------------------------------------------------------------------------------
    def step(self, groups: Sequence[Group], step: int) -> dict[str, float]:
        """One update from exactly these groups; the metrics of the whole step, equal on all ranks.

        A step whose groups teach nothing makes no update; one with a non-finite gradient is skipped, and after
        learner.max_skipped of these in a row LearnerDiverged is raised with the batch saved. Raises StepInterrupted on all
        ranks where `interrupt` came before its last micro-batch: the state is then what it was before.
        """
        began = time.perf_counter()
        batch = prepare(groups, self.algorithm)
        metrics = {
            "learner/groups": float(batch.groups), "learner/groups_no_signal": float(batch.groups_no_signal),
            "learner/trajectories": float(batch.trajectories), "learner/members_left_out": float(batch.members_left_out),
            "learner/nonfinite_tokens": float(batch.nonfinite_tokens), "learner/updated": 0.0, "learner/skipped": 0.0,
        }
        if batch.samples:
            metrics |= self._interruptible(batch, step)
            metrics |= self._update(groups, step)
            seconds = time.perf_counter() - began
            metrics |= {"perf/learner_step_s": seconds, "perf/learner_tokens_per_s": metrics["learner/tokens"] / seconds}
        return metrics | {"learner/version": float(self.version), "learner/skipped_total": float(self.skipped),
                          "perf/learner_peak_gb": _peak_gb(self.device)}

    def interrupt(self, step: int) -> None:
        """End `step`, which is under way or about to begin, before its next micro-batch. To be called from another thread, and
        on one rank only: it tells the others. Nothing happens where the step has ended."""
        self._unwanted = step

    def _interruptible(self, batch: StepBatch, step: int) -> dict[str, float]:
        """The whole step's loss and gradient; or StepInterrupted and no trace of it."""
        before = random_state(self.device)
        try:
            return self._accumulate(batch, step)
        except StepInterrupted:
            self._unwanted = None
            self._optimiser.zero_grad()
            set_random_state(before, self.device)
            raise

    def _heed_interrupt(self, step: int) -> None:
        if sharding.any_rank(self._unwanted == step, self._control_group):
            raise StepInterrupted(f"step {step} was interrupted; nothing of it was done")

    def gradient(self, groups: Sequence[Group]) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
        """Metrics and full gradient (Hugging Face names) of the step's loss, without an update: for checks and diagnosis."""
        metrics = self._accumulate(prepare(groups, self.algorithm))
        gradient = {name: sharding.full(p.grad) for name, p in self._names.items()}
        self._optimiser.zero_grad()
        return metrics, gradient

    def _accumulate(self, batch: StepBatch, step: int | None = None) -> dict[str, float]:
        """Loss and gradient of the whole step, micro-batch by micro-batch. `step`: the one that may be interrupted."""
        self._check_vocabulary(batch)
        self._optimiser.zero_grad()     # of a step that an exception cut short
        lengths = [len(s.inputs) for s in batch.samples]
        fact = repr([(n, s.advantage, s.scale, int(s.targets.sum())) for n, s in zip(lengths, batch.samples)])
        sharding.agree("step", fact.encode(), self.device)
        packed = plan(lengths, self.config.learner.pack_tokens, self.world_size)
        measured, padding = Metrics(), 0
        for indices in packed[self.rank]:
            if step is not None:
                self._heed_interrupt(step)
            row = collate([batch.samples[i] for i in indices])
            inputs, tokens = self._to_device(row)
            logps, entropy = self.policy(*inputs)
            out = self.algorithm.loss(self._with_reference(tokens, inputs), logps, entropy)
            out.loss.backward()
            measured, padding = measured.merge(out.metrics), padding + row.padding
        metrics = finish(_over_ranks(measured, self.device))
        padding = int(sharding.reduce(torch.tensor([padding], device=self.device), "sum"))
        return metrics | {
            "learner/tokens": float(sum(lengths)), "learner/micro_batches": float(len(packed[0])),
            "learner/padding_share": padding / (sum(lengths) + padding),
        }

    def _check_vocabulary(self, batch: StepBatch) -> None:
        size = self.model.get_input_embeddings().num_embeddings
        highest = max((int(max(s.inputs.max(), s.targets.max())) for s in batch.samples), default=0)
        if highest >= size:
            raise ValueError(f"a sample holds token id {highest}, but {self.config.model.path} has {size} tokens: the rollouts "
                             "were made with another model's tokenizer")

    def _to_device(self, row: Row) -> tuple[tuple, TokenBatch]:
        def put(array: np.ndarray) -> torch.Tensor:
            return torch.from_numpy(array).to(self.device, non_blocking=True)

        inputs = (put(row.token_ids), put(row.position_ids), row.cu_seqlens, put(row.select), put(row.targets),
                  put(row.temperatures))
        return inputs, TokenBatch(
            mask=torch.ones(len(row.select), dtype=torch.bool, device=self.device),
            behaviour_logps=put(row.behaviour_logps), correction_logps=put(row.correction_logps), weights=put(row.weights),
            intervened=put(row.intervened), advantages=put(row.advantages), scales=put(row.scales),
            sequence=put(row.sequence), from_teacher=put(row.from_teacher), teacher_logps=put(row.teacher_logps))

    def _with_reference(self, tokens: TokenBatch, inputs: tuple) -> TokenBatch:
        if self._reference is None:
            return tokens
        with torch.no_grad():
            logps, _ = self._reference(*inputs)
        return TokenBatch(**{**vars(tokens), "reference_logps": logps})

    def _update(self, groups: Sequence[Group], step: int) -> dict[str, float]:
        """Clip and apply the accumulated gradient, or skip it where it is not finite."""
        norm = gradient_norm(self.policy)
        rate = learning_rate(self.config.learner, self.version)
        finite = bool(np.isfinite(norm))
        if finite:
            clip_gradient(self.policy, norm, self.config.learner.max_grad_norm)
            for group in self._optimiser.param_groups:
                group["lr"] = rate
            self._optimiser.step()
            self.version += 1
            self.skipped_in_row = 0
        else:
            self.skipped += 1
            self.skipped_in_row += 1
        self._optimiser.zero_grad()
        if self.skipped_in_row >= self.config.learner.max_skipped:
            raise LearnerDiverged(
                f"the gradient's norm was {norm} at step {step}: {self.skipped_in_row} steps in a row without a finite one "
                f"(learner.max_skipped). The last batch is in {self._save_batch(groups, step)}. Lower learner.lr, or look in "
                "the batch for log-probabilities far from those of the policy.")
        return {"learner/grad_norm": norm, "learner/lr": rate, "learner/updated": float(finite),
                "learner/skipped": float(not finite)}

    def _save_batch(self, groups: Sequence[Group], step: int) -> Path:
        """The groups as records of rti.trajectory, back to back."""
        path = Path(self.config.run_dir or f"runs/{self.config.name}") / "failed_batches" / f"step-{step:06d}.rti"
        if self.rank == 0:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"".join(encode(g) for g in groups))
        return path

    # --- weights out ---------------------------------------------------------------------------------------------
    def state_dict_for_engine(self) -> dict[str, torch.Tensor]:
        """Full CPU tensors under Hugging Face names in the compute dtype, tied weights once; on other ranks than 0 empty."""
        return {name: whole.cpu() for name, whole in self.whole_weights() if self.rank == 0}

    def whole_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The same on every rank and on its device, one at a time. A collective: every rank is to go through all of them."""
        for name, p in self._names.items():
            yield name, sharding.full(p.detach().to(self.dtype))

    def export_hf(self, path: str | Path) -> None:
        """Write a Hugging Face directory of the policy; whole or not at all."""
        path, state = Path(path), self.state_dict_for_engine()
        if self.rank == 0:
            work = checkpoint.temporary(path)
            shutil.rmtree(work, ignore_errors=True)
            write_hf(state, self.model, self.config.model.path, work)
            if path.exists():
                shutil.rmtree(path)
            work.rename(path)

    # --- checkpoints ---------------------------------------------------------------------------------------------
    def save(self, path: str | Path, extra: dict[str, Any]) -> None:
        """Begin a checkpoint of the present state; it is whole once wait_saved returns on rank 0. Training may go on."""
        self.wait_saved()
        path = Path(path)
        work = checkpoint.temporary(path)
        checkpoint.encode_record("extra", extra)    # on every rank, so that all of them refuse what cannot be stored
        state = self.state_dict_for_engine()
        if self.rank == 0:
            shutil.rmtree(work, ignore_errors=True)
            (work / "dcp").mkdir(parents=True)
            checkpoint.write_record(work / "extra.msgpack", extra)
            checkpoint.write_record(work / "meta.msgpack", self._meta())
        dist.barrier(self._save_group)
        checkpoint.write_record(work / f"rng-{self.rank:05d}.msgpack", random_state(self.device))
        written = dcp.async_save(self._state(), checkpoint_id=work / "dcp", process_group=self._save_group)
        self._saving = self._executor.submit(self._finish_save, written, path, state)

    def _finish_save(self, written: Future, path: Path, state: dict[str, torch.Tensor]) -> None:
        written.result()    # on rank 0 this is known only once all ranks have written
        if self.rank == 0:
            write_hf(state, self.model, self.config.model.path, checkpoint.temporary(path) / "hf")
            checkpoint.complete(path)

    def wait_saved(self) -> None:
        """Return once the last save is whole; raise where it failed."""
        if self._saving is None:
            return
        saving, self._saving = self._saving, None
        try:
            saving.result(SAVE_TIMEOUT_S)
        except TimeoutError as e:
            raise CheckpointError(f"a checkpoint was not written within {SAVE_TIMEOUT_S:.0f} s: the storage hangs") from e

    def load(self, path: str | Path) -> dict[str, Any]:
        """Take the whole state of a checkpoint, written by any number of ranks; the caller's `extra`. Call after setup."""
        path = Path(path)
        found = [checkpoint.problem_of(path) if self.rank == 0 else None]
        dist.broadcast_object_list(found, src=0, group=self._save_group)
        if found[0] is not None:
            raise CheckpointError(f"{path} is not a whole checkpoint: {found[0]}")
        meta = checkpoint.read_record(path / "meta.msgpack")
        self._check_parameters(path, meta["parameters"])
        dcp.load(self._state(), checkpoint_id=path / "dcp", process_group=self._save_group)
        for state in self._optimiser.state.values():
            state["step"].fill_(meta["version"])
        self.version, self.skipped, self.skipped_in_row = meta["version"], meta["skipped"], meta["skipped_in_row"]
        own = path / f"rng-{self.rank:05d}.msgpack"
        set_random_state(checkpoint.read_record(own if own.is_file() else path / "rng-00000.msgpack"), self.device)
        return checkpoint.read_record(path / "extra.msgpack")

    def _state(self) -> dict[str, torch.Tensor]:
        """What torch.distributed.checkpoint stores and loads in place. AdamW's step count is the version."""
        state: dict[str, torch.Tensor] = {}
        for name, p in self._names.items():
            state[f"model.{name}"] = p.detach()
            for moment in ("exp_avg", "exp_avg_sq"):
                state[f"{moment}.{name}"] = self._optimiser.state[p][moment]
        return state

    def _meta(self) -> dict[str, Any]:
        return {"version": self.version, "skipped": self.skipped, "skipped_in_row": self.skipped_in_row,
                "parameters": {name: list(p.shape) for name, p in self._names.items()}}

    def _check_parameters(self, path: Path, stored: dict[str, list[int]]) -> None:
        mine = {name: list(p.shape) for name, p in self._names.items()}
        if stored != mine:
            name = next(n for n in (*stored, *mine) if stored.get(n) != mine.get(n))
            raise CheckpointError(
                f"{path} holds another model than {self.config.model.path}: {name} is {stored.get(name)} there and "
                f"{mine.get(name)} here; resume with the model.path that the run began with")


def _over_ranks(metrics: Metrics, device: torch.device) -> Metrics:
    """Merged over the ranks: two reductions, whatever the number of measures."""
    sums, least, greatest = metrics.sums, metrics.least, metrics.greatest
    total = sharding.reduce(torch.stack([v.to(device) for v in sums.values()]), "sum").cpu()
    extremes = torch.stack([*(-v for v in least.values()), *greatest.values()]).to(device)
    extremes = sharding.reduce(extremes, "max").cpu()
    return Metrics(dict(zip(sums, total)), dict(zip(least, -extremes)), dict(zip(greatest, extremes[len(least):])))


def _peak_gb(device: torch.device) -> float:
    """Peak memory of this rank: of the GPU where there is one, else resident."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e9
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
