"""The records that travel between actors and onto disk: messages, samples, trajectories, groups.

Keeps invariants 1 and 2: a sample holds the very token ids that the engine sampled, and every trained token carries its
behaviour log-probability, the policy version that gave it, and a weight. Depends on nothing else in this package.
"""

from __future__ import annotations

import enum
import struct
import zlib
from typing import Any, TypeVar

import msgspec
import numpy as np


class Source(enum.IntEnum):
    """Where a token came from. Only CONTEXT is masked out of the loss."""

    CONTEXT = 0      # prompt, tool output, user turn, template glue
    POLICY = 1       # sampled by the policy under the rollout prompt
    CORRECTION = 2   # written by the Corrector and accepted by Verifier and gate
    TEACHER = 3      # written by another policy (LUFFY)


class Ending(enum.StrEnum):
    """Why an episode ended. The truth table below says what each ending may be used for."""

    COMPLETED = "completed"          # the environment ended it: its reward counts
    TURN_LIMIT = "turn_limit"        # the agent's own failure
    TRUNCATED = "truncated"          # a reply hit the token limit, or the context was full: the agent's own failure
    EMPTY_REPLY = "empty_reply"      # a reply of no tokens: the agent's own failure
    ENVIRONMENT = "environment"      # the environment broke: run again, never a reward
    INFRASTRUCTURE = "infrastructure"  # an engine, a worker, the network: run again elsewhere, never a reward

    @property
    def is_agents(self) -> bool:
        """True where the outcome is the agent's doing, so that it is trained on and counted; else it is run again."""
        return self not in (Ending.ENVIRONMENT, Ending.INFRASTRUCTURE)


class ToolCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One tool call. `error` is set where the text did not parse: the agent then gets the error as the tool's reply."""

    name: str
    arguments: dict[str, Any] = {}
    id: str = ""
    error: str = ""


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A chat message. Roles: system, user, assistant, tool. A tool message answers `tool_call_id` of tool `name`."""

    role: str
    content: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCall] = []
    tool_call_id: str = ""
    name: str = ""


class ToolSchema(msgspec.Struct, frozen=True, kw_only=True):
    """A tool as the agent sees it; `parameters` is a JSON schema of type object."""

    name: str
    description: str
    parameters: dict[str, Any]


class Intervention(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What the intervention did at one step. `outcome` is one of INTERVENTION_OUTCOMES."""

    outcome: str
    draft: Message
    diagnosis: str = ""
    error_types: list[str] = []
    suggest_next: str = ""
    correction: Message | None = None
    verifier_ok: bool | None = None
    verifier_reasons: list[str] = []
    verifier_diagnosis: str = ""
    guard: str = ""                 # which deterministic guard refused, with the offending literal named by class only
    ppl_roll: float | None = None
    malformed: list[str] = []       # roles whose output could not be read


INTERVENTION_OUTCOMES = (
    "valid",              # the Validator let the draft pass
    "accepted",           # the correction replaced the draft
    "validator_malformed", "corrector_malformed", "verifier_malformed",
    "no_correction",      # the Corrector gave nothing, or the draft itself
    "refused_verifier", "refused_guard", "refused_gate",
)


class Step(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One agent turn and what came back. For the viewer and the statistics; training reads `samples`."""

    message: Message
    observations: list[Message] = []
    n_tokens: int = 0
    finish_reason: str = "stop"     # stop | length
    intervention: Intervention | None = None


class Branch(msgspec.Struct, frozen=True, kw_only=True):
    """Where a rollout was meant to leave another one of its group (AEPO). `dropped`: why it is a whole rollout instead."""

    parent: str                     # id of the other one
    turn: int                       # the turns before it are the other one's, token by token
    dropped: str = ""


class Sample(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One training sequence: T tokens with per-token records. Most trajectories have one; see chat.ChatFormat.

    Arrays are of length T. On CONTEXT tokens: behaviour_logps 0, versions -1, weights 0, turns -1. On TEACHER tokens
    behaviour_logps are the teacher's and versions -1: no version of the policy gave them, so that they do not age.
    """

    token_ids: np.ndarray           # int32
    sources: np.ndarray             # uint8, a Source
    behaviour_logps: np.ndarray     # float32, natural log, of the rollout prompt, at the trajectory's temperature
    correction_logps: np.ndarray    # float32; NaN except on CORRECTION tokens
    weights: np.ndarray             # float32; 1 except on CORRECTION tokens
    versions: np.ndarray            # int32, the policy version that gave the behaviour log-probability
    turns: np.ndarray               # int16, the agent turn a token belongs to
    teacher_logps: np.ndarray | None = None     # float32, of a teacher on the policy's own tokens (OPD); else NaN

    @property
    def mask(self) -> np.ndarray:
        """bool [T]: the tokens that are trained on."""
        return self.sources != Source.CONTEXT

    def check(self) -> None:
        """Raise ValueError where invariant 2 does not hold."""
        n = len(self.token_ids)
        for field, dtype in _SAMPLE_DTYPES.items():
            array = getattr(self, field)
            if array is None and field == "teacher_logps":
                continue
            if array.shape != (n,) or array.dtype != dtype:
                raise ValueError(f"sample.{field} must be {dtype} of shape ({n},), got {array.dtype} {array.shape}")
        mask = self.mask
        if not np.isfinite(self.behaviour_logps[mask]).all():
            raise ValueError("a trained token has no finite behaviour log-probability")
        if (self.versions[mask & (self.sources != Source.TEACHER)] < 0).any():
            raise ValueError("a trained token names no policy version")
        if not (self.weights[mask] > 0).all():
            raise ValueError("a trained token has a weight that is not positive")
        corrected = self.sources == Source.CORRECTION
        if not np.isfinite(self.correction_logps[corrected]).all():
            raise ValueError("an intervened token has no finite correction log-probability")
        if (self.weights[mask & ~corrected] != 1).any():
            raise ValueError("a token that is not intervened has a weight other than 1")


_SAMPLE_DTYPES = {
    "token_ids": np.dtype(np.int32), "sources": np.dtype(np.uint8), "behaviour_logps": np.dtype(np.float32),
    "correction_logps": np.dtype(np.float32), "weights": np.dtype(np.float32), "versions": np.dtype(np.int32),
    "turns": np.dtype(np.int16), "teacher_logps": np.dtype(np.float32),
}


class Trajectory(msgspec.Struct, kw_only=True):
    """One episode. `success` is the outcome bit that triggers intervention; `reward` is what the algorithm sees."""

    id: str                         # "<group id>/<member>" or "<group id>/i<attempt>" for an intervened one
    group_id: str
    task_id: str
    task_class: str = ""
    intervened: bool = False        # run under the intervention pipeline (whether or not a step was corrected)
    ending: Ending = Ending.COMPLETED
    reward: float = 0.0
    success: bool = False
    temperature: float = 1.0
    samples: list[Sample] = []
    prompt: list[Message] = []      # the messages before the first agent turn
    steps: list[Step] = []
    tools: list[str] = []
    info: dict[str, Any] = {}       # the environment's own facts about the outcome
    seed: int = 0
    wall_s: float = 0.0
    evidence: dict[str, Any] = {}   # privileged: for the viewer only, never part of a prompt
    branch: Branch | None = None

    def __repr__(self) -> str:
        # a trajectory that ends up in a log line or a traceback must not carry the evidence there
        return f"Trajectory({self.id}, {self.ending}, reward {self.reward:g}, {len(self.steps)} turns)"

    @property
    def n_agent_tokens(self) -> int:
        return int(sum(s.mask.sum() for s in self.samples))

    @property
    def oldest_version(self) -> int | None:
        """The oldest version of any trained token; None where there is none. A teacher's tokens are of no version."""
        versions = [int(own.min()) for s in self.samples if len(own := s.versions[s.versions >= 0])]
        return min(versions, default=None)

    @property
    def n_accepted(self) -> int:
        return sum(1 for s in self.steps if s.intervention and s.intervention.outcome == "accepted")


class Group(msgspec.Struct, kw_only=True):
    """The G rollouts of one task, as the learner consumes them. See invariant 5: consumed by exactly one step, or by as many
    as buffer.reuse allows where it was rescued."""

    id: str                         # "<epoch>-<position in the epoch's order>"
    task_id: str
    task_class: str = ""
    members: list[Trajectory]
    admitted_version: int = 0       # learner version when the group was admitted
    rewards_before: list[float] = []   # outcomes of the G plain rollouts
    replaced: int | None = None     # index of the failed member that a rescued rollout replaced
    attempts: list[Trajectory] = []    # the intervened rollouts that were not taken (for the statistics)

    @property
    def failed_before(self) -> bool:
        """True where every plain rollout failed: what triggers the intervention."""
        return not any(self.rewards_before)

    @property
    def oldest_version(self) -> int:
        versions = [v for m in self.members if (v := m.oldest_version) is not None]
        return min(versions, default=self.admitted_version)

    @property
    def teaches(self) -> bool:
        """Invariant 8: False where all rewards are equal."""
        return len({m.reward for m in self.members}) > 1


# --- binary form -------------------------------------------------------------------------------------------------
# magic (4 bytes) | format version (u16) | kind (u16) | payload length (u64) | crc32 of the payload (u32) | payload
_MAGIC = b"RTI\x01"
_VERSION = 1
_HEADER = struct.Struct("<4sHHQI")
_NDARRAY = 1

T = TypeVar("T")


class DecodeError(ValueError):
    """Bytes that are not a whole record of the kind asked for."""


def _to_ext(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        head = msgspec.msgpack.encode((value.dtype.str, value.shape))
        return msgspec.msgpack.Ext(_NDARRAY, struct.pack("<H", len(head)) + head + value.tobytes())
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"cannot encode a {type(value).__name__}")


def _from_ext(code: int, data: memoryview) -> Any:
    if code != _NDARRAY:
        raise DecodeError(f"unknown extension {code} in a record")
    (n,) = struct.unpack_from("<H", data)
    dtype, shape = msgspec.msgpack.decode(data[2:2 + n])
    return np.frombuffer(data, dtype=np.dtype(dtype), offset=2 + n).reshape(shape).copy()


def _pass_ndarray(kind: type, value: Any) -> Any:
    if kind is np.ndarray and isinstance(value, np.ndarray):
        return value
    raise DecodeError(f"expected {kind.__name__}, got {type(value).__name__}")


_KINDS: dict[type, int] = {Trajectory: 1, Group: 2, Sample: 3}
_encoder = msgspec.msgpack.Encoder(enc_hook=_to_ext)
_decoders = {k: msgspec.msgpack.Decoder(k, dec_hook=_pass_ndarray, ext_hook=_from_ext) for k in _KINDS}


def encode(record: Trajectory | Group | Sample) -> bytes:
    """The binary form: a header with magic, format version, kind, length and checksum, then msgpack."""
    payload = _encoder.encode(record)
    return _HEADER.pack(_MAGIC, _VERSION, _KINDS[type(record)], len(payload), zlib.crc32(payload)) + payload


def decode(data: bytes | memoryview, kind: type[T]) -> T:
    """The record in `data`, which must hold exactly one of type `kind`. Raises DecodeError on anything else."""
    record, end = decode_at(data, 0, kind)
    if end != len(data):
        raise DecodeError(f"{len(data) - end} bytes follow the record")
    return record


def decode_at(data: bytes | memoryview, offset: int, kind: type[T]) -> tuple[T, int]:
    """The record that begins at `offset`, and where the next one begins. Raises DecodeError."""
    if len(data) - offset < _HEADER.size:
        raise DecodeError(f"truncated: {len(data) - offset} bytes are fewer than a header's {_HEADER.size}")
    magic, version, code, length, crc = _HEADER.unpack_from(data, offset)
    if magic != _MAGIC:
        raise DecodeError("not an RTI record (wrong magic)")
    if version != _VERSION:
        raise DecodeError(f"record format {version}; this build reads format {_VERSION}")
    if code != _KINDS[kind]:
        names = {v: k.__name__ for k, v in _KINDS.items()}
        raise DecodeError(f"the record is a {names.get(code, f'kind {code}')}, not a {kind.__name__}")
    start, end = offset + _HEADER.size, offset + _HEADER.size + length
    if end > len(data):
        raise DecodeError(f"truncated: the header promises {length} bytes, {len(data) - start} are there")
    payload = memoryview(data)[start:end]
    if zlib.crc32(payload) != crc:
        raise DecodeError("checksum mismatch: the record is damaged")
    try:
        return _decoders[kind].decode(payload), end
    except DecodeError:
        raise
    except (msgspec.DecodeError, struct.error, ValueError, TypeError) as e:     # the latter: an array that is none
        raise DecodeError(f"not a {kind.__name__}: {e}") from e
