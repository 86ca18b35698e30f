"""The lab: the small policy that ships with RTI, and how it was made (docs/lab.md)."""

from pathlib import Path


def policy_dir() -> Path:
    """The shipped lab policy, a Hugging Face directory."""
    return Path(__file__).with_name("policy")
