"""Delivers the learner's snapshot to generators, to each by itself: what the fleet loads where weights are broadcast.

Each generator has a group of its own with the learner's rank 0 (rti.engines.broadcast). A group is made with the first delivery
and kept; where a delivery fails for whatever reason, its group is given up, that version reaches that generator through the
object store, and the next one by a new group. A generator that joins has none yet, one that was restarted is not in the one
that is known: both are the same case. Knows no Ray.

Invariant: what a generator serves as version v is the snapshot of version v. The snapshot is not replaced while somebody gets
it, and a delivery that comes while it is being replaced waits and gets the new one, under its own version.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from pathlib import Path
from typing import Any, Protocol, Sequence

from rti.control.concurrency import Door
from rti.control.faults import LearnerLost
from rti.engines.transfer import LIMIT_S, TensorInfo, Transfer, TransferFailed

log = logging.getLogger(__name__)

MEETINGS = ".weights-"      # files in the run directory, through which the ends of a group find each other


class Sender(Protocol):
    """The learner's rank 0. Every call raises LearnerLost where it is lost."""

    async def send(self, transfer: Transfer) -> None:
        """Raises TransferFailed."""
        ...

    async def abandon(self, meeting: str) -> None:
        """A `send` to this group ends at once."""
        ...

    async def stored(self) -> Any:
        """A handle to a copy of the snapshot in the object store."""
        ...


class Receiver(Protocol):
    """A generator's client."""

    name: str

    async def call(self, method: str, *args: Any) -> Any: ...


class Courier:
    """See the module's docstring. `directory`: one that both ends see. `receivers`: GPUs of a generator."""

    def __init__(self, sender: Sender, backend: str, receivers: int, directory: Path, limit_s: float = LIMIT_S):
        self._sender, self._backend, self._receivers, self._limit_s = sender, backend, receivers, limit_s
        self._directory = directory
        self._door = Door()         # shut while the snapshot is replaced
        self._version = 0
        self._tensors: tuple[TensorInfo, ...] = ()
        self._meetings: dict[str, str] = {}     # generator -> the group that it has with the sender
        self._failed: set[str] = set()          # generators that this version did not reach by a group
        self._stored: asyncio.Task[Any] | None = None
        self.failures = 0           # deliveries that went through the object store instead
        for left in directory.glob(MEETINGS + "*"):
            left.unlink(missing_ok=True)

    async def hold(self) -> None:
        """To be called before the snapshot is replaced: returns once nobody is getting it any more."""
        await self._door.shut()

    def offer(self, version: int, tensors: Sequence[TensorInfo]) -> None:
        """The snapshot is now of this version."""
        self._version, self._tensors = version, tuple(tensors)
        self._failed.clear()
        self._stored = None         # an old copy goes now (field bug 24)
        self._door.open()

    def forget(self) -> None:
        """The sender is another process from now on: it is in no group."""
        for name in list(self._meetings):
            self._close(name)

    async def deliver(self, receiver: Receiver) -> None:
        """Returns when the generator serves the snapshot. Raises ActorLost where the generator is lost, LearnerLost where the
        sender is: its next start gives a new snapshot."""
        async with self._door.inside():
            if receiver.name not in self._failed:
                try:
                    await self._send_to(receiver)
                    return
                except TransferFailed as failure:
                    log.warning("%s gets version %d through the object store: %s", receiver.name, self._version, failure)
            self.failures += 1
            await receiver.call("load", await self._copy(), self._version)

    async def _send_to(self, receiver: Receiver) -> None:
        await receiver.call("make_way")         # before anybody waits: it may be starting, or letting its requests end
        fresh = receiver.name not in self._meetings
        if fresh:
            self._meetings[receiver.name] = str(self._directory / f"{MEETINGS}{secrets.token_hex(8)}")
        transfer = Transfer(backend=self._backend, meeting=self._meetings[receiver.name], fresh=fresh,
                            receivers=self._receivers, tensors=self._tensors, limit_s=self._limit_s)
        sending = asyncio.ensure_future(self._sender.send(transfer))
        receiving = asyncio.ensure_future(receiver.call("receive", transfer, self._version))
        try:
            await asyncio.wait((sending, receiving), return_when=asyncio.FIRST_EXCEPTION)
            if not sending.done():      # the other end has failed: nobody is there to send to
                await self._sender.abandon(transfer.meeting)
            elif not receiving.done() and isinstance(sending.exception(), LearnerLost):
                raise sending.exception()
            await asyncio.wait((sending, receiving))
            receiving.result()          # first: a generator that died is why the sending failed
            sending.result()
        except BaseException:
            self._failed.add(receiver.name)
            self._close(receiver.name)
            raise
        finally:
            for task in (sending, receiving):
                task.cancel()
            await asyncio.gather(sending, receiving, return_exceptions=True)

    def _close(self, name: str) -> None:
        meeting = self._meetings.pop(name, None)
        if meeting is not None:
            Path(meeting).unlink(missing_ok=True)

    async def _copy(self) -> Any:
        """One for all who need it, of this version."""
        if self._stored is None:
            self._stored = asyncio.ensure_future(self._sender.stored())
        try:
            return await asyncio.shield(self._stored)
        except LearnerLost:
            self._stored = None
            raise
