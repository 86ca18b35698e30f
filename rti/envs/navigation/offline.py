"""The offline service's answers: the Amap web service protocol over the shipped gazetteer, as a pure function of a request.

The HTTP server and the in-process transport both answer from here, so they cannot differ. The shapes follow the real
service: HTTP 200 always, numbers as strings, a missing string as `[]`, errors as status 0 with info and infocode.
Where the data is poorer than the real service's: citycode and adcode are the province's; routes are great circles times a
detour factor at a fixed speed.
"""

from __future__ import annotations

from typing import Any, Callable, Mapping

from rti.envs.navigation.gazetteer import Gazetteer, Place
from rti.envs.navigation.geometry import distance_m, in_range
from rti.envs.navigation.provinces import BY_NAME, PROVINCES

Reply = dict[str, Any]

INFOS = {
    "10001": "INVALID_USER_KEY", "20000": "INVALID_PARAMS", "20001": "MISSING_REQUIRED_PARAMS",
    "20011": "INSUFFICIENT_ABROAD_PRIVILEGES", "10002": "SERVICE_NOT_AVAILABLE", "20803": "OVER_DIRECTION_RANGE",
}
TYPE, TYPECODE = "地名地址信息;普通地名;乡镇级地名", "190106"
MAX_RESULTS, MAX_PAGE, MAX_RADIUS, DEFAULT_RADIUS, MAX_WAYPOINTS = 200, 25, 50_000, 5_000, 16
DETOUR = {"driving": 1.3, "walking": 1.2, "bicycling": 1.2, "electrobike": 1.2, "transit": 1.4}
SPEED = {"driving": 50.0, "walking": 4.5, "bicycling": 14.0, "electrobike": 18.0, "transit": 45.0}     # km/h
LIMIT_KM = {"driving": 6_000, "walking": 100, "bicycling": 500, "electrobike": 500, "transit": 3_000}


class Refusal(Exception):
    """A request that the service answers with status 0."""

    def __init__(self, infocode: str) -> None:
        super().__init__(infocode)
        self.infocode = infocode


def failure(infocode: str) -> Reply:
    return {"status": "0", "info": INFOS[infocode], "infocode": infocode}


def success(**fields: Any) -> Reply:
    return {"status": "1", "info": "OK", "infocode": "10000", **fields}


def _missing(text: str) -> Any:
    return text or []


def _integer(params: Mapping[str, str], name: str, default: int, low: int, high: int) -> int:
    text = params.get(name, "")
    if not text:
        return default
    if not text.isascii() or not text.isdigit() or not low <= int(text) <= high:
        raise Refusal("20000")
    return int(text)


def _point(params: Mapping[str, str], name: str) -> tuple[float, float]:
    text = params.get(name, "")
    if not text:
        raise Refusal("20001")
    return _pair(text)


def _pair(text: str) -> tuple[float, float]:
    try:
        lng, lat = (float(x) for x in text.split(","))
    except ValueError:
        raise Refusal("20000") from None
    if not (-180 <= lng <= 180 and -90 <= lat <= 90):
        raise Refusal("20000")
    if not in_range(lng, lat):
        raise Refusal("20011")
    return round(lng, 6), round(lat, 6)


def _poi(place: Place, distance: float | None = None) -> Reply:
    province = BY_NAME[place.province]
    poi = {
        "id": f"B{place.id:09d}", "name": place.name, "parent": "", "address": [],
        "location": f"{place.lng:.6f},{place.lat:.6f}",
        "type": TYPE, "typecode": TYPECODE, "pname": place.province, "cityname": place.city, "adname": [],
        "pcode": province.adcode, "citycode": province.adcode[:4], "adcode": province.adcode,
    }
    if distance is not None:
        poi["distance"] = str(round(distance))
    return poi


class OfflineService:
    """Stateless but for the read-only gazetteer."""

    def __init__(self, gazetteer: Gazetteer) -> None:
        self.gazetteer = gazetteer
        self.routes: dict[str, Callable[[Mapping[str, str]], Reply]] = {
            "/v5/place/text": self._text, "/v5/place/around": self._around, "/v5/place/detail": self._detail,
            "/v5/direction/driving": self._driving, "/v5/direction/walking": lambda p: self._simple(p, "walking"),
            "/v5/direction/bicycling": lambda p: self._simple(p, "bicycling"),
            "/v5/direction/electrobike": lambda p: self._simple(p, "electrobike"),
            "/v5/direction/transit/integrated": self._transit,
            "/v3/geocode/geo": self._geo, "/v3/geocode/regeo": self._regeo,
        }

    def answer(self, path: str, params: Mapping[str, str]) -> Reply:
        """The reply to a GET of `path`. Never raises for anything a client sends."""
        handler = self.routes.get(path)
        if handler is None:
            return failure("10002")
        if not params.get("key"):
            return failure("10001")
        try:
            return handler(params)
        except Refusal as refusal:
            return failure(refusal.infocode)

    # --- places ---

    def _keywords(self, params: Mapping[str, str], required: bool) -> tuple[str, bool]:
        """(keywords, whether the asked types include places)."""
        keywords, types = params.get("keywords", "").strip(), params.get("types", "")
        if required and not keywords and not types:
            raise Refusal("20001")
        if len(keywords) > 80:
            raise Refusal("20000")
        included = not types or any(t and (TYPECODE.startswith(t.rstrip("0")) or t in TYPE) for t in types.split("|"))
        return keywords, included

    def _page(self, params: Mapping[str, str]) -> tuple[int, int]:
        size = _integer(params, "page_size", 10, 1, MAX_PAGE)
        start = (_integer(params, "page_num", 1, 1, 100) - 1) * size
        return start, min(start + size, MAX_RESULTS)

    def _text(self, params: Mapping[str, str]) -> Reply:
        keywords, included = self._keywords(params, required=True)
        start, end = self._page(params)
        region, limited = params.get("region", ""), params.get("city_limit", "false").lower() == "true"
        if not included:
            places = []
        elif keywords:
            places = self.gazetteer.search(keywords, region, limited, limit=end)
        else:
            places = [p for p in self.gazetteer.places if not region or self.gazetteer.in_region(p, region)][:end]
        pois = [_poi(p) for p in places[start:end]]
        return success(count=str(len(pois)), pois=pois)

    def _around(self, params: Mapping[str, str]) -> Reply:
        lng, lat = _point(params, "location")
        keywords, included = self._keywords(params, required=False)
        start, end = self._page(params)
        radius = _integer(params, "radius", DEFAULT_RADIUS, 0, 10**9)
        radius = DEFAULT_RADIUS if radius > MAX_RADIUS else radius
        region = params.get("region", "") if params.get("city_limit", "false").lower() == "true" else ""
        hits = self.gazetteer.around(lng, lat, radius, keywords, region, limit=10**6) if included else []
        if params.get("sortrule") == "weight":
            hits.sort(key=lambda h: (-h.place.population, h.place.id))
        pois = [_poi(h.place, h.distance) for h in hits[start:end]]
        return success(count=str(len(pois)), pois=pois)

    def _detail(self, params: Mapping[str, str]) -> Reply:
        ids = [i for i in params.get("id", "").split("|") if i]
        if not ids:
            raise Refusal("20001")
        if len(ids) > 10:
            raise Refusal("20000")
        keys = [int(i[1:]) for i in ids if i[:1] == "B" and i[1:].isascii() and i[1:].isdigit()]
        pois = [_poi(self.gazetteer.by_id[k]) for k in keys if k in self.gazetteer.by_id]
        return success(count=str(len(pois)), pois=pois)

    # --- geocoding ---

    def _component(self, place: Place) -> Reply:
        province = BY_NAME[place.province]
        return {"province": place.province, "city": place.city, "citycode": province.adcode[:4], "district": [],
                "adcode": province.adcode}

    def _geo(self, params: Mapping[str, str]) -> Reply:
        if not params.get("address"):
            raise Refusal("20001")
        city = params.get("city", "")
        places = self.gazetteer.search(params["address"], city, city_limit=bool(city), limit=1)
        codes = [{"formatted_address": f"{p.name}, {p.city}, {p.province}", "location": f"{p.lng:.6f},{p.lat:.6f}",
                  "level": "乡镇", **self._component(p)} for p in places]
        return success(count=str(len(codes)), geocodes=codes)

    def _regeo(self, params: Mapping[str, str]) -> Reply:
        place = self.gazetteer.nearest(*_point(params, "location")).place
        address = f"{place.name}, {place.city}, {place.province}"
        return success(regeocode={"formatted_address": _missing(address), "addressComponent": self._component(place)})

    # --- routes ---

    def _legs(self, points: list[tuple[float, float]], mode: str) -> list[float]:
        legs = [distance_m(*a, *b) * DETOUR[mode] for a, b in zip(points, points[1:])]
        if sum(legs) > LIMIT_KM[mode] * 1000:
            raise Refusal("20803")
        return legs

    def _route(self, params: Mapping[str, str], points: list[tuple[float, float]], mode: str) -> Reply:
        legs = self._legs(points, mode)
        path: Reply = {"distance": str(round(sum(legs))), "restriction": "0", "steps": [
            {"instruction": f"{mode} {round(leg)} m", "road_name": [], "step_distance": str(round(leg))} for leg in legs]}
        if "cost" in params.get("show_fields", "").split(","):
            path["cost"] = {"duration": str(_seconds(legs, mode)), "tolls": "0", "toll_distance": "0", "traffic_lights": "0"}
        route: Reply = {"origin": params["origin"], "destination": params["destination"], "paths": [path]}
        if mode == "driving":
            route["taxi_cost"] = str(round(10 + sum(legs) / 1000 * 2.4))
        return success(count="1", route=route)

    def _driving(self, params: Mapping[str, str]) -> Reply:
        origin, destination = _point(params, "origin"), _point(params, "destination")
        waypoints = [_pair(w) for w in params.get("waypoints", "").split(";") if w]
        if len(waypoints) > MAX_WAYPOINTS:
            raise Refusal("20000")
        return self._route(params, [origin, *waypoints, destination], "driving")

    def _simple(self, params: Mapping[str, str], mode: str) -> Reply:
        return self._route(params, [_point(params, "origin"), _point(params, "destination")], mode)

    def _transit(self, params: Mapping[str, str]) -> Reply:
        points = [_point(params, "origin"), _point(params, "destination")]
        for name in ("city1", "city2"):
            if not params.get(name):
                raise Refusal("20001")
            if params[name] not in _CITYCODES:
                raise Refusal("20000")
        legs = self._legs(points, "transit")
        cost = {"duration": str(_seconds(legs, "transit")), "transit_fee": str(round(2 + sum(legs) / 2000))}
        transit = {"cost": cost, "distance": str(round(sum(legs))), "walking_distance": "800", "segments": []}
        return success(count="1", route={"origin": params["origin"], "destination": params["destination"],
                                         "distance": str(round(sum(legs))), "cost": {"taxi_cost": "0"}, "transits": [transit]})


_CITYCODES = {p.adcode[:4] for p in PROVINCES}


def _seconds(legs: list[float], mode: str) -> int:
    return round(sum(legs) / (SPEED[mode] / 3.6))


