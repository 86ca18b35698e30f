"""Continuous batching over any small Hugging Face causal language model: asyncio in front, one thread that steps behind.

Keeps invariant 7 by batch invariance: the same request (prompt, parameters, seed) under the same weights gives bit for bit the
same tokens and log-probabilities whatever else is in flight (how: attention.py, calibrate.py, sampling.py, stepper.py), and
the per-token versions of invariant 2: weights change between two steps only. May import torch and transformers.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from concurrent.futures import Future, InvalidStateError
from typing import Any, Mapping, Sequence as Seq

import numpy as np
import torch
from transformers import PreTrainedModel

from rti.engines.base import (
    EngineError, Generation, PromptTooLong, SamplingParams, Scores, check_sampling, checked_ids, room_after,
)
from rti.engines.broadcast import Inbox, described
from rti.engines.kv_cache import BLOCK
from rti.engines.sequence import GenerateSequence, ScoreSequence, Sequence
from rti.engines.stepper import Stepper
from rti.engines.transfer import Transfer
from rti.engines.weights import check_weights

_log = logging.getLogger(__name__)


class TorchEngine:
    """rti.engines.base.Engine. The model belongs to the engine from here on: it replaces its attention and its weights.

    `max_context` 0 is the model's own limit; the cache grows with what is used. `threads` is torch's number of CPU threads,
    which is one number for the whole process: give an engine its own process (an actor) where it matters; results are
    reproducible for a fixed number. `batch_invariant` says whether this machine's kernels allow the promise above.
    """

    def __init__(self, model: PreTrainedModel, *, max_concurrency: int = 64, max_context: int = 0, version: int = 0,
                 threads: int = 0, eos_token_ids: Seq[int] = (), prefill_rows: int = 4 * BLOCK,
                 prefix_cache_mb: int = 256) -> None:
        self._threads, self._eos = threads, tuple(eos_token_ids)
        self.vocab_size = model.config.get_text_config().vocab_size
        self.max_context = _context_of(model, max_context)
        self._set_threads()
        with torch.inference_mode():
            self._stepper = Stepper(
                model.eval(), max_concurrency=max_concurrency, max_context=self.max_context, version=version,
                prefill_rows=prefill_rows, prefix_cache_bytes=prefix_cache_mb << 20)
        self._inbox = Inbox(next(model.parameters()).device)
        self._wake = threading.Condition()    # guards the four below
        self._waiting: deque[Sequence] = deque()
        self._updates: deque[tuple[Mapping[str, Any], int, Future]] = deque()
        self._closing = False
        self._fault = ""
        self._thread = threading.Thread(target=self._run, name="rti-torch-engine", daemon=True)
        self._thread.start()

    @property
    def version(self) -> int:
        return self._stepper.version

    @property
    def batch_invariant(self) -> bool:
        return self._stepper.batch_invariant

    def stats(self) -> dict[str, float]:
        """Counters since the start; `busy_s` is the time spent stepping, the rest of the wall clock was idle."""
        return {**self._stepper.counts, "busy_s": self._stepper.busy_s}

    async def generate(self, prompt_ids: Seq[int], params: SamplingParams) -> Generation:
        prompt = self._checked(prompt_ids)
        room = room_after(len(prompt), self.max_context)
        check_sampling(params.temperature, params.top_p)
        n_new = min(room, max(0, params.max_tokens))
        sequence = GenerateSequence(prompt, params, n_new, frozenset((*params.stop_token_ids, *self._eos)))
        return await self._submit(sequence) if n_new else sequence.result("length")

    async def score(self, prompt_ids: Seq[int], response_ids: Seq[int], temperature: float = 1.0) -> Scores:
        prompt = self._checked(prompt_ids)
        if not temperature >= 0:
            raise ValueError(f"temperature must be at least 0, got {temperature}")
        if not len(response_ids):
            return Scores(logps=np.empty(0, np.float32), version=self.version)
        sequence = ScoreSequence(prompt, self._checked(response_ids), temperature)
        if sequence.n_tokens > self.max_context:
            raise PromptTooLong(f"{len(prompt)} + {len(response_ids)} tokens to score do not fit a context of "
                                f"{self.max_context}")
        return await self._submit(sequence)

    async def load_weights(self, state: Mapping[str, Any], version: int) -> None:
        """Between two steps. Requests in flight go on: what they have is read again under the new weights."""
        done: Future = Future()
        with self._wake:
            self._refuse_if_down()
            self._updates.append((state, version, done))
            self._wake.notify()
        await asyncio.wrap_future(done)

    async def receive(self, transfer: Transfer, version: int) -> None:
        """broadcast.ReceivesWeights: all of them are here before anything is replaced."""
        check_weights(self._stepper.model, described(transfer))
        await self.load_weights(await asyncio.to_thread(self._take, transfer), version)

    def _take(self, transfer: Transfer) -> dict[str, torch.Tensor]:
        self._inbox.meet(transfer, rank=1)
        return dict(self._inbox.take(transfer))

    async def close(self) -> None:
        """End the thread; what is in flight fails with EngineError. May be called twice."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        await asyncio.to_thread(self._thread.join)

    def _checked(self, ids: Seq[int]) -> np.ndarray:
        return checked_ids(ids, self.vocab_size).astype(np.int32)

    async def _submit(self, sequence: Sequence) -> Any:
        with self._wake:
            self._refuse_if_down()
            self._waiting.append(sequence)
            self._wake.notify()
        return await asyncio.wrap_future(sequence.future)    # cancelling the awaiting task cancels the future

    def _refuse_if_down(self) -> None:
        if self._fault:
            raise EngineError(f"the engine failed earlier: {self._fault}")
        if self._closing:
            raise EngineError("the engine is closed")

    # --- the thread ----------------------------------------------------------------------------------------------
    def _set_threads(self) -> None:
        if self._threads:
            torch.set_num_threads(self._threads)

    def _run(self) -> None:
        self._set_threads()    # OpenMP keeps the number per calling thread
        reason = "the engine was closed"
        try:
            with torch.inference_mode():
                while self._wait_for_work():
                    if self._stepper.n_active:
                        for sequence, result in self._stepper.step():
                            _settle(sequence.future, result)
        except Exception as fault:    # whatever it is: those who wait must be told, and nobody else would
            _log.exception("the torch engine failed")
            reason = f"{type(fault).__name__}: {fault}"
        self._fail_all(reason)

    def _wait_for_work(self) -> bool:
        """Wait until there is something to do; take over new weights and requests. False: the engine is closing."""
        with self._wake:
            while not (self._closing or self._waiting or self._updates or self._stepper.n_active):
                self._wake.wait()
            if self._closing:
                return False
            updates, self._updates = self._updates, deque()
        for state, version, done in updates:
            try:
                self._stepper.load(state, version)
                _settle(done, None)
            except (ValueError, TypeError) as refusal:    # of these weights; the old ones still serve
                _settle(done, refusal)
        self._stepper.drop_cancelled()
        with self._wake:
            while self._waiting and self._stepper.n_active < self._stepper.max_concurrency:
                sequence = self._waiting.popleft()
                if not sequence.future.cancelled():
                    self._stepper.admit(sequence)
        return True

    def _fail_all(self, reason: str) -> None:
        with self._wake:
            if not self._closing:
                self._fault = reason
            pending = [s.future for s in (*self._stepper.active, *self._waiting)] + [done for *_, done in self._updates]
            self._waiting.clear()
            self._updates.clear()
        for future in pending:
            _settle(future, EngineError(f"the request was lost: {reason}"))


def _settle(future: Future, result: Any) -> None:
    """Give the result, or raise it where it is an exception. A future that its caller has cancelled stays so."""
    try:
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)
    except InvalidStateError:
        pass


def _context_of(model: PreTrainedModel, asked: int) -> int:
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if not asked and not limit:
        raise ValueError("this model names no longest context; give max_context")
    if asked < 0 or (limit and asked > limit):
        raise ValueError(f"max_context {asked} is not within the model's own limit of {limit}")
    return asked or limit
