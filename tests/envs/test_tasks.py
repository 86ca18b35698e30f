"""Task construction: what every task of a set keeps, the same set for the same seed, the command, queries by a model."""

from __future__ import annotations

import hashlib
import json
import random
import re
import shlex
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from aiohttp import web

from launch import data
from rti.config.schema import EndpointConfig
from rti.engines.endpoint import ChatEndpoint
from rti.envs.navigation import build, queries, writer
from rti.envs.navigation.gazetteer import Gazetteer, Place, part
from rti.envs.navigation.geometry import distance_m
from rti.envs.task_files import TaskFileError, read_tasks, write_tasks
from rti.envs.navigation.tasks import TooFewPlaces, full_trip, lab_trip, task_set
from tests.loopback import completions

SMALL = {"train": 12, "test": 6}


@pytest.fixture(scope="module")
def gazetteer():
    return Gazetteer.load()


@pytest.fixture(scope="module")
def sets(gazetteer):
    return {name: task_set(gazetteer, name) for name in ("lab", "full")}


def stops_of(task):
    return task.evidence["stops"]


@pytest.mark.parametrize("name", ["lab", "full"])
async def test_every_task_of_the_shipped_sets_passes_the_check(sets, name, tmp_path):
    write_tasks(tmp_path / "train.jsonl", sets[name].train)
    write_tasks(tmp_path / "test.jsonl", sets[name].test)
    report = await build.check(tmp_path, say=lambda _: None)
    assert report["train"]["tasks"] == 600 and report["test"]["tasks"] == 150
    for which in ("train", "test"):
        assert 0.6 < report[which]["ambiguous_share"] < 0.85


@pytest.mark.parametrize("name", ["lab", "full"])
def test_train_and_test_share_no_name_and_follow_the_split(sets, name):
    names = {w: {s["name"].casefold() for t in getattr(sets[name], w) for s in stops_of(t)} for w in ("train", "test")}
    assert not names["train"] & names["test"]
    assert all(part(n) == w for w, ns in names.items() for n in ns)
    assert len({t.id for t in [*sets[name].train, *sets[name].test]}) == 750


def test_lab_trips_keep_their_promises(gazetteer, sets):
    for task in [*sets["lab"].train, *sets["lab"].test]:
        stops = stops_of(task)
        a = stops[0]
        assert len(stops) == 3 and len({s["name"].casefold() for s in stops}) == 3
        assert {s["province"] for s in stops} == {a["province"]}
        assert gazetteer.search(a["name"], limit=1)[0].location == a["location"]
        lng, lat = map(float, a["location"].split(","))
        for s in stops:
            assert re.fullmatch(r"[A-Za-z ]{1,20}", s["name"])
            assert gazetteer.search(s["name"], a["province"], limit=1)[0].location == s["location"]
            x, y = map(float, s["location"].split(","))
            assert (x - lng) ** 2 + (y - lat) ** 2 <= 0.7 ** 2 + 1e-9
        wrong = [s for s in stops[1:] if gazetteer.search(s["name"], limit=1)[0].location != s["location"]]
        assert task.cls == ("ambiguous" if wrong else "plain")
        assert task.evidence["order_level"] in (0, 1, 3, 4) and a["province"] not in task.data["query"].split()
        at = [task.data["query"].index(s["name"]) for s in stops]
        assert at[0] == min(at)
        assert task.evidence["reference"] == {
            "origin": a["location"], "waypoints": [stops[1]["location"]], "destination": stops[2]["location"]}


def test_full_trips_have_3_to_9_waypoints_within_50_km_of_the_anchor(gazetteer, sets):
    counts, levels = set(), set()
    for task in [*sets["full"].train, *sets["full"].test]:
        stops = stops_of(task)
        points = [tuple(map(float, s["location"].split(","))) for s in stops]
        assert max(distance_m(*points[0], *p) for p in points) <= 50_001
        counts.add(len(task.evidence["reference"]["waypoints"]))
        levels.add(task.evidence["order_level"])
    assert counts == set(range(3, 10)) and levels == set(range(5))


def test_the_same_seed_gives_the_same_tasks_and_another_others(gazetteer):
    for name in ("lab", "full"):
        first, again, other = (task_set(gazetteer, name, seed, SMALL) for seed in (1, 1, 2))
        assert msgspec.json.encode(first) == msgspec.json.encode(again) != msgspec.json.encode(other)


@pytest.mark.parametrize("name, digest", [
    ("lab", "d2ea7706ed946357038f205e55aed304"), ("full", "d38376ea4de551045c9412ece77b0d63")])
def test_the_named_sets_are_what_published_results_were_measured_on(sets, name, digest):
    """A change here makes results before and after it incomparable: mean it, and say so in the documentation."""
    assert hashlib.md5(msgspec.json.encode(sets[name])).hexdigest() == digest


def test_fresh_lab_trips_of_a_part_hold_names_of_that_part(gazetteer):
    rng = random.Random(0)
    for which in ("train", "test"):
        trips = [lab_trip(gazetteer, rng, which) for _ in range(50)]
        assert {part(s["name"]) for t in trips for s in stops_of(t)} == {which}


def place(number, name, province="Hubei", lng=112.0, population=0):
    return Place(number, name, "", province, "Wuhan", lng, 30.0 + number / 100, population)


def test_a_gazetteer_too_small_is_refused_not_searched_for_ever():
    names = [n for n in ("Aaa", "Bbb", "Ccc", "Ddd", "Eee", "Fff", "Ggg") if part(n) == "train"][:4]
    few = [place(i, n) for i, n in enumerate(names)]
    with pytest.raises(TooFewPlaces, match="no start for train"):
        lab_trip(Gazetteer(few[:0]), random.Random(0))
    with pytest.raises(TooFewPlaces, match="lab trip for train in"):
        lab_trip(Gazetteer(few[:2]), random.Random(0))
    with pytest.raises(TooFewPlaces, match="no full trip"):
        full_trip(Gazetteer(few), random.Random(0))
    with_namesake = [*few, place(9, names[0], "Hunan", 110.0, population=5)]
    with pytest.raises(TooFewPlaces, match="different lab tasks for train, not 50"):
        task_set(Gazetteer(with_namesake), "lab", sizes={"train": 50})


@pytest.mark.parametrize("query, says", [
    ("Drive from Aa via Bb to Cc.", ""), ("Drive from Aa via Cc to Bb.", "order"), ("Drive from Aa to Cc.", "names Bb 0 times"),
    ("Aa, Bb, Cc and Aa", "names Aa 2 times"), ("Aa, Bb, Cc at 114.3,30.5", "coordinates"), ("Aa, Bbx, Cc", "names Bb 0 times"),
])
def test_the_filter_checks_a_query_against_its_stops(query, says):
    problem = queries.problem_of(query, ["Aa", "Bb", "Cc"])
    assert says in problem and bool(says) == bool(problem)


def test_a_name_within_another_counts_for_itself():
    assert queries.problem_of("From Xin Jie to Xin.", ["Xin Jie", "Xin"]) == ""
    assert queries.problem_of("From Xin Jie to Xinhe.", ["Xin Jie", "Xin"]) != ""


def test_the_command_builds_checks_and_reports(tmp_path, capsys):
    out = tmp_path / "set"
    assert data.main(["navigation", "--out", str(out), "--train", "5", "--test", "3", "--seed", "9"]) == 0
    assert json.loads((out / "meta.json").read_text())["train"]["tasks"] == 5
    assert len(read_tasks(out / "train.jsonl")) == 5 and len(read_tasks(out / "test.jsonl")) == 3
    assert "5 of 5 reference solutions score 1" in capsys.readouterr().out
    assert data.main(["navigation", "--out", str(out), "--check"]) == 0


def test_the_check_finds_what_is_wrong(tmp_path, capsys, gazetteer):
    split = task_set(gazetteer, "lab", 1, SMALL)
    t = split.train
    lost = {**t[2].evidence, "reference": {**t[2].evidence["reference"], "origin": "100,30"}}
    broken = [
        msgspec.structs.replace(t[0], cls="plain" if t[0].cls == "ambiguous" else "ambiguous"),
        msgspec.structs.replace(t[1], data={**t[1].data, "query": "Drive somewhere."}),
        msgspec.structs.replace(t[2], evidence=lost),
        t[3], t[3], msgspec.structs.replace(split.test[0], id="leaked")]
    write_tasks(tmp_path / "train.jsonl", broken)
    write_tasks(tmp_path / "test.jsonl", split.test)
    assert data.main(["navigation", "--out", str(tmp_path), "--check"]) == 1
    said = capsys.readouterr().err
    for what in ("plain search says otherwise", "names", "reference solution scores 0", "occurs 2 times",
                 "is in train and in test"):
        assert what in said


def test_task_files_that_are_none_are_refused(tmp_path, capsys):
    (tmp_path / "train.jsonl").write_text('{"id": "a"}\n')
    with pytest.raises(TaskFileError, match="line 1 of"):
        read_tasks(tmp_path / "train.jsonl")
    assert data.main(["navigation", "--out", str(tmp_path / "none"), "--check"]) == 1
    assert "mend: make one" in capsys.readouterr().err


@pytest.mark.parametrize("words", [
    ["navigation", "--endpoint", "http://127.0.0.1:1/v1"], ["navigation", "--split", "huge"], ["navigation", "--train", "-3"],
    [],
    ["navigation", "--endpoint", "http://127.0.0.1:1/v1", "--model", "m"],
])
def test_wrong_usage_is_refused(words):
    with pytest.raises(SystemExit) as e:
        data.main(words)
    assert e.value.code == 2


# --- queries by a model ---

@asynccontextmanager
async def model(answer):
    """An OpenAI-compatible service on loopback that answers with `answer(prompt)`."""
    async def handle(request):
        prompt = (await request.json())["messages"][-1]["content"]
        return web.json_response({"choices": [{"message": {"role": "assistant", "content": answer(prompt)}}]})

    async with completions(handle) as url:
        endpoint = ChatEndpoint(EndpointConfig(base_url=url, model="writer-1"))
        try:
            yield endpoint
        finally:
            await endpoint.close()


def level_asked(prompt):
    return next(n for n, text in writer.FREEDOM.items() if text in prompt)


def diligent(prompt):
    """Writes with a mark of the level in the text, and reads the level back from the mark."""
    if prompt.startswith("Write"):
        names = re.search(r"in list order: (.*)", prompt)[1].split("; ")
        return f'<think>hm</think>"Please take me to {" and ".join(names)}, freedom{level_asked(prompt)}."'
    return re.search(r"freedom(\d)", prompt)[1]


async def test_a_models_queries_are_taken_where_filter_and_level_agree(tmp_path, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    async with model(diligent) as endpoint:
        report = await build.build("full", tmp_path, 3, {"train": 6, "test": 3}, endpoint, say=lambda _: None)
    assert report["queries"] == {"model": "writer-1", "template_kept": 0, "refused_by_filter": 0, "refused_by_level": 0}
    tasks = read_tasks(tmp_path / "train.jsonl")
    assert all(t.data["query"].startswith("Please take me") and t.data["written_by"] == "writer-1" for t in tasks)


@pytest.mark.parametrize("answer, refused", [
    (lambda p: "Take me somewhere." if p.startswith("Write") else "0", {"refused_by_filter": 27, "refused_by_level": 0}),
    (lambda p: diligent(p) if p.startswith("Write") else "It is 1 or 2", {"refused_by_filter": 0, "refused_by_level": 27}),
])
async def test_queries_that_do_not_fit_leave_the_template(tmp_path, monkeypatch, answer, refused):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    async with model(answer) as endpoint:
        report = await build.build("full", tmp_path, 3, {"train": 6, "test": 3}, endpoint, say=lambda _: None)
    assert report["queries"] == {"model": "writer-1", "template_kept": 9, **refused}


def test_a_dead_endpoint_ends_the_command_with_its_message(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("rti.engines.endpoint.FIRST_WAIT_S", 0.0)
    words = ["navigation", "--split", "full", "--out", str(tmp_path), "--train", "2", "--test", "1"]
    assert data.main([*words, "--endpoint", "http://127.0.0.1:9/v1", "--model", "m"]) == 2
    assert "the endpoint http://127.0.0.1:9/v1 did not answer" in capsys.readouterr().err
    assert not (tmp_path / "train.jsonl").exists()


def test_the_commands_in_the_documentation_are_ones_that_the_programs_take():
    text = (Path(data.__file__).parents[1] / "docs" / "navigation.md").read_text(encoding="utf-8")
    commands = re.findall(r"^python (.*)$", text, re.MULTILINE)
    built = [shlex.split(c.removeprefix("launch/data.py ")) for c in commands if c.startswith("launch/data.py")]
    assert len(built) == 4 and all(data.parse(words).command == "navigation" for words in built)
    modules = [shlex.split(c)[1] for c in commands if c.startswith("-m ")]
    assert modules == ["rti.envs.navigation.server", "rti.envs.navigation.build_gazetteer"]
    for module in modules:
        shown = subprocess.run([sys.executable, "-m", module, "--help"], capture_output=True, text=True, timeout=60)
        assert shown.returncode == 0 and "usage:" in shown.stdout
