"""The reward rule against an enumeration of permutations, and its invariances."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rti.envs.navigation.reward import all_returned, is_right, order_accepted, split_waypoints

pairs = st.tuples(st.integers(73_000_000, 135_000_000), st.integers(3_000_000, 53_000_000)).map(
    lambda p: f"{p[0] / 1e6:.6f},{p[1] / 1e6:.6f}")
places = st.lists(pairs, min_size=2, max_size=6, unique=True)
levels = st.sampled_from([0, 1, 2, 3, 4])


def accepted_orders(level, reference):
    """All orders that a level accepts, by its words."""
    first, *middle, last = reference
    if level == 0:
        return {p for p in itertools.permutations(reference)}
    if level == 1:
        return {(first, *p) for p in itertools.permutations([*middle, last])}
    if level == 2:
        return {(*p, last) for p in itertools.permutations([first, *middle])}
    if level == 3:
        return {(first, *p, last) for p in itertools.permutations(middle)}
    return {tuple(reference)}


def call_of(order):
    return {"origin": order[0], "waypoints": list(order[1:-1]), "destination": order[-1]}


@given(places.filter(lambda p: len(p) <= 5), levels)
@settings(max_examples=60, deadline=None)
def test_exactly_the_orders_of_the_level_are_accepted(reference, level):
    accepted = accepted_orders(level, reference)
    for order in itertools.permutations(reference):
        assert order_accepted(level, reference, order) == (order in accepted)


@given(places, levels, st.data())
@settings(max_examples=100, deadline=None)
def test_a_missing_a_doubled_or_a_foreign_place_is_never_accepted(reference, level, data):
    assert not order_accepted(level, reference, reference[:-1])
    assert not order_accepted(level, reference, [*reference, reference[-1]])
    foreign = data.draw(pairs.filter(lambda p: p not in reference))
    at = data.draw(st.integers(0, len(reference) - 1))
    assert not order_accepted(level, reference, [*reference[:at], foreign, *reference[at + 1:]])


@given(places, levels)
@settings(max_examples=50, deadline=None)
def test_levels_nest(reference, level):
    """What a stricter level accepts, level 0 accepts; 4 within 3 within 1 and 2 within 0."""
    orders = {n: accepted_orders(n, reference) for n in range(5)}
    assert orders[4] <= orders[3] <= (orders[1] & orders[2]) and orders[1] | orders[2] <= orders[0]
    assert all(order_accepted(0, reference, o) for o in list(orders[level])[:50])


def test_levels_0_and_3_differ_at_the_ends():
    reference = ["114,30", "115,30", "116,30"]
    swapped = ["116,30", "115,30", "114,30"]
    assert order_accepted(0, reference, swapped) and not order_accepted(3, reference, swapped)


def test_coordinates_are_compared_to_six_decimals():
    evidence = {"order_level": 4, "reference": {"origin": "114.3,30.5", "waypoints": ["115,31"], "destination": "116,32"}}
    same = {"origin": "114.300000,30.5000004", "waypoints": "115.0,31.0", "destination": "116 , 32"}
    other = {**same, "origin": "114.300001,30.5"}
    assert is_right(evidence, same) and not is_right(evidence, other)
    assert not is_right(evidence, {"origin": "x", "destination": "116,32"}) and not is_right(evidence, {})
    assert not is_right(evidence, {**same, "origin": "30.5,114.3"})


def test_places_must_have_been_returned():
    call = call_of(["114.3,30.5", "115,31", "116,32"])
    assert all_returned(call, ["115,31", "116,32", "114.3,30.5", "117,33"])
    assert not all_returned(call, ["115,31", "116,32"])


def test_waypoints_may_be_a_list_or_text():
    assert split_waypoints("115,31; 116,32;") == split_waypoints(["115,31", "116,32"]) == ["115,31", "116,32"]
    assert split_waypoints(None) == split_waypoints("") == split_waypoints([]) == []


def test_an_unknown_level_is_refused():
    with pytest.raises(ValueError, match="order level 5"):
        order_accepted(5, ["114,30"], ["114,30"])
