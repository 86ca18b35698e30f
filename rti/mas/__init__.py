"""Rollout-Time Intervention: Validator, Corrector and Verifier around a step of the policy, guards, and the perplexity gate.

pipeline.py is the step policy, players.py who plays a role, roles.py what roles get and answer, prompts/ and rules/ how each
environment's roles are asked or computed, guards.py and gate.py what refuses a correction whatever the roles say.
"""
