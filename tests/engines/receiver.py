"""A process that takes weights as it is told to, and says what came. Imports little: several start at once."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

from rti.engines.transfer import TensorInfo, Transfer, TransferFailed

SPAWN = multiprocessing.get_context("spawn")
LIMIT_S = 120.0


def receive(orders: Any, answers: Any) -> None:
    import torch

    from rti.engines.broadcast import Inbox

    torch.set_num_threads(1)
    inbox = Inbox(torch.device("cpu"))
    answers.put("ready")
    while True:
        transfer = orders.get()
        try:
            inbox.meet(transfer, 1)
            answers.put({name: (str(t.dtype), t.tolist()) for name, t in inbox.take(transfer)})
        except TransferFailed as failure:
            answers.put(str(failure))


class Receiver:
    """Its process, and the group that it is to be in."""

    def __init__(self, path: Path | str):
        self.path, self.fresh = str(path), True
        self.orders, self.answers = SPAWN.Queue(), SPAWN.Queue()
        self.process = SPAWN.Process(target=receive, args=(self.orders, self.answers), daemon=True)
        self.process.start()

    def transfer(self, tensors: tuple[TensorInfo, ...]) -> Transfer:
        fresh, self.fresh = self.fresh, False
        return Transfer(backend="gloo", meeting=self.path, fresh=fresh, receivers=1, tensors=tensors, limit_s=60.0)

    def says(self) -> Any:
        return self.answers.get(timeout=LIMIT_S)

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.join()
