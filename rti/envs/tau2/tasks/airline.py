"""What airline customers can want: goals drawn over the reservations of one user, each within the airline policy.

Keeps: the calls of a goal follow from what the user is told and what the database holds, whoever plays the agent: a wanted
flight is one flight only, a reservation is named or described so that it is one only, and a payment method is named outright.
Reservations with a flight that has been flown are left alone, but for complaints: the policy hands the rest to humans.
"""

from __future__ import annotations

from random import Random
from typing import Any, Callable, Mapping, Sequence

from rti.envs.tau2.tasks.goal import Call, Customer, Goal, listing

Record = Mapping[str, Any]
YESTERDAY = "2024-05-14T15:00:00"
"""A day before the policy's present: what was booked later can be cancelled for any reason."""
FIRST_DAY, LAST_DAY = 16, 30
"""Days of May 2024 on which seats are on sale."""
CABINS = ("basic_economy", "economy", "business")
FREE_BAGS = {"regular": (0, 1, 2), "silver": (1, 2, 3), "gold": (2, 3, 4)}
"""Free checked bags per passenger in each of CABINS."""
AHEAD = {"available", "on time", "delayed", "cancelled"}
"""States of a flight that has not been flown."""
COVERED = ("you have fallen ill and must not fly", "storms are forecast where you wanted to go")
"""Reasons that the insurance covers."""
NOT_COVERED = ("your plans have changed", "a meeting there was called off")
NAMES = (("Robin", "Okafor"), ("Jordan", "Lindqvist"), ("Alexis", "Moreau"), ("Taylor", "Nakamura"), ("Casey", "Haddad"))


def cabin_text(cabin: str) -> str:
    return cabin.replace("_", " ")


def date_text(date: str) -> str:
    return f"May {int(date[-2:])}"


def day(number: int) -> str:
    return f"2024-05-{number:02d}"


class Traveller:
    """One user with what the goals need to know of the airline. `numbers`: whether the user remembers reservation numbers."""

    def __init__(self, db: Record, user_id: str, rng: Random) -> None:
        self.db, self.rng, self.user = db, rng, db["users"][user_id]
        self.reservations = [db["reservations"][r] for r in self.user["reservations"]]
        self.numbers = rng.random() < 0.6

    # ---- who calls --------------------------------------------------------------------------------------------------

    def customer(self) -> Customer:
        name = self.user["name"]
        return Customer(f"You are {name['first_name']} {name['last_name']}. Your user id is {self.user['user_id']}.",
                        "" if self.numbers else "You do not remember your reservation numbers.",
                        (Call("get_user_details", {"user_id": self.user["user_id"]}),))

    # ---- what is true of a reservation ------------------------------------------------------------------------------

    def pick(self, fits: Callable[[Record], bool]) -> Record | None:
        """A reservation that `fits` and that the user can point at."""
        fit = [r for r in self.reservations if self.text(r) and fits(r)]
        return self.rng.choice(fit) if fit else None

    def states(self, reservation: Record) -> set[str]:
        return {self.db["flights"][f["flight_number"]]["dates"][f["date"]]["status"] for f in reservation["flights"]}

    def unflown(self, reservation: Record) -> bool:
        return self.states(reservation) <= AHEAD

    def text(self, reservation: Record) -> str:
        """Its number, or the trip where no other reservation of the user goes that way."""
        if self.numbers:
            return f"reservation {reservation['reservation_id']}"
        way = (reservation["origin"], reservation["destination"])
        alike = [r for r in self.reservations if {r["origin"], r["destination"]} == set(way)]
        first = date_text(reservation["flights"][0]["date"])
        return "" if len(alike) > 1 else f"your trip from {way[0]} to {way[1]} on {first}"

    def freely_cancelled(self, r: Record) -> bool:
        return r["cabin"] == "business" or r["created_at"] >= YESTERDAY or "cancelled" in self.states(r)

    def compensated(self, r: Record) -> bool:
        """Whether the policy lets the user have a certificate when it comes to it."""
        return self.user["membership"] != "regular" or r["insurance"] == "yes" or r["cabin"] == "business"

    def free_bags(self, cabin: str, passengers: int) -> int:
        return FREE_BAGS[self.user["membership"]][CABINS.index(cabin)] * passengers

    # ---- money and flights ------------------------------------------------------------------------------------------

    def method(self, cost: float) -> Record | None:
        """A credit card, or a gift card that covers `cost`."""
        fit = [m for m in self.user["payment_methods"].values()
               if m["source"] == "credit_card" or m["source"] == "gift_card" and m["amount"] >= cost]
        return self.rng.choice(fit) if fit else None

    def method_text(self, method: Record) -> str:
        if method["source"] == "credit_card":
            return f"your {method['brand']} credit card ending in {method['last_four']}"
        alike = [m for m in self.user["payment_methods"].values() if m["source"] == "gift_card"]
        return "your gift card" if len(alike) == 1 else f"your gift card {method['id']}"

    def seats(self, flight: str, date: str, cabin: str, count: int) -> int | None:
        """The price of a seat where `count` are on sale, else None."""
        there = self.db["flights"][flight]["dates"].get(date, {})
        on_sale = there.get("status") == "available" and there["available_seats"][cabin] >= count
        return there["prices"][cabin] if on_sale else None

    def cheapest_direct(self, origin: str, destination: str, date: str, cabin: str, count: int) -> tuple[str, int] | None:
        """The cheapest direct flight and its price; None where it is not one flight, or has not the seats."""
        on_sale = [(price, f["flight_number"]) for f in self.db["flights"].values()
                   if (f["origin"], f["destination"]) == (origin, destination)
                   and (price := self.seats(f["flight_number"], date, cabin, 0)) is not None]
        if not on_sale:
            return None
        price, flight = min(on_sale)
        once = sum(p == price for p, _ in on_sale) == 1
        return (flight, price) if once and self.seats(flight, date, cabin, count) is not None else None

    def look_at(self, reservation: Record) -> Call:
        return Call("get_reservation_details", {"reservation_id": reservation["reservation_id"]})


def _segments(flights: Sequence[Record]) -> list[dict[str, str]]:
    return [{"flight_number": f["flight_number"], "date": f["date"]} for f in flights]


def _told(amount: int) -> tuple[str, ...]:
    """Amounts that could stand in a message by chance are not asked for."""
    return (str(amount),) if amount >= 100 else ()


# ---- goals: each takes a Traveller and gives a goal, or None where the user's reservations do not allow it ---------

def cancel(t: Traveller) -> Goal | None:
    r = t.pick(lambda r: t.unflown(r) and (t.freely_cancelled(r) or r["insurance"] == "yes"))
    if r is None:
        return None
    reason = t.rng.choice(COVERED if not t.freely_cancelled(r) else (*COVERED, *NOT_COVERED))
    if "cancelled" in t.states(r):
        reason = "the airline has cancelled a flight of it"
    paid = sum(p["amount"] for p in r["payment_history"])
    tell = _told(paid) if t.rng.random() < 0.3 else ()
    ask = " You want to hear the total that is refunded." if tell else ""
    return Goal("cancel", f"You want to cancel {t.text(r)}, because {reason}.{ask}", r["reservation_id"],
                (Call("cancel_reservation", {"reservation_id": r["reservation_id"]}),), (t.look_at(r),), tell=tell)


def change_cabin(t: Traveller) -> Goal | None:
    cabin = t.rng.choice(CABINS)
    r = t.pick(lambda r: r["cabin"] != cabin and t.unflown(r))
    prices = [t.seats(f["flight_number"], f["date"], cabin, len(r["passengers"])) for f in r["flights"]] if r else [None]
    if None in prices:
        return None
    cost = (sum(prices) - sum(f["price"] for f in r["flights"])) * len(r["passengers"])
    method = t.method(cost)
    if method is None:
        return None
    tell = _told(abs(cost)) if t.rng.random() < 0.4 else ()
    verb = "Upgrade" if CABINS.index(cabin) > CABINS.index(r["cabin"]) else "Downgrade"
    ask = f" You want to hear what you {'pay' if cost > 0 else 'get back'} in total." if tell else ""
    return Goal(f"{verb.lower()} cabin", f"You want {t.text(r)} to be in {cabin_text(cabin)} for everybody, on the same "
                                         "flights. "
                f"The difference in price goes through {t.method_text(method)}.{ask}", r["reservation_id"],
                (Call("update_reservation_flights", {"reservation_id": r["reservation_id"], "cabin": cabin,
                                                     "flights": _segments(r["flights"]), "payment_id": method["id"]}),),
                (t.look_at(r),), tell=tell)


def _ways(r: Record) -> list[list[Record]]:
    """The flights of a reservation by direction: one list, or two for a round trip."""
    turn = next(n for n, f in enumerate(r["flights"], 1) if f["destination"] == r["destination"])
    return [w for w in (r["flights"][:turn], r["flights"][turn:]) if w]


def _other_day(t: Traveller, ways: Sequence[Sequence[Record]], which: int) -> str:
    """A day for one direction that leaves the directions in order."""
    earliest = FIRST_DAY if which == 0 else int(ways[0][-1]["date"][-2:]) + 1
    latest = LAST_DAY if which == len(ways) - 1 else int(ways[1][0]["date"][-2:]) - 1
    days = [d for d in range(earliest, latest + 1) if day(d) != ways[which][0]["date"]]
    return day(t.rng.choice(days)) if days else ""


def change_flights(t: Traveller) -> Goal | None:
    r = t.pick(lambda r: r["cabin"] != "basic_economy" and t.states(r) == {"available"})
    if r is None:
        return None
    ways = _ways(r)
    which = t.rng.randrange(len(ways))
    date, way, seats = _other_day(t, ways, which), ways[which], len(r["passengers"])
    if not date:
        return None
    name = "the outbound flights of " if which == 0 and len(ways) == 2 else "the return flights of " if which == 1 else ""
    start, end = way[0]["origin"], way[-1]["destination"]
    reads: tuple[Call, ...] = (Call("search_direct_flight", {"origin": start, "destination": end, "date": date}),)
    best = t.cheapest_direct(start, end, date, r["cabin"], seats)
    if best is not None:
        new, fare, how = [best[0]], [best[1]], "the cheapest direct flight of that day in the cabin that you have"
    else:
        same_day = len({f["date"] for f in way}) == 1
        fare = [t.seats(f["flight_number"], date, r["cabin"], seats) for f in way] if same_day else [None]
        if None in fare:
            return None
        new, how = [f["flight_number"] for f in way], "the same flight numbers as now"
        reads = () if len(way) == 1 else (Call("search_onestop_flight", dict(reads[0].arguments)),)
    cost = (sum(fare) - sum(f["price"] for f in way)) * seats
    method = t.method(cost)
    if method is None:
        return None
    changed = [[{"flight_number": f, "date": date} for f in new] if n == which else _segments(w) for n, w in enumerate(ways)]
    return Goal("change flights", f"You want to move {name}{t.text(r)} to {date_text(date)}, on {how}; everything else stays "
                                  "as it "
                f"is. The difference in price goes through {t.method_text(method)}.", r["reservation_id"],
                (Call("update_reservation_flights", {"reservation_id": r["reservation_id"], "cabin": r["cabin"],
                                                     "flights": [f for w in changed for f in w], "payment_id": method["id"]}),),
                (t.look_at(r), *reads), ("If other dates or flights are offered, stay with what you asked for.",))


def add_bags(t: Traveller) -> Goal | None:
    r = t.pick(t.unflown)
    if r is None:
        return None
    more = t.rng.randint(1, 3)
    total = r["total_baggages"] + more
    paid = max(0, total - t.free_bags(r["cabin"], len(r["passengers"])))
    cost = 50 * max(0, paid - r["nonfree_baggages"])
    method = t.method(cost)
    if method is None:
        return None
    bags = "one checked bag" if more == 1 else f"{more} checked bags"
    return Goal("add bags", f"You want to add {bags} to {t.text(r)}. If that costs anything, it goes through "
                f"{t.method_text(method)}.", r["reservation_id"],
                (Call("update_reservation_baggages", {"reservation_id": r["reservation_id"], "total_baggages": total,
                                                      "nonfree_baggages": paid, "payment_id": method["id"]}),), (t.look_at(r),))


def change_passenger(t: Traveller) -> Goal | None:
    r = t.pick(t.unflown)
    if r is None:
        return None
    place = t.rng.randrange(len(r["passengers"]))
    old, first, last = r["passengers"][place], *t.rng.choice(NAMES)
    full = f"{old['first_name']} {old['last_name']}"
    if t.rng.random() < 0.5:
        new = {**old, "last_name": last}
        ask = f"the last name of {full} to be spelled {last}; first name and date of birth stay"
    else:
        born = f"19{t.rng.randint(60, 99)}-0{t.rng.randint(1, 9)}-1{t.rng.randint(0, 9)}"
        new = {"first_name": first, "last_name": last, "dob": born}
        ask = f"{first} {last}, born {new['dob']}, to fly in place of {full}"
    everybody = [new if n == place else dict(p) for n, p in enumerate(r["passengers"])]
    return Goal("change passenger", f"On {t.text(r)}, you want {ask}.", r["reservation_id"],
                (Call("update_reservation_passengers", {"reservation_id": r["reservation_id"], "passengers": everybody}),),
                (t.look_at(r),))


def book(t: Traveller) -> Goal | None:
    """A direct trip, one way or there and back, for the user and perhaps one of the saved passengers."""
    start, end = t.rng.choice(sorted({(f["origin"], f["destination"]) for f in t.db["flights"].values()}))
    out = t.rng.randint(FIRST_DAY, LAST_DAY - 4)
    back = out + t.rng.randint(2, 4) if t.rng.random() < 0.4 else 0
    cabin, people = t.rng.choice(CABINS), _people(t)
    legs = [(start, end, day(out))] + ([(end, start, day(back))] if back else [])
    found = [t.cheapest_direct(*leg, cabin, len(people)) for leg in legs]
    if None in found:
        return None
    bags, insurance = t.rng.randint(0, 3), t.rng.choice(("yes", "no"))
    paid = max(0, bags - t.free_bags(cabin, len(people)))
    cost = sum(price for _, price in found) * len(people) + 50 * paid + (30 * len(people) if insurance == "yes" else 0)
    method = t.method(cost)
    if method is None:
        return None
    tell = _told(cost) if t.rng.random() < 0.4 else ()
    trip = f"from {start} to {end} on {date_text(day(out))}" + (f", and back on {date_text(day(back))}" if back else ", one "
                                                                                                                     "way")
    who = "for yourself" if len(people) == 1 else f"for yourself and {people[1]['first_name']} {people[1]['last_name']}"
    arguments = {
        "user_id": t.user["user_id"], "origin": start, "destination": end, "flight_type": "round_trip" if back else "one_way",
        "cabin": cabin, "passengers": people, "total_baggages": bags, "nonfree_baggages": paid, "insurance": insurance,
        "flights": [{"flight_number": f, "date": leg[2]} for (f, _), leg in zip(found, legs, strict=True)],
        "payment_methods": [{"payment_id": method["id"], "amount": cost}]}
    return Goal("book", f"You want to book a trip {trip}, {who}, on the cheapest direct flight of the day in "
                        f"{cabin_text(cabin)}. You "
                f"pay with {t.method_text(method)}.{' You want to hear the total price.' if tell else ''}", "booking",
                (Call("book_reservation", arguments),),
                tuple(Call("search_direct_flight", {"origin": a, "destination": b, "date": d}) for a, b, d in legs),
                _booking_details(people, bags, insurance), tell)


def _people(t: Traveller) -> list[dict[str, str]]:
    people = [{**t.user["name"], "dob": t.user["dob"]}]
    if t.user["saved_passengers"] and t.rng.random() < 0.4:
        people.append(dict(t.rng.choice(t.user["saved_passengers"])))
    return people


def _booking_details(people: Sequence[Mapping[str, str]], bags: int, insurance: str) -> tuple[str, ...]:
    born = listing([f"{p['first_name']} {p['last_name']} was born on {p['dob']}" for p in people])
    many = {0: "no checked bags", 1: "one checked bag in all"}.get(bags, f"{bags} checked bags in all")
    return (f"For the booking: {born}.", f"You need {many}, and you {'want' if insurance == 'yes' else 'do not want'} the "
                                         "insurance.")


def complain_cancelled(t: Traveller) -> Goal | None:
    r = t.pick(lambda r: "cancelled" in t.states(r) and t.compensated(r))
    if r is None:
        return None
    flight = next(f for f in r["flights"] if t.db["flights"][f["flight_number"]]["dates"][f["date"]]["status"] == "cancelled")
    amount = 100 * len(r["passengers"])
    return Goal("compensation for a cancelled flight", "You are upset: the airline cancelled flight "
                                                       f"{flight['flight_number']} of "
                f"{date_text(flight['date'])}, which is part of {t.text(r)}. You ask to be compensated for it.",
                r["reservation_id"],
                (Call("send_certificate", {"user_id": t.user["user_id"], "amount": amount}),),
                (t.look_at(r), Call("get_flight_status", {"flight_number": flight["flight_number"], "date": flight["date"]})),
                ("You take a travel certificate if one is offered. You want nothing changed or cancelled because of that "
                 "flight.",))


def complain_delayed(t: Traveller) -> Goal | None:
    """A certificate goes with a cancellation here: the policy asks that the reservation be changed or cancelled for it."""
    r = t.pick(lambda r: "delayed" in t.states(r) and t.unflown(r) and t.compensated(r)
               and t.freely_cancelled(r))
    if r is None:
        return None
    flight = next(f for f in r["flights"] if t.db["flights"][f["flight_number"]]["dates"][f["date"]]["status"] == "delayed")
    return Goal("compensation for a delayed flight", f"Flight {flight['flight_number']} of {date_text(flight['date'])}, part "
                                                     "of "
                f"{t.text(r)}, is delayed. You want to cancel that reservation because of it, and you ask to be compensated "
                "for the "
                "delay.", r["reservation_id"],
                (Call("cancel_reservation", {"reservation_id": r["reservation_id"]}),
                 Call("send_certificate", {"user_id": t.user["user_id"], "amount": 50 * len(r["passengers"])})),
                (t.look_at(r), Call("get_flight_status", {"flight_number": flight["flight_number"], "date": flight["date"]})),
                ("You take a travel certificate if one is offered.",))


def refuse_cancel(t: Traveller) -> Goal | None:
    r = t.pick(lambda r: t.unflown(r) and not t.freely_cancelled(r))
    if r is None:
        return None
    return Goal("cancel refused", f"You want to cancel {t.text(r)}, because {t.rng.choice(NOT_COVERED)}.", r["reservation_id"],
                (), (t.look_at(r),),
                (f"If the agent says that {t.text(r)} cannot be cancelled, say once that you had hoped for an exception, then "
                 "keep that "
                 "reservation as it is. You do not want to speak to somebody else.",))


def refuse_basic_change(t: Traveller) -> Goal | None:
    r = t.pick(lambda r: r["cabin"] == "basic_economy" and t.states(r) == {"available"})
    if r is None:
        return None
    return Goal("change refused", f"You want to fly {t.text(r)} a day later, at whatever cost.", r["reservation_id"], (),
                (t.look_at(r),),
                (f"If the agent says that the flights of {t.text(r)} cannot be changed, keep that reservation as it is; you "
                 "do not want "
                 "another cabin for it, nor to cancel it, nor to speak to somebody else.",))


def refuse_insurance(t: Traveller) -> Goal | None:
    r = t.pick(lambda r: r["insurance"] == "no" and t.unflown(r))
    if r is None:
        return None
    return Goal("insurance refused", f"You want to add the travel insurance to {t.text(r)}.", r["reservation_id"],
                (), (t.look_at(r),),
                ("If the agent says that insurance cannot be added after booking, accept it.",))


def refuse_fewer(t: Traveller) -> Goal | None:
    r = t.pick(lambda r: len(r["passengers"]) > 1 and t.unflown(r))
    if r is None:
        return None
    out = r["passengers"][-1]
    return Goal("fewer passengers refused", f"You want {out['first_name']} {out['last_name']} to be taken off {t.text(r)}; "
                                            "the others "
                "still fly.", r["reservation_id"], (), (t.look_at(r),),
                ("If the agent says that the number of passengers cannot be changed, leave that reservation as it is. You do "
                 "not want "
                 "to speak to somebody else.",))


def refuse_compensation(t: Traveller) -> Goal | None:
    r = t.pick(lambda r: "landed" in t.states(r))
    if r is None:
        return None
    return Goal("compensation refused", f"You did not like the food and the seats on {t.text(r)} and ask for compensation.",
                r["reservation_id"], (), (t.look_at(r),),
                ("If the agent says that there is no compensation for that, let it go.",))


GOALS: dict[Callable[[Traveller], Goal | None], float] = {
    cancel: 3.0, change_cabin: 3.0, change_flights: 4.0, add_bags: 2.0, change_passenger: 2.0, book: 3.0,
    complain_cancelled: 1.5, complain_delayed: 1.5, refuse_cancel: 1.0, refuse_basic_change: 0.7, refuse_insurance: 0.5,
    refuse_fewer: 0.6, refuse_compensation: 0.4,
}
"""With the weight of each in the draw."""
