"""The three roles' prompts for τ²-Bench airline, for language models: no change without a list of details and a yes."""

from __future__ import annotations

from rti.mas.prompts.tau2_roles import Pack, Words

_PACK = Pack(Words(
    agent="an airline's service agent that books, changes and cancels reservations under the airline's policy",
    errors="""\
- MISSING_CONFIRMATION: a call that changes the database (booking, flights, cabin, baggage, passengers, cancellation, \
certificate) comes before the agent has listed its details and the user has said an explicit yes to them.""",
    done_by_user="",
    corrector="""\
- Before a call that changes a reservation, list what will be changed (flights, cabin, passengers, baggage, price, payment) \
and ask for a yes. Make the call only after the user has given it.
- What the policy forbids is declined in words, without a call. Where no change is required, none is made."""))

validator, corrector, verifier = _PACK.validator, _PACK.corrector, _PACK.verifier
