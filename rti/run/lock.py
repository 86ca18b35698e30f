"""One run in one directory: a lock that the operating system takes back when its holder dies (field bug 34)."""

from __future__ import annotations

import fcntl
import os
import socket
import time
from pathlib import Path

LOCK = "lock"
TRIES = 4       # an audit that looks who is there holds the lock for a moment


class RunLocked(RuntimeError):
    """Another process is running in the directory."""


class DirectoryLock:
    """Held from construction until `release`, or until the process ends in whatever way. Not inherited across exec."""

    def __init__(self, directory: Path):
        self.path = directory / LOCK
        self._handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        for left in reversed(range(TRIES)):
            try:
                fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not left:
                    self._refuse(directory)
                time.sleep(0.05)
        os.ftruncate(self._handle, 0)
        note = f"process {os.getpid()} on {socket.gethostname()}, since {time.strftime('%Y-%m-%d %H:%M:%S')}\n"
        os.pwrite(self._handle, note.encode(), 0)

    def _refuse(self, directory: Path) -> None:
        who = os.pread(self._handle, 200, 0).decode(errors="replace").strip() or "another process"
        os.close(self._handle)
        self._handle = -1
        raise RunLocked(f"{directory} is in use by {who}: two runs in one directory would mix their records. Wait for it or "
                        "stop it, or give this run another name or run_dir") from None

    def release(self) -> None:
        """Give the lock back. The file stays: removing it would let two holders lock two files of one name."""
        if self._handle >= 0:
            os.ftruncate(self._handle, 0)
            os.close(self._handle)
            self._handle = -1


def holder(directory: Path) -> str:
    """Who runs in the directory, or "" where nobody does. Takes no lock that outlives the call."""
    try:
        handle = os.open(directory / LOCK, os.O_RDWR | os.O_CLOEXEC)
    except OSError:      # no lock file, or none that we may open
        return ""
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return os.read(handle, 200).decode(errors="replace").strip() or "another process"
    finally:
        os.close(handle)
    return ""
