"""The three roles' prompts for τ²-Bench telecom, written for language models: the user's device is the user's to touch."""

from __future__ import annotations

from rti.mas.prompts.tau2_roles import Pack, Words

_PACK = Pack(Words(
    agent="a telecom support agent that looks after a customer's account and guides the customer through fixes on the phone",
    errors="""\
- USER_SIDE_DEVICE_ACTION: it calls a tool that belongs to the user (the list of tools says whose each is). What is on the \
phone is done by the user, when the agent asks for it in words.""",
    done_by_user="""\
- A user-side action is done when the conversation holds a matching output of the user's tool: the user tells the outcome of \
it after the agent has asked for it.
""",
    corrector="""\
- What must be done or read on the phone, you ask the user to do: say which action, in words, and ask what the phone shows \
then. Never call a tool of the user's."""))

validator, corrector, verifier = _PACK.validator, _PACK.corrector, _PACK.verifier
