"""What may happen to an actor, as the control plane sees it. rti.actors.cluster alone translates Ray's errors into these.

A loss is survived: the work is run again. A gone actor, or one that failed by a fault of the program, ends the run with its
message. Nothing here knows Ray, so that fakes raise the same errors in tests and in the simulation.
"""

from __future__ import annotations


class ActorLost(RuntimeError):
    """The actor died, or its answer was lost with a node. It comes back; what it was doing is run again."""


class ActorHung(ActorLost):
    """No answer within the limit. Its owner kills it, so that it comes back like a dead one."""


class ActorGone(RuntimeError):
    """The actor will not come back: it died more often than `ray.restarts` allows, or could not be made."""


class ActorFailed(RuntimeError):
    """The actor raised an error that nobody meant to survive. `where` is the remote traceback."""

    def __init__(self, message: str, where: str = ""):
        super().__init__(message)
        self.where = where


class LearnerLost(RuntimeError):
    """A rank of the learner died. The whole group of ranks restarts from the newest checkpoint, and the plan with it."""


class StepInterrupted(RuntimeError):
    """A stop did not wait for the learner's step: nothing of it was done, on any rank, and it can be run again."""
