"""What every command does with an error: its message, and no stack trace unless RTI_DEBUG=1.

Keeps: a mendable error (one of this package) is its message alone; any other is one line too, and its trace lies in a file that
the line names, so that the end of a long run can be looked into. Stands on the ground floor and imports nothing of the package.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import traceback
from typing import Callable

INTERRUPTED = 130       # as shells give it


def guarded(work: Callable[[], int | None]) -> int:
    """The exit code of `work` (None: 0); 1 after an error. RTI_DEBUG=1 shows where it was raised, here and in the actor."""
    debug = bool(os.environ.get("RTI_DEBUG"))
    logging.basicConfig(level=logging.INFO if debug else logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    try:
        code = work()
        sys.stdout.flush()
        return code or 0
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:     # the reader of a pipe, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        print(f"error: {_debugged(error) if debug else _told(error)}", file=sys.stderr)
        return 1


def _told(error: Exception) -> str:
    if type(error).__module__.partition(".")[0] == "rti":
        return f"{error}\n(RTI_DEBUG=1 shows where it was raised)"
    handle, name = tempfile.mkstemp(prefix="rti-error-", suffix=".txt")
    with open(handle, "w", encoding="utf-8") as file:
        traceback.print_exception(error, file=file)
    return f"{_named(error)}\n(not an error that RTI foresees; its stack trace is in {name}, RTI_DEBUG=1 shows it here)"


def _debugged(error: Exception) -> str:
    traceback.print_exception(error)
    if where := getattr(error, "where", ""):
        print(where, file=sys.stderr)
    return _named(error)


def _named(error: Exception) -> str:
    return "".join(traceback.format_exception_only(error)).strip()
