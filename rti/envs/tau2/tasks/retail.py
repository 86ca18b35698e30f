"""What retail customers can want: goals drawn over the orders of one user, each within the retail policy.

Keeps: the calls of a goal follow from what the user is told and what the database holds, whoever plays the agent: a wanted
item is one variant only, an order is named or described so that it is one only, and a payment method is named outright.
"""

from __future__ import annotations

from random import Random
from typing import Any, Callable, Mapping, Sequence

from rti.envs.tau2.tasks.goal import Call, Customer, Goal, listing, money

Record = Mapping[str, Any]
REASONS = {
    "no longer needed": ("You no longer need it.", "Your plans have changed, so that you no longer need it."),
    "ordered by mistake": ("You ordered it by mistake.", "You clicked the wrong button and ordered it by mistake."),
}
STREETS = (
    "Alder Court", "Birchwood Road", "Canal Street", "Dovecote Lane", "Eastgate Avenue", "Foundry Road", "Garden Terrace",
    "Harbor View", "Ivy Lane", "Juniper Way",
)


class Shopper:
    """One user with what the goals need to know of the store. `numbers`: whether the user remembers order numbers."""

    def __init__(self, db: Record, user_id: str, rng: Random) -> None:
        self.db, self.rng, self.user = db, rng, db["users"][user_id]
        self.orders = [db["orders"][o] for o in self.user["orders"]]
        self.numbers = rng.random() < 0.6

    # ---- who calls --------------------------------------------------------------------------------------------------

    def customer(self) -> Customer:
        name, address = self.user["name"], self.user["address"]
        forgotten = [] if self.numbers else ["You do not remember any order number."]
        full = f"{name['first_name']} {name['last_name']}"
        if self.rng.random() < 0.5:
            lookup = Call("find_user_id_by_email", {"email": self.user["email"]})
            known = f"You are {full}. Your email address is {self.user['email']}."
            forgotten.insert(0, "You do not remember your user id.")
        else:
            lookup = Call("find_user_id_by_name_zip", {"first_name": name["first_name"], "last_name": name["last_name"],
                                                       "zip": address["zip"]})
            known = f"You are {full}, and your zip code is {address['zip']}."
            forgotten.insert(0, "You do not remember your email address or your user id.")
        return Customer(known, " ".join(forgotten), (lookup, Call("get_user_details", {"user_id": self.user["user_id"]})))

    # ---- how things are called --------------------------------------------------------------------------------------

    def pick(self, *statuses: str) -> Record | None:
        """An order in one of these states that the user can point at, with no item in it twice."""
        fit = [o for o in self.orders if o["status"] in statuses and self.order_text(o)
               and len({i["item_id"] for i in o["items"]}) == len(o["items"])]
        return self.rng.choice(fit) if fit else None

    def order_text(self, order: Record) -> str:
        """Its number, or the first item in it that no other order of the user has; empty where there is no such item."""
        if self.numbers:
            return f"order {order['order_id']}"
        others = {i["product_id"] for o in self.orders if o is not order for i in o["items"]}
        own = [i["name"] for i in order["items"] if i["product_id"] not in others]
        return f"the order with the {own[0].lower()}" if own else ""

    @staticmethod
    def item_text(order: Record, item: Record) -> str:
        """'t-shirt', or 't-shirt (color red, size M)' where the order has several."""
        alike = sum(i["product_id"] == item["product_id"] for i in order["items"])
        return item["name"].lower() + (f" ({options_text(item['options'])})" if alike > 1 else "")

    def method(self, fits: Callable[[Record], bool]) -> Record | None:
        methods = [m for m in self.user["payment_methods"].values() if fits(m)]
        return self.rng.choice(methods) if methods else None

    def method_text(self, method: Record) -> str:
        alike = [m for m in self.user["payment_methods"].values() if m["source"] == method["source"]]
        if method["source"] == "credit_card":
            return f"your {method['brand']} credit card ending in {method['last_four']}"
        name = {"paypal": "your PayPal account", "gift_card": "your gift card"}[method["source"]]
        return name if len(alike) == 1 else f"{name} {method['id']}"

    def look_at(self, order: Record) -> Call:
        return Call("get_order_details", {"order_id": order["order_id"]})

    def new_address(self) -> dict[str, str]:
        """A place in the city of some other user, at an address that is made up."""
        place = self.db["users"][self.rng.choice(list(self.db["users"]))]["address"]
        return {"address1": f"{self.rng.randint(101, 989)} {self.rng.choice(STREETS)}",
                "address2": f"Apt {self.rng.randint(2, 99)}",
                **{key: place[key] for key in ("city", "state", "country", "zip")}}

    # ---- which item for which ---------------------------------------------------------------------------------------

    def swaps(self, order: Record, count: int) -> list[tuple[Record, Record, str]]:
        """(item, variant, how the user says it), up to `count` of them, for different items of an order."""
        items = self.rng.sample(order["items"], len(order["items"]))
        found = ((item, *swap) for item in items if (swap := self._swap(order, item)))
        return [swap for swap, _ in zip(found, range(count), strict=False)]

    def _swap(self, order: Record, item: Record) -> tuple[Record, str] | None:
        variants = [v for v in self.db["products"][item["product_id"]]["variants"].values() if v["item_id"] != item["item_id"]]
        there = [v for v in variants if v["available"]]
        gone = [v for v in variants if not v["available"]]
        if not there:
            return None
        name, draw = self.item_text(order, item), self.rng.random()
        if draw < 0.15:
            least = min(there, key=lambda v: v["price"])
            if sum(v["price"] == least["price"] for v in there) == 1:
                return least, f"the {name} for the cheapest other one that is in stock"
        wanted = self.rng.choice(there)
        if draw < 0.35 and gone:
            first = self.rng.choice(gone)
            return wanted, (f"the {name} for one with {change_text(item, first)}, or, if that is not in stock, for one with "
                            f"{change_text(item, wanted)} (whatever is not mentioned stays as it is)")
        return wanted, f"the {name} for one with {change_text(item, wanted)} (whatever is not mentioned stays as it is)"


def options_text(options: Mapping[str, str]) -> str:
    return listing([f"{name} {value}" for name, value in options.items()])


def change_text(item: Record, variant: Record) -> str:
    """The options in which a variant differs from what the user has; a variant is told from all others by its options."""
    return options_text({k: v for k, v in variant["options"].items() if item["options"].get(k) != v})


def address_text(a: Mapping[str, str]) -> str:
    return f"{a['address1']}, {a['address2']}, {a['city']}, {a['state']} {a['zip']}, {a['country']}"


def _total(items: Sequence[Record]) -> float:
    return round(sum(i["price"] for i in items), 2)


def _told(amount: float) -> tuple[str, ...]:
    """Amounts that could stand in a message by chance are not asked for."""
    return (money(amount),) if amount >= 10 and len(money(amount)) >= 5 else ()


# ---- goals: each takes a Shopper and gives a goal, or None where the user's orders do not allow it -----------------

def cancel_order(s: Shopper) -> Goal | None:
    order = s.pick("pending")
    if order is None:
        return None
    reason = s.rng.choice(list(REASONS))
    ask, tell = "", _told(order["payment_history"][0]["amount"]) if s.rng.random() < 0.3 else ()
    if tell:
        ask = " You want to hear the amount that you get back."
    return Goal("cancel", f"You want to cancel {s.order_text(order)}. {s.rng.choice(REASONS[reason])}{ask}", order["order_id"],
                (Call("cancel_pending_order", {"order_id": order["order_id"], "reason": reason}),),
                (s.look_at(order),), tell=tell)


def return_items(s: Shopper) -> Goal | None:
    order = s.pick("delivered")
    if order is None:
        return None
    items = order["items"]
    if s.rng.random() < 0.7:
        items = s.rng.sample(items, s.rng.randint(1, min(3, len(items))))
    original = order["payment_history"][0]["payment_method_id"]
    method = s.method(lambda m: m["id"] == original or m["source"] == "gift_card")
    tell = _told(_total(items)) if s.rng.random() < 0.3 else ()
    what = (f"everything in {s.order_text(order)}" if len(items) == len(order["items"]) else
            f"the {listing([s.item_text(order, i) for i in items])} from {s.order_text(order)}")
    ask = " You want to hear the total of the refund." if tell else ""
    return Goal("return", f"You want to return {what}. The refund shall go to {s.method_text(method)}.{ask}", order["order_id"],
                (Call("return_delivered_order_items", {"order_id": order["order_id"], "item_ids": [i["item_id"] for i in items],
                                                       "payment_method_id": method["id"]}),), (s.look_at(order),), tell=tell)


def _change_items(s: Shopper, status: str, tool: str, kind: str, count: int) -> Goal | None:
    order = s.pick(status)
    swaps = s.swaps(order, count) if order else []
    if not swaps:
        return None
    difference = round(sum(v["price"] for _, v, _ in swaps) - _total([i for i, _, _ in swaps]), 2)
    method = s.method(lambda m: m["source"] != "gift_card" or m["balance"] >= difference)
    if method is None:
        return None
    tell = _told(abs(difference)) if s.rng.random() < 0.3 else ()
    ask = " You want to hear the difference in price." if tell else ""
    verb = "exchange" if status == "delivered" else "change"
    products = dict.fromkeys(i["product_id"] for i, _, _ in swaps)
    return Goal(kind, f"You want to {verb}, in {s.order_text(order)}, {listing([text for _, _, text in swaps])}. Any "
                      "difference in "
                f"price goes through {s.method_text(method)}.{ask}", order["order_id"],
                (Call(tool, {"order_id": order["order_id"], "item_ids": [i["item_id"] for i, _, _ in swaps],
                             "new_item_ids": [v["item_id"] for _, v, _ in swaps], "payment_method_id": method["id"]}),),
                (s.look_at(order), *(Call("get_product_details", {"product_id": p}) for p in products)),
                ("If you are asked whether there are more items to change in that order, say no.",), tell)


def exchange_items(s: Shopper) -> Goal | None:
    return _change_items(s, "delivered", "exchange_delivered_order_items", "exchange", s.rng.choice((1, 1, 2)))


def modify_items(s: Shopper) -> Goal | None:
    # one item only: of several, the official tool gives all the price and options of the last, so that their order counts
    return _change_items(s, "pending", "modify_pending_order_items", "modify items", 1)


def modify_payment(s: Shopper) -> Goal | None:
    order = s.pick("pending")
    if order is None:
        return None
    paid = order["payment_history"][0]
    method = s.method(lambda m: m["id"] != paid["payment_method_id"]
                      and (m["source"] != "gift_card" or m["balance"] >= paid["amount"]))
    if method is None:
        return None
    return Goal("modify payment", f"You want to pay for {s.order_text(order)} with {s.method_text(method)} instead.",
                order["order_id"], (Call("modify_pending_order_payment", {"order_id": order["order_id"],
                                                                          "payment_method_id": method["id"]}),),
                (s.look_at(order),))


def modify_shipping(s: Shopper) -> Goal | None:
    order = s.pick("pending")
    if order is None:
        return None
    home = s.user["address"]
    if order["address"] != home and s.rng.random() < 0.4:
        address, where = home, "your default address, the one in your profile"
    else:
        address = s.new_address()
        where = address_text(address)
    return Goal("modify shipping address", f"You want {s.order_text(order)} to be sent to {where}.", order["order_id"],
                (Call("modify_pending_order_address", {"order_id": order["order_id"], **address}),), (s.look_at(order),))


def modify_home(s: Shopper) -> Goal | None:
    address = s.new_address()
    return Goal("modify default address", f"You have moved and want your default address to be {address_text(address)}. Orders "
                "that are on their way are not to be touched for it.", "profile",
                (Call("modify_user_address", {"user_id": s.user["user_id"], **address}),))


def return_or_cancel(s: Shopper) -> Goal | None:
    """A return that cannot be: the order has not been delivered; the user falls back to a cancellation."""
    order = s.pick("pending")
    if order is None:
        return None
    item = s.rng.choice(order["items"])
    return Goal("return falls back to cancel", f"You want to return the {s.item_text(order, item)} from {s.order_text(order)}.",
                order["order_id"],
                (Call("cancel_pending_order", {"order_id": order["order_id"], "reason": "no longer needed"}),),
                (s.look_at(order),),
                (f"If the agent says that nothing from {s.order_text(order)} can be returned because it is still pending, ask "
                 "to cancel the "
                 "whole of that order instead, because you no longer need it.",))


def exchange_or_return(s: Shopper) -> Goal | None:
    """Both on one order: the store does one of them; the user prefers the exchange."""
    order = s.pick("delivered")
    swaps = s.swaps(order, 1) if order else []
    rest = [i for i in order["items"] if i is not swaps[0][0]] if swaps else []
    if not rest:
        return None
    item, variant, text = swaps[0]
    back = s.rng.choice(rest)
    original = order["payment_history"][0]["payment_method_id"]
    method = s.user["payment_methods"][original]
    if method["source"] == "gift_card" and method["balance"] < variant["price"] - item["price"]:
        return None
    return Goal("exchange rather than return", f"In {s.order_text(order)}, you want to return the {s.item_text(order, back)} "
                                               "and to "
                f"exchange {text}. Money goes through {s.method_text(method)}.", order["order_id"],
                (Call("exchange_delivered_order_items", {"order_id": order["order_id"], "item_ids": [item["item_id"]],
                                                         "new_item_ids": [variant["item_id"]],
                                                         "payment_method_id": original}),),
                (s.look_at(order), Call("get_product_details", {"product_id": item["product_id"]})),
                (f"If the agent says that only one of return and exchange is possible for {s.order_text(order)}, you prefer "
                 "the exchange "
                 "and drop the return.",))


def track(s: Shopper) -> Goal | None:
    order = s.pick("delivered", "processed")
    parcels = [t for f in order["fulfillments"] for t in f["tracking_id"]] if order else []
    if not parcels:
        return None
    return Goal("tracking number", f"You want to know the tracking number of {s.order_text(order)}.", order["order_id"], (),
                (s.look_at(order),), tell=tuple(parcels))


def refuse_cancel(s: Shopper) -> Goal | None:
    order = s.pick("processed", "delivered")
    if order is None:
        return None
    return Goal("cancel refused", f"You want to cancel {s.order_text(order)}.", order["order_id"], (), (s.look_at(order),),
                (f"If the agent says that {s.order_text(order)} cannot be cancelled, leave that order as it is; you do not "
                 "want to return "
                 "or exchange anything from it, nor to speak to somebody else.",))


def refuse_shipping(s: Shopper) -> Goal | None:
    order = s.pick("processed")
    if order is None:
        return None
    return Goal("shipping address refused", f"You want {s.order_text(order)} to be sent to {address_text(s.new_address())}.",
                order["order_id"], (), (s.look_at(order),),
                (f"If the agent says that the address of {s.order_text(order)} can no longer be changed, accept it; you do "
                 "not want to "
                 "speak to somebody else.",))


def refuse_other_product(s: Shopper) -> Goal | None:
    order = s.pick("pending", "delivered")
    if order is None:
        return None
    item = s.rng.choice(order["items"])
    other = s.rng.choice([p for p in s.db["products"].values() if p["product_id"] != item["product_id"]])
    return Goal("other product refused", f"You want to swap the {s.item_text(order, item)} from {s.order_text(order)} for a "
                f"{other['name'].lower()}.", order["order_id"], (), (s.look_at(order),),
                (f"If the agent says that a {item['name'].lower()} cannot be swapped for another kind of product, keep it and "
                 "leave "
                 "that order as it is.",))


GOALS: dict[Callable[[Shopper], Goal | None], float] = {
    cancel_order: 2.0, return_items: 3.0, exchange_items: 4.0, modify_items: 3.0, modify_payment: 1.5, modify_shipping: 2.0,
    modify_home: 0.3, return_or_cancel: 0.7, exchange_or_return: 0.8, track: 0.7, refuse_cancel: 0.6, refuse_shipping: 0.6,
    refuse_other_product: 0.6,
}
"""With the weight of each in the draw."""
