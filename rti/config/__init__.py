"""The configuration: its schema (schema.py) and how it is loaded, overridden and validated (load.py)."""

from rti.config.schema import *  # noqa: F401,F403
