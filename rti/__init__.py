"""RTI: Rollout-Time Intervention. Asynchronous reinforcement learning for LLM agents whose tasks are beyond their reach."""

__version__ = "0.1.0"
