"""The synchronous heart of the torch engine: which rows go into the next forward pass, and what becomes of its logits.

Keeps batch invariance: a prompt is always read in whole blocks counted from position 0, each in one pass, so where its blocks
fall among the passes changes nothing; and a shared block is bitwise the one the sequence would have computed itself.
May import torch and transformers. Not thread-safe: one thread steps.
"""

from __future__ import annotations

import logging
import time
from typing import Any, Mapping

import numpy as np
import torch
from transformers import PreTrainedModel

from rti.engines import calibrate, sampling
from rti.engines.attention import AttentionMasks, Plan
from rti.engines.base import EngineError
from rti.engines.kv_cache import BLOCK, DecodeCache, PrefixCache
from rti.engines.sequence import GenerateSequence, ScoreSequence, Sequence
from rti.engines.weights import replace_weights

_log = logging.getLogger(__name__)


class Stepper:
    """Admit sequences, then call `step` until they have come back."""

    def __init__(self, model: PreTrainedModel, *, max_concurrency: int, max_context: int, version: int, prefill_rows: int,
                 prefix_cache_bytes: int) -> None:
        self.model, self.version, self.max_concurrency = model, version, max_concurrency
        self._prefill_rows, self._heads = prefill_rows, model.config.get_text_config().num_attention_heads
        self._shape = calibrate.cache_shape(model)
        self._masks = AttentionMasks(max_context, model.device, model.dtype)
        self._forward = calibrate.choose_forward(model, max_context, self._masks)
        tile = calibrate.find_tile(self._forward, model, max_concurrency + prefill_rows + BLOCK, max_context)
        self.batch_invariant = tile is not None
        if tile is None:
            _log.warning("no number of rows was found on this machine for which results do not depend on the batch: "
                         "runs with the same seed may differ")
        self._tile = tile or calibrate.TILES[0]
        self._decode, self._prefixes = DecodeCache(self._shape), PrefixCache(prefix_cache_bytes)
        self._prefilling: list[Sequence] = []
        self._decoding: set[GenerateSequence] = set()
        self.counts = dict.fromkeys(("steps", "generated_tokens", "prefilled_tokens", "reused_tokens", "scored_tokens"), 0)
        self.busy_s = 0.0

    @property
    def n_active(self) -> int:
        return len(self._prefilling) + len(self._decoding)

    @property
    def active(self) -> list[Sequence]:
        return [*self._decoding, *self._prefilling]

    def admit(self, sequence: Sequence) -> None:
        self._prefilling.append(sequence)

    def drop_cancelled(self) -> None:
        """Free the places of sequences whose caller has gone."""
        self._prefilling = [s for s in self._prefilling if not s.future.cancelled()]
        for sequence in [s for s in self._decoding if s.future.cancelled()]:
            self._retire(sequence)

    def load(self, state: Mapping[str, Any], version: int) -> None:
        """New weights from the next step on. What sequences in flight have is read again under them; nothing is lost."""
        replace_weights(self.model, state)
        self._forward.refresh()
        self.version = version
        self._prefixes.clear()
        self._decode.clear()
        self._prefilling = sorted(self._decoding, key=lambda s: s.order) + self._prefilling
        self._decoding.clear()
        for sequence in self._prefilling:
            sequence.restart()

    def step(self) -> list[tuple[Sequence, Any]]:
        """One forward pass: the next token of every decoding sequence, and some blocks of the prefilling ones.

        Returns the sequences that are done, each with its result, or with an EngineError.
        """
        begun = time.perf_counter()
        plan = Plan(self._shape, self._heads, self._masks)
        sampled: list[tuple[GenerateSequence, int]] = []    # and the row of its logits
        for pool in self._decode.busy_pools():
            plan.add_pool(pool)
            sampled += zip(pool.members, range(plan.n_rows - len(pool.members), plan.n_rows))
        scored = self._plan_prefill(plan, sampled)
        rows = [row for _, row in sampled] + [row for _, _, some in scored for row in some]
        logits = calibrate.run(self._forward, plan, self._tile, rows or [0])
        self._share_blocks(plan)
        done = self._take_samples([s for s, _ in sampled], logits[:len(sampled)]) if sampled else []
        done += self._take_scores(scored, logits[len(sampled):])
        self._prefilling = [s for s in self._prefilling if s.n_cached < s.n_prefill]
        self.counts["steps"] += 1
        self.busy_s += time.perf_counter() - begun
        return done

    # --- prefill -------------------------------------------------------------------------------------------------
    def _plan_prefill(self, plan: Plan, sampled: list[tuple[GenerateSequence, int]]) -> list[tuple[ScoreSequence, int, range]]:
        """Add blocks until there are enough rows. Returns (sequence, first position, rows) of logits that are to be scored."""
        scored: list[tuple[ScoreSequence, int, range]] = []
        claimed: set[bytes] = set()
        budget = plan.n_rows + self._prefill_rows
        for sequence in self._prefilling:
            while plan.n_rows < budget and sequence.n_cached < sequence.n_prefill:
                if not self._reuse_block(sequence) and not self._plan_block(plan, sequence, claimed, sampled, scored):
                    break
            if plan.n_rows >= budget:
                break
        return scored

    def _reuse_block(self, sequence: Sequence) -> bool:
        """Take the next block from the shared ones, where it is there and none of its logits are needed."""
        first, digest = sequence.n_cached, sequence.shareable_digest()
        block = self._prefixes.get(digest) if digest else None
        if block is None:
            return False
        if sequence.staging is None:
            sequence.staging = self._shape.staging(sequence.n_prefill)
        sequence.staging[..., first:first + BLOCK, :] = block
        sequence.n_cached += BLOCK
        self.counts["reused_tokens"] += BLOCK
        return True

    def _plan_block(self, plan: Plan, sequence: Sequence, claimed: set[bytes], sampled: list[tuple[GenerateSequence, int]],
                    scored: list[tuple[ScoreSequence, int, range]]) -> bool:
        """Put the next block into the pass. False where another sequence computes the same one in it: it is taken next time."""
        first, digest = sequence.n_cached, sequence.shareable_digest()
        if digest and self._prefixes.enabled:
            if digest in claimed:
                return False
            claimed.add(digest)
        if sequence.staging is None:
            sequence.staging = self._shape.staging(sequence.n_prefill)
        end = min(first + BLOCK, sequence.n_prefill)
        row = plan.n_rows - first    # of position 0, were it in this pass
        plan.add_block(sequence, first, end)
        sequence.n_cached = end
        self.counts["prefilled_tokens"] += end - first
        if isinstance(sequence, GenerateSequence):
            if end == sequence.n_prefill:
                sampled.append((sequence, row + end - 1))
        elif end > sequence.logits_from:
            begin = max(first, sequence.logits_from)
            scored.append((sequence, begin, range(row + begin, row + end)))
        return True

    def _share_blocks(self, plan: Plan) -> None:
        if not self._prefixes.enabled:
            return
        for rows in plan.blocks:
            if rows.n == BLOCK:
                digest = rows.sequence.digests[rows.first // BLOCK]
                self._prefixes.put(digest, rows.sequence.staging[..., rows.first:rows.first + BLOCK, :])

    # --- results -------------------------------------------------------------------------------------------------
    def _take_samples(self, sequences: list[GenerateSequence], logits: torch.Tensor) -> list[tuple[Sequence, Any]]:
        counters = np.fromiter((s.n_new for s in sequences), np.int64, len(sequences))
        tokens, logps = sampling.sample(logits, [s.params for s in sequences], counters)
        self.counts["generated_tokens"] += len(sequences)
        done: list[tuple[Sequence, Any]] = []
        for sequence, token, logp in zip(sequences, tokens.tolist(), logps.tolist()):
            if not logp > -np.inf:    # also where it is NaN
                done.append((sequence, self._not_finite()))
                self._retire(sequence)
            elif reason := sequence.accept(token, logp, self.version):
                done.append((sequence, sequence.result(reason)))
                self._retire(sequence)
            elif sequence.pool is None:
                self._decode.insert(sequence, sequence.staging)
                self._decoding.add(sequence)
                sequence.staging = None
            else:
                self._decode.grow(sequence)
        return done

    def _take_scores(self, scored: list[tuple[ScoreSequence, int, range]], logits: torch.Tensor) -> list[tuple[Sequence, Any]]:
        done: list[tuple[Sequence, Any]] = []
        at = 0
        for sequence, first, rows in scored:
            n = len(rows)
            targets = torch.from_numpy(sequence.ids[first + 1:first + 1 + n].astype(np.int64)).to(logits.device)
            logps = sampling.logps_of(sampling.scale(logits[at:at + n], [sequence.temperature] * n), targets).cpu().numpy()
            sequence.logps[first - sequence.logits_from:first - sequence.logits_from + n] = logps
            at += n
            self.counts["scored_tokens"] += n
            if sequence.n_cached == sequence.n_prefill and first + n == sequence.n_prefill:
                result = sequence.result(self.version)
                done.append((sequence, result if np.isfinite(result.logps).all() else self._not_finite()))
        return done

    def _retire(self, sequence: GenerateSequence) -> None:
        self._decoding.discard(sequence)
        self._decode.remove(sequence)

    def _not_finite(self) -> EngineError:
        return EngineError(f"the model gives log-probabilities that are not finite under weights version {self.version}: "
                           "the weights are damaged (a diverged update?)")
