"""The shipped gazetteer: 16,048 real Chinese places with the two searches that the offline service answers from.

Keeps one ranking everywhere: exact name before prefix before substring; within each, population, then id. Read-only after
loading, so one instance serves any number of episodes. Data: GeoNames, CC BY 4.0 (data/NOTICE).
"""

from __future__ import annotations

import bisect
import functools
import gzip
import hashlib
import itertools
import math
import unicodedata
from pathlib import Path
from typing import Iterator, NamedTuple

from rti.envs.navigation.geometry import distance_m, format_pair
from rti.envs.navigation.provinces import BY_NAME, PROVINCES

DATA = Path(__file__).with_name("data") / "gazetteer.tsv.gz"

TEST_SHARE = 5
"""One name in this many is held out for test."""

_CELL = 0.25
_SUFFIXES = "市县区镇乡村"
_PUNCTUATION = str.maketrans({"’": "'", "‘": "'", "ʼ": "'", "`": "'", "–": "-", "—": "-", "ı": "i"})


class Place(NamedTuple):
    id: int
    name: str           # romanised, ASCII
    zh: str             # Chinese, or empty
    province: str       # English
    city: str           # nearest larger place of the province
    lng: float
    lat: float
    population: int

    @property
    def location(self) -> str:
        """`lng,lat` in the normal form."""
        return format_pair(self.lng, self.lat)


class Hit(NamedTuple):
    place: Place
    distance: float     # metres


def to_ascii(text: str) -> str:
    """Romanised text without accents or typographic quotes."""
    text = unicodedata.normalize("NFKD", text.translate(_PUNCTUATION))
    return "".join(c for c in text if c.isascii()).strip()


@functools.lru_cache(maxsize=65_536)
def fold(text: str) -> str:
    """What names are compared by: no accents, no case, single spaces. Chinese characters stay."""
    text = unicodedata.normalize("NFKD", text.translate(_PUNCTUATION))
    return " ".join("".join(c for c in text if not unicodedata.combining(c)).casefold().split())


def part(name: str) -> str:
    """`test` for a fifth of all names, else `train`. By name, so that namesakes are never on both sides."""
    digest = hashlib.sha256(fold(name).encode()).digest()
    return "test" if int.from_bytes(digest[:8], "big") % TEST_SHARE == 0 else "train"


class Gazetteer:
    def __init__(self, places: list[Place]) -> None:
        self.places = sorted(places, key=lambda p: (-p.population, p.id))
        self.by_id = {p.id: p for p in self.places}
        self._by_name: dict[str, list[Place]] = {}      # folded name, romanised or Chinese -> places, best first
        self._cells: dict[tuple[int, int], list[Place]] = {}
        self._cities: dict[str, set[tuple[str, str]]] = {}
        for place in self.places:
            for key in {fold(place.name), fold(place.zh)} - {""}:
                self._by_name.setdefault(key, []).append(place)
            self._cells.setdefault((math.floor(place.lng / _CELL), math.floor(place.lat / _CELL)), []).append(place)
            self._cities.setdefault(fold(place.city), set()).add((place.province, place.city))
        self._rank = {p.id: i for i, p in enumerate(self.places)}
        self._add_chinese_city_names()
        self._names = sorted(self._by_name)
        self._text = "\n" + "\n".join(self._names) + "\n"     # every name at once, for substring search
        self._starts = [0]
        for name in self._names:
            self._starts.append(self._starts[-1] + len(name) + 1)
        self._provinces = {}
        for p in PROVINCES:
            for alias in (p.name, f"{p.name} province", p.zh, p.zh_full, p.adcode, p.adcode[:2]):
                self._provinces[fold(alias)] = p.name

    def _add_chinese_city_names(self) -> None:
        for (province, city) in {pc for pcs in self._cities.values() for pc in pcs}:
            own = next((p for p in self._by_name.get(fold(city), ()) if p.province == province and p.zh), None)
            if own is not None:
                for alias in (own.zh, own.zh.removesuffix("市"), own.zh.removesuffix("市") + "市"):
                    self._cities.setdefault(fold(alias), set()).add((province, city))

    @staticmethod
    @functools.lru_cache(maxsize=4)
    def load(path: Path = DATA) -> Gazetteer:
        """The gazetteer in `path`. Loaded once a process."""
        with gzip.open(path, "rt", encoding="utf-8") as file:
            rows = [line.rstrip("\n").split("\t") for line in file]
        return Gazetteer([Place(int(r[0]), r[1], r[2], r[3], r[4], float(r[5]), float(r[6]), int(r[7])) for r in rows])

    # --- regions ---

    def province(self, region: str) -> str | None:
        """The English name of the province that `region` means (English, Chinese or adcode), or None."""
        return self._provinces.get(fold(region))

    def in_region(self, place: Place, region: str) -> bool:
        """Whether the place lies in the province or city named. A name that is both (Jilin) means the province."""
        key = fold(region)
        province = self._provinces.get(key)
        if province is not None:
            return place.province == province
        return (place.province, place.city) in self._cities.get(key, ())

    # --- searches ---

    def _names_beginning(self, key: str) -> Iterator[str]:
        """Names that begin with `key`, itself left out."""
        start = bisect.bisect_left(self._names, key)
        for name in itertools.islice(self._names, start, None):
            if not name.startswith(key):
                break
            if name != key:
                yield name

    def _names_containing(self, key: str) -> Iterator[str]:
        """Names that contain `key` but do not begin with it."""
        at = self._text.find(key)
        while at >= 0:
            index = bisect.bisect_right(self._starts, at - 1) - 1
            name = self._names[index]
            if not name.startswith(key):
                yield name
            at = self._text.find(key, self._starts[index + 1])

    def _tiers(self, keywords: str) -> Iterator[list[Place]]:
        """Exact matches, then prefix matches, then substring matches; each tier best first."""
        key = fold(keywords)
        if not key:
            return
        if key not in self._by_name and key[-1] in _SUFFIXES and key[:-1] in self._by_name:
            key = key[:-1]      # 武汉市 -> 武汉
        yield self._by_name.get(key, [])
        for names in (self._names_beginning(key), self._names_containing(key)):
            places = {p.id: p for n in names for p in self._by_name[n]}
            yield sorted(places.values(), key=lambda p: self._rank[p.id])

    def search(self, keywords: str, region: str = "", city_limit: bool = True, limit: int = 10) -> list[Place]:
        """Places by name. With `city_limit` a region filters; without, it only puts its own places first in each tier."""
        found: dict[int, Place] = {}
        for tier in self._tiers(keywords):
            if region:
                inside = [p for p in tier if self.in_region(p, region)]
                tier = inside if city_limit else inside + [p for p in tier if not self.in_region(p, region)]
            for place in tier:
                found.setdefault(place.id, place)
            if len(found) >= limit:
                break
        return list(found.values())[:limit]

    def around(self, lng: float, lat: float, radius_m: float, keyword: str = "", region: str = "",
               limit: int = 10) -> list[Hit]:
        """Places within a radius, nearest first. A keyword keeps the places whose name contains it."""
        key = fold(keyword)
        hits = []
        for place in self._near(lng, lat, radius_m):
            if key and key not in fold(place.name) and key not in fold(place.zh):
                continue
            if region and not self.in_region(place, region):
                continue
            distance = distance_m(lng, lat, place.lng, place.lat)
            if distance <= radius_m:
                hits.append(Hit(place, distance))
        hits.sort(key=lambda h: (h.distance, h.place.id))
        return hits[:limit]

    def _near(self, lng: float, lat: float, radius_m: float) -> Iterator[Place]:
        """Places in the grid cells that a circle touches (and some more)."""
        dlat = radius_m / 110_000 + 1e-9
        dlng = dlat / max(0.1, math.cos(math.radians(min(89.0, abs(lat) + dlat))))
        for x in range(math.floor((lng - dlng) / _CELL), math.floor((lng + dlng) / _CELL) + 1):
            for y in range(math.floor((lat - dlat) / _CELL), math.floor((lat + dlat) / _CELL) + 1):
                yield from self._cells.get((x, y), ())

    def nearest(self, lng: float, lat: float) -> Hit:
        """The nearest place of all."""
        radius = 20_000.0
        while True:
            hits = self.around(lng, lat, radius, limit=1)
            if hits or radius > 3e7:
                return hits[0]
            radius *= 4

    def adcode(self, place: Place) -> str:
        """The six digits of the place's province (finer divisions are not in the data)."""
        return BY_NAME[place.province].adcode

    part = staticmethod(part)
