"""Weights from the learner's device to the engines' devices: one process group for each engine, broadcast by torch.distributed.

The sender is rank 0 of each group, the engine's workers are the ranks after it. A group for each engine, so that one that is
slow, joins, leaves or dies concerns nobody else. Over NCCL from GPU to GPU; over gloo the same code runs between CPUs. vLLM's
own NCCL backend is not used: it has no time limit and no way to give up, so that a dead engine would take the learner with it,
and an engine that was started for it takes weights in no other way.
Nobody waits for ever: every wait has an end, and TransferFailed says that the group is of no more use. May import torch.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from typing import Any, ContextManager, Iterable, Iterator, Protocol

import torch
import torch.distributed as dist

from rti.engines.transfer import TensorInfo, Transfer, TransferFailed

CHUNK_BYTES = 512 << 20
"""Tensors that are on the way at once; a receiver holds no more than these beside its model."""
POLL_S = 0.02

def empty(info: TensorInfo, device: torch.device | str) -> torch.Tensor:
    return torch.empty(info.shape, dtype=getattr(torch, info.dtype), device=device)


def described(transfer: Transfer) -> dict[str, torch.Tensor]:
    """Names and shapes, as tensors without memory: what an engine checks before anybody waits."""
    return {info.name: empty(info, "meta") for info in transfer.tensors}


class ReceivesWeights(Protocol):
    """An engine that weights can be sent to."""

    async def receive(self, transfer: Transfer, version: int) -> None:
        """As Engine.load_weights, of weights that the other end sends meanwhile. Raises TransferFailed where they did not come
        and nothing was touched, WeightsMismatch where they are not this model's, EngineError where the engine is down."""
        ...


class Link:
    """One end of a group. Any fault closes it. Used by one thread at a time, but for `close`."""

    def __init__(self, transfer: Transfer, rank: int, device: torch.device, given_up: threading.Event | None = None) -> None:
        """Meets the others. `given_up`: set by who knows that they will not come."""
        self.meeting, self._device, self._closed = transfer.meeting, device, False
        self._group: Any = None
        with self._closing_on_fault("the other end was not met"):
            limit, size = timedelta(seconds=transfer.limit_s), 1 + transfer.receivers
            store = dist.FileStore(transfer.meeting, size)
            store.set_timeout(limit)
            _wait_for_all(store, rank, size, transfer.limit_s, given_up or threading.Event())
            self._group = _make_group(transfer.backend, store, rank, size, limit)
            # NCCL makes its communicator with the first call: here, where a failure harms no engine
            self._pass([torch.zeros(1, dtype=torch.uint8, device=device)], time.monotonic() + transfer.limit_s)

    def send(self, tensors: Iterable[torch.Tensor], limit_s: float) -> None:
        """Returns when all of them have left. On this link's device, whole, contiguous."""
        deadline = time.monotonic() + limit_s
        with self._closing_on_fault("sending broke off"):
            for chunk in _chunks(tensors, lambda tensor: tensor.nbytes):
                self._pass(chunk, deadline)

    def receive(self, infos: Iterable[TensorInfo], limit_s: float) -> Iterator[tuple[str, torch.Tensor]]:
        """The tensors in the order in which they were sent, in memory of their own."""
        deadline = time.monotonic() + limit_s
        for chunk in _chunks(infos, lambda info: empty(info, "meta").nbytes):
            tensors = [empty(info, self._device) for info in chunk]
            with self._closing_on_fault("receiving broke off"):
                self._pass(tensors, deadline)
            yield from zip([info.name for info in chunk], tensors)

    def close(self) -> None:
        """Whoever waits in a call of this link gets TransferFailed: with NCCL at once, with gloo when the time is up. May be
        called twice, and from another thread."""
        if not self._closed:
            self._closed = True
            group, self._group = self._group, None
            if group is not None:
                group.abort()

    def _pass(self, tensors: list[torch.Tensor], deadline: float) -> None:
        """Broadcast as bytes, whatever the dtype: all at once, then wait for each."""
        options = dist.BroadcastOptions()
        options.rootRank = 0
        works = []
        for tensor in tensors:
            data = tensor.reshape(-1).view(torch.uint8)
            if not data.numel():
                continue
            options.timeout = _until(deadline)
            works.append(self._group.broadcast([data], options))
        for work in works:
            work.wait(_until(deadline))

    @contextmanager
    def _closing_on_fault(self, what: str) -> Iterator[None]:
        try:
            if self._closed:
                raise TransferFailed(f"{what}: the group was closed")
            yield
        except TransferFailed:
            self.close()
            raise
        except (RuntimeError, AttributeError) as fault:     # torch.distributed's own; AttributeError: closed by another thread
            closed = self._closed
            self.close()
            if isinstance(fault, AttributeError) and not closed:
                raise
            raise TransferFailed(f"{what}: {'it was given up' if closed else _first_line(fault)}") from fault


class Inbox:
    """An engine's worker: the link it has, for as long as the same group is asked for."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._link: Link | None = None

    def meet(self, transfer: Transfer, rank: int) -> None:
        """Be in the transfer's group; raises TransferFailed. An earlier one is left."""
        if self._link is not None and self._link.meeting == transfer.meeting:
            return
        self.close()
        if not transfer.fresh:
            raise TransferFailed("this engine is not in the group that the weights are sent to: it was restarted")
        self._link = Link(transfer, rank, self._device)

    def take(self, transfer: Transfer) -> Iterator[tuple[str, torch.Tensor]]:
        """The tensors as they come. Raises TransferFailed."""
        if self._link is None:
            raise TransferFailed("this engine is in no group")
        return self._link.receive(transfer.tensors, transfer.limit_s)

    def close(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None


class Outbox:
    """The sender: one snapshot of the weights, and the links to those who get it. Its methods may be called from any thread."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._state: dict[str, torch.Tensor] = {}
        self._links: dict[str, Link] = {}
        self._given_up: dict[str, threading.Event] = {}
        self._changed = threading.Condition()       # guards the two below
        self._sending, self._writing = 0, False

    def put(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> tuple[TensorInfo, ...]:
        """Take these weights for the snapshot, in the place of those before, once nobody is being sent those any more."""
        with self._changed:
            self._writing = True
            self._changed.wait_for(lambda: not self._sending)
        try:
            for name, tensor in tensors:
                if name in self._state:
                    self._state[name].copy_(tensor)
                else:
                    self._state[name] = tensor.to(self._device).contiguous()
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)        # other threads read it on streams of their own
        finally:
            with self._changed:
                self._writing = False
                self._changed.notify_all()
        return tuple(TensorInfo(n, str(t.dtype).removeprefix("torch."), tuple(t.shape)) for n, t in self._state.items())

    def send(self, transfer: Transfer) -> None:
        """Returns when the engine has the snapshot. Raises TransferFailed."""
        with self._reading(), _own_stream(self._device):
            try:
                link = self._links.get(transfer.meeting) or self._meet(transfer)
                link.send((self._state[info.name] for info in transfer.tensors), transfer.limit_s)
            except TransferFailed:
                self._links.pop(transfer.meeting, None)
                self._given_up.pop(transfer.meeting, None)
                raise

    def copy(self) -> dict[str, torch.Tensor]:
        """The snapshot in host memory."""
        with self._reading():
            return {name: tensor.to("cpu", copy=True) for name, tensor in self._state.items()}

    def abandon(self, meeting: str) -> None:
        """Whoever sends to this group, or waits for it, stops (see Link.close); the group is closed."""
        self._given_up.setdefault(meeting, threading.Event()).set()
        link = self._links.pop(meeting, None)
        if link is not None:
            link.close()

    def _meet(self, transfer: Transfer) -> Link:
        given_up = self._given_up.setdefault(transfer.meeting, threading.Event())
        if not transfer.fresh:
            raise TransferFailed("the sender has closed this group")
        link = self._links[transfer.meeting] = Link(transfer, 0, self._device, given_up)
        if given_up.is_set():       # while the last step of the meeting was taken
            link.close()
        return link

    @contextmanager
    def _reading(self) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: not self._writing)
            self._sending += 1
        try:
            yield
        finally:
            with self._changed:
                self._sending -= 1
                self._changed.notify_all()


def _make_group(backend: str, store: dist.Store, rank: int, size: int, limit: timedelta) -> Any:
    """A group beside the process's default one, which the learner's ranks and vLLM's workers use for themselves."""
    if backend == "gloo":
        return dist.ProcessGroupGloo(store, rank, size, limit)
    if not dist.is_nccl_available():
        raise TransferFailed("this build of torch has no NCCL: set generators.weights=object_store, or install a CUDA build")
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = limit
    # Read where a group is made. 2: a peer that dies closes this group and does not end the process, which is the default.
    before = os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING")
    os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "2"
    try:
        return dist.ProcessGroupNCCL(store, rank, size, options)
    finally:
        os.environ.pop("TORCH_NCCL_ASYNC_ERROR_HANDLING")
        if before is not None:
            os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = before


def _wait_for_all(store: dist.Store, rank: int, size: int, limit_s: float, given_up: threading.Event) -> None:
    """Until every rank has said that it is here: the making of a group itself can neither be polled nor be given up."""
    store.set(f"here-{rank}", "1")
    deadline = time.monotonic() + limit_s
    while not store.check([f"here-{r}" for r in range(size)]):
        if given_up.wait(POLL_S):
            raise TransferFailed("the other end was not met: it was given up")
        if time.monotonic() > deadline:
            raise TransferFailed(f"the other end was not met within {limit_s:g} s")


def _chunks(items: Iterable[Any], size: Any) -> Iterator[list[Any]]:
    chunk, total = [], 0
    for item in items:
        chunk.append(item)
        total += size(item)
        if total >= CHUNK_BYTES:
            yield chunk
            chunk, total = [], 0
    if chunk:
        yield chunk


def _until(deadline: float) -> timedelta:
    return timedelta(seconds=max(0.001, deadline - time.monotonic()))


def _own_stream(device: torch.device) -> ContextManager[Any]:
    """So that sending waits for none of the learner's kernels, and they not for it."""
    return torch.cuda.stream(torch.cuda.Stream(device)) if device.type == "cuda" else nullcontext()


def _first_line(fault: BaseException) -> str:
    lines = str(fault).strip().splitlines()
    return f"{type(fault).__name__}: {lines[0] if lines else ''}"
