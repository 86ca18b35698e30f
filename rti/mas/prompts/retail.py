"""The three roles' prompts for τ²-Bench retail, for language models: no change without a list of details and a yes."""

from __future__ import annotations

from rti.mas.prompts.tau2_roles import Pack, Words

_PACK = Pack(Words(
    agent="a customer service agent of an online shop that works on orders, returns, exchanges and addresses",
    errors="""\
- MISSING_CONFIRMATION: a call that changes the database comes before the agent has listed its details (order, items, payment \
or address) and the user has said an explicit yes to them.""",
    done_by_user="",
    corrector="""\
- Before a call that changes an order or a profile, list what will be changed, with its ids as the tools show them, and ask \
for a yes. Make the call only after the user has given it. All items of one order go into one call."""))

validator, corrector, verifier = _PACK.validator, _PACK.corrector, _PACK.verifier
