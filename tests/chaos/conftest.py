"""The policy and the undisturbed run are those of tests/end_to_end."""

from tests.end_to_end.conftest import policy, undisturbed  # noqa: F401
