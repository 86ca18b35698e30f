"""The offline service's protocol, over real HTTP: shapes, paging, errors; and that no reply differs without HTTP."""

from __future__ import annotations

import asyncio
import socket

import aiohttp
import pytest

from rti.envs.navigation.gazetteer import Gazetteer
from rti.envs.navigation.offline import OfflineService
from rti.envs.navigation.server import OfflineServer

WUHAN, XIAOGAN = "114.26667,30.58333", "113.91667,30.92500"


@pytest.fixture(scope="module")
def service():
    return OfflineService(Gazetteer.load())


async def ask(service, *requests, key="some key"):
    """Replies over HTTP; each must equal the service's own answer."""
    server = OfflineServer(service)
    await server.start()
    replies = []
    try:
        async with aiohttp.ClientSession() as session:
            for path, params in requests:
                params = {**params, "key": key} if key else params
                async with session.get(server.base_url + path, params=params) as response:
                    assert response.status == 200 and response.charset == "utf-8"
                    replies.append(await response.json())
                assert replies[-1] == service.answer(path, params)
    finally:
        await server.stop()
    return replies


def code(reply):
    return reply["status"], reply["infocode"]


async def test_text_search_has_the_services_shape(service):
    (reply,) = await ask(service, ("/v5/place/text", {"keywords": "武汉", "page_size": "2"}))
    assert code(reply) == ("1", "10000") and reply["info"] == "OK" and reply["count"] == "1"
    poi = reply["pois"][0]
    assert poi["name"] == "Wuhan" and poi["pname"] == "Hubei" and poi["location"] == "114.266670,30.583330"
    assert poi["address"] == [] and poi["id"].startswith("B") and poi["adcode"] == "420000"
    assert all(isinstance(v, (str, list)) for v in poi.values())


async def test_pages_follow_each_other_and_end_at_200(service):
    page = {"keywords": "an", "page_size": "25"}
    replies = await ask(service, *(("/v5/place/text", {**page, "page_num": str(n)}) for n in range(1, 11)))
    ids = [p["id"] for r in replies for p in r["pois"]]
    assert len(ids) == len(set(ids)) == 200
    assert [len(r["pois"]) for r in replies] == [25] * 8 + [0, 0]


async def test_a_region_weighs_or_filters(service):
    weight, limit, none = await ask(
        service, ("/v5/place/text", {"keywords": "suzhou", "region": "Anhui"}),
        ("/v5/place/text", {"keywords": "suzhou", "region": "Anhui", "city_limit": "true"}),
        ("/v5/place/text", {"keywords": "suzhou", "region": "Nowhere", "city_limit": "true"}))
    assert weight["pois"][0]["pname"] == "Anhui" and {p["pname"] for p in weight["pois"]} > {"Anhui"}
    assert {p["pname"] for p in limit["pois"]} == {"Anhui"}
    assert code(none) == ("1", "10000") and none["pois"] == []


async def test_around_is_by_distance_and_a_radius_too_large_falls_back_to_5000(service):
    large, beyond, default = await ask(
        service, ("/v5/place/around", {"location": WUHAN, "radius": "50000", "page_size": "25"}),
        ("/v5/place/around", {"location": WUHAN, "radius": "50001", "page_size": "25"}),
        ("/v5/place/around", {"location": WUHAN, "page_size": "25"}))
    distances = [int(p["distance"]) for p in large["pois"]]
    assert distances == sorted(distances) and len(distances) == 25
    assert beyond["pois"] == default["pois"] and all(int(p["distance"]) <= 5000 for p in default["pois"])


async def test_around_by_weight_puts_the_largest_first(service):
    (reply,) = await ask(service, ("/v5/place/around", {"location": XIAOGAN, "radius": "50000", "sortrule": "weight"}))
    assert int(reply["pois"][0]["distance"]) > 0 or reply["pois"][0]["name"] == "Xiaogan"


async def test_types_select_places_or_nothing(service):
    places, shops = await ask(service, ("/v5/place/text", {"types": "190000", "region": "Hubei"}),
                              ("/v5/place/text", {"keywords": "wuhan", "types": "060000"}))
    assert places["pois"][0]["name"] == "Wuhan" and shops["pois"] == []


async def test_detail_gives_known_ids_and_nothing_for_unknown(service):
    first = service.answer("/v5/place/text", {"keywords": "Wuhan", "key": "k"})["pois"][0]
    known, unknown = await ask(service, ("/v5/place/detail", {"id": f"{first['id']}|B999"}), ("/v5/place/detail", {"id": "x"}))
    assert [p["name"] for p in known["pois"]] == ["Wuhan"] and code(unknown) == ("1", "10000") and unknown["pois"] == []


async def test_routes_have_the_services_shape(service):
    drive, bare, walk = await ask(
        service, ("/v5/direction/driving", {"origin": WUHAN, "destination": XIAOGAN, "waypoints": "114,30.7;113.9,30.8",
                                            "show_fields": "cost"}),
        ("/v5/direction/driving", {"origin": WUHAN, "destination": XIAOGAN}),
        ("/v5/direction/walking", {"origin": WUHAN, "destination": XIAOGAN, "show_fields": "cost"}))
    path = drive["route"]["paths"][0]
    assert int(path["distance"]) > 50_000 and int(path["cost"]["duration"]) > 0 and len(path["steps"]) == 3
    assert drive["route"]["origin"] == WUHAN and int(drive["route"]["taxi_cost"]) > 10
    assert "cost" not in bare["route"]["paths"][0]
    assert int(walk["route"]["paths"][0]["cost"]["duration"]) > int(path["cost"]["duration"])


async def test_transit_wants_the_citycodes_that_regeo_gives(service):
    (regeo,) = await ask(service, ("/v3/geocode/regeo", {"location": WUHAN}))
    component = regeo["regeocode"]["addressComponent"]
    assert component["province"] == "Hubei" and regeo["regeocode"]["formatted_address"]
    ends = {"origin": WUHAN, "destination": XIAOGAN}
    right, name, missing = await ask(
        service, ("/v5/direction/transit/integrated", {**ends, "city1": component["citycode"], "city2": component["citycode"]}),
        ("/v5/direction/transit/integrated", {**ends, "city1": "Wuhan", "city2": "Wuhan"}),
        ("/v5/direction/transit/integrated", ends))
    assert int(right["route"]["transits"][0]["cost"]["duration"]) > 0
    assert code(name) == ("0", "20000") and code(missing) == ("0", "20001")


async def test_geocoding_finds_an_address(service):
    found, none = await ask(service, ("/v3/geocode/geo", {"address": "Suzhou", "city": "Anhui"}),
                            ("/v3/geocode/geo", {"address": "no such place at all"}))
    assert found["geocodes"][0]["province"] == "Anhui" and none["geocodes"] == []


@pytest.mark.parametrize("path, params, infocode", [
    ("/v5/place/text", {}, "20001"), ("/v5/place/text", {"keywords": "x" * 81}, "20000"),
    ("/v5/place/text", {"keywords": "x", "page_size": "26"}, "20000"),
    ("/v5/place/text", {"keywords": "x", "page_num": "no"}, "20000"),
    ("/v5/place/around", {}, "20001"), ("/v5/place/around", {"location": "30.5,114.3"}, "20000"),
    ("/v5/place/around", {"location": "2.35,48.85"}, "20011"), ("/v5/place/around", {"location": "a,b"}, "20000"),
    ("/v5/place/detail", {}, "20001"), ("/v5/place/detail", {"id": "|".join("B1" for _ in range(11))}, "20000"),
    ("/v5/direction/driving", {"origin": WUHAN}, "20001"),
    ("/v5/direction/driving", {"origin": WUHAN, "destination": XIAOGAN, "waypoints": ";".join([WUHAN] * 17)}, "20000"),
    ("/v5/direction/walking", {"origin": WUHAN, "destination": "116.4,39.9"}, "20803"),
    ("/v5/direction/flying", {}, "10002"),
])
async def test_wrong_requests_get_the_services_infocode(service, path, params, infocode):
    (reply,) = await ask(service, (path, params))
    assert code(reply) == ("0", infocode) and reply["info"].isupper()


async def test_a_request_without_a_key_is_refused(service):
    (reply,) = await ask(service, ("/v5/place/text", {"keywords": "Wuhan"}), key="")
    assert code(reply) == ("0", "10001")


async def test_servers_take_a_port_each_on_loopback_only_and_say_when_one_is_taken(service):
    servers = [OfflineServer(service) for _ in range(5)]
    await asyncio.gather(*(s.start() for s in servers))
    try:
        assert len({s.base_url for s in servers}) == 5
        taken = int(servers[0].base_url.rsplit(":", 1)[1])
        with pytest.raises(OSError, match="mend: use port 0"):
            await OfflineServer(service, taken).start()
        with socket.socket() as s:      # bound to 127.0.0.1, not to every address
            assert s.connect_ex(("127.0.0.2", taken)) != 0
    finally:
        await asyncio.gather(*(s.stop() for s in servers))
