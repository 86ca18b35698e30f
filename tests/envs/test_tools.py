"""The tools: what the agent reads, for right calls and for every wrong one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rti.envs.base import EnvironmentFault
from rti.envs.navigation import render
from rti.envs.navigation.client import InProcessTransport, MapClient
from rti.envs.navigation.gazetteer import Gazetteer
from rti.envs.navigation.offline import OfflineService
from rti.envs.navigation.tools import TOOLS, NavigationTools
from rti.trajectory import ToolCall

WUHAN, XIAOGAN, YICHANG = "114.26667,30.58333", "113.91667,30.925", "111.28472,30.71444"


class Fixed:
    """A service with one answer for everything."""

    def __init__(self, reply):
        self.reply, self.asked = reply, []

    async def get(self, path, params):
        self.asked.append((path, params))
        return self.reply

    async def close(self):
        return None


def tools(results=1, limit=5000, reply=None):
    transport = Fixed(reply) if reply is not None else InProcessTransport(OfflineService(Gazetteer.load()))
    return NavigationTools(MapClient(transport, "k", attempts=1), results, limit)


async def text(name, results=1, limit=5000, **arguments):
    return (await tools(results, limit).run(ToolCall(name=name, arguments=arguments))).text


async def test_a_search_shows_one_line_a_place():
    assert await text("poi_search", address="Wuhan") == f"Wuhan, Hubei {WUHAN}"
    assert await text("poi_search", address="suzhou", region="Anhui") == "Suzhou, Anhui 116.97889,33.63611"
    assert await text("poi_search", address="Nowhere at all") == "no match"
    assert await text("poi_search", address="Wuhan", region="Tibet") == "no match"


async def test_more_results_say_how_many_were_left_out():
    assert (await text("poi_search", results=2, address="suzhou")).splitlines() == [
        "Suzhou, Jiangsu 120.59538,31.30408", "Suzhou, Anhui 116.97889,33.63611", "(+1 more)"]
    assert "more" not in await text("poi_search", results=3, address="suzhou")
    assert "more" not in await text("poi_search", results=1, address="suzhou")


async def test_around_search_and_direction():
    assert await text("around_search", location=WUHAN, radius=2000) == f"Wuhan, Hubei {WUHAN}"
    assert await text("around_search", location="114.2,30.6", radius="50000", keyword="Wuhan") == f"Wuhan, Hubei {WUHAN}"
    driving = await text("direction", origin=WUHAN, destination=XIAOGAN, mode="driving", waypoints=[YICHANG])
    assert driving.startswith("ok ") and driving.endswith(" min") and " km, " in driving
    for mode in ("bicycling", "transit", "walking"):
        assert (await text("direction", origin=WUHAN, destination=XIAOGAN, mode=mode)).startswith("ok "), mode


@pytest.mark.parametrize("call, says", [
    (ToolCall(name="fly", arguments={}), "unknown tool 'fly'; the tools are poi_search, around_search, direction"),
    (ToolCall(name="poi_search", error="not valid JSON: line 1"), "not valid JSON: line 1"),
    (ToolCall(name="poi_search", arguments={}), "poi_search needs the argument 'address'"),
    (ToolCall(name="poi_search", arguments={"address": 3}), "'address' must be a string"),
    (ToolCall(name="poi_search", arguments={"address": "  "}), "'address' must have 1 to 80"),
    (ToolCall(name="poi_search", arguments={"address": "x" * 81}), "'address' must have 1 to 80"),
    (ToolCall(name="poi_search", arguments={"address": "a", "city": "b"}),
     "unknown argument 'city'; poi_search takes address, region"),
    (ToolCall(name="around_search", arguments={"location": WUHAN, "radius": 50_001}), "'radius' must be 1 to 50000"),
    (ToolCall(name="around_search", arguments={"location": WUHAN, "radius": True}), "'radius' must be a number"),
    (ToolCall(name="around_search", arguments={"location": WUHAN, "radius": "nan"}), "'radius' must be a number"),
    (ToolCall(name="around_search", arguments={"location": "30.58333,114.26667", "radius": 10}), f"swapped; write '{WUHAN}'"),
    (ToolCall(name="direction", arguments={"origin": "here", "destination": WUHAN, "mode": "driving"}),
     "'here' is not a coordinate"),
    (ToolCall(name="direction", arguments={"origin": "0,0", "destination": WUHAN, "mode": "driving"}), "outside China"),
    (ToolCall(name="direction", arguments={"origin": WUHAN, "destination": XIAOGAN, "mode": "swim"}),
     "'mode' must be one of driving"),
    (ToolCall(name="direction", arguments={"origin": WUHAN, "destination": XIAOGAN, "mode": "walking", "waypoints": [YICHANG]}),
     "only driving takes waypoints"),
    (ToolCall(name="direction", arguments={
        "origin": WUHAN, "destination": XIAOGAN, "mode": "driving", "waypoints": [YICHANG] * 17}),
     "at most 16 waypoints; 17"),
    (ToolCall(name="direction", arguments={"origin": WUHAN, "destination": XIAOGAN, "mode": "driving", "waypoints": [1]}),
     "'waypoints' must be a list of strings"),
    (ToolCall(name="direction", arguments={"origin": WUHAN, "destination": "80.0,36.0", "mode": "walking"}), "too far apart"),
])
async def test_wrong_calls_are_answered_never_raised(call, says):
    result = await tools().run(call)
    assert result.text.startswith("error: ") and says in result.text
    assert not result.locations and result.direction is None


json_values = st.recursive(st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=20),
                           lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=8), v, max_size=3),
                           max_leaves=5)
argument_names = st.sampled_from([p for t in TOOLS for p in t.parameters["properties"]]) | st.text(max_size=8)


@given(st.sampled_from([t.name for t in TOOLS]) | st.text(max_size=10),
       st.dictionaries(argument_names, json_values, max_size=5))
@settings(max_examples=150, deadline=None)
def test_no_arguments_whatever_make_a_tool_raise(name, arguments):
    import asyncio
    assert asyncio.run(tools().run(ToolCall(name=name, arguments=arguments))).text


async def test_an_oversized_output_is_cut_at_a_line_and_says_so():
    pois = [{"name": f"Place {i}", "pname": "Hubei", "address": "a long street name " * 60, "location": f"114.{i:03},30.5"}
            for i in range(25)]
    run = tools(25, 5000, {"status": "1", "infocode": "10000", "pois": pois}).run
    result = await run(ToolCall(name="poi_search", arguments={"address": "Place"}))
    lines = result.text.splitlines()
    assert len(result.text) <= 5000
    assert len(result.locations) == len(lines) - 1 and lines[-1] == f"(+{25 - len(result.locations)} more)"
    assert all(line.endswith(location) for line, location in zip(lines, result.locations))


async def test_one_line_too_long_is_cut_and_returns_no_place():
    poi = {"name": "P", "pname": "Hubei", "address": "x" * 30_000, "location": "114.5,30.5"}
    result = await tools(1, 5000, {"status": "1", "infocode": "10000", "pois": [poi]}).run(
        ToolCall(name="poi_search", arguments={"address": "P"}))
    assert len(result.text) < 5100 and "characters left out)" in result.text and result.locations == ()


async def test_a_huge_error_is_cut_too():
    result = await tools(limit=200).run(ToolCall(name="poi_search", error="x" * 100_000))
    assert len(result.text) < 250 and "characters left out" in result.text


def test_a_real_services_address_is_shown_and_missing_fields_are_skipped():
    poi = {"name": "黄鹤楼", "pname": "湖北省", "cityname": "武汉市", "adname": "武昌区",
           "address": "蛇山西山坡特1号", "location": "114.302,30.544"}
    reply = {"pois": [poi, {**poi, "address": [], "adname": [], "pname": []}, {**poi, "location": []}]}
    assert render.places(reply, 3, 5000).text == (
        "黄鹤楼, 湖北省 武汉市 武昌区 蛇山西山坡特1号 114.302,30.544\n黄鹤楼 114.302,30.544")


@pytest.mark.parametrize("route, says", [
    ({"paths": [{"distance": "123400", "cost": {"duration": "5700"}}]}, "ok 123 km, 95 min"),
    ({"paths": [{"distance": "3440"}]}, "ok 3.4 km"),
    ({"transits": [{"distance": "20000", "cost": {"duration": "60"}}]}, "ok 20 km, 1 min"),
    ({"paths": []}, "error: the service found no route"),
])
def test_a_route_is_one_short_line(route, says):
    assert render.route({"route": route}).text == says


async def test_a_service_that_fails_is_the_environments_fault_not_the_agents():
    with pytest.raises(EnvironmentFault):
        await tools(reply={"status": "0", "infocode": "10020", "info": "BUSY"}).run(
            ToolCall(name="poi_search", arguments={"address": "Wuhan"}))
