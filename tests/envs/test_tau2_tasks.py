"""Training tasks: those made here keep the policies and must be worked for, files in the published form load, faults are named.

RTI_TAU2_DATA tests with other official data as well.
"""

from __future__ import annotations

import functools
import json
import os
import shutil

import pytest

pytest.importorskip("tau2.registry", reason="needs the extra tau2")

from launch import data  # noqa: E402
from rti.config.schema import Tau2Config  # noqa: E402
from rti.envs.base import FatalEnvironmentError  # noqa: E402
from rti.envs.tau2 import official  # noqa: E402
from rti.envs.tau2.domain import load_domain  # noqa: E402
from rti.envs.tau2.tasks import airline, build, files, retail  # noqa: E402
from rti.envs.tau2.tasks.check import conversation, official_reward, problem_of  # noqa: E402
from rti.envs.tau2.tasks.effects import NOTHING, as_set, effect_of  # noqa: E402
from rti.envs.task_files import TaskFileError  # noqa: E402
from rti.envs.tau2.tasks.files import PUBLISHED, TrainingTask, official_task  # noqa: E402
from rti.envs.tau2.tasks.generate import COUNTS, TooFewTasks, generate  # noqa: E402
from rti.envs.tau2.tasks.goal import Call, kinds_of, money  # noqa: E402
from rti.envs.tau2.tasks.source import training_tasks  # noqa: E402

DATA_DIR = os.environ.get("RTI_TAU2_DATA", "")
MADE = ("retail", "airline")


def domain(name):
    return load_domain(name, DATA_DIR)


@functools.cache
def made(name):
    return generate(domain(name))


@functools.cache
def database(name):
    return official.load().utils.load_file(domain(name).data / "domains" / name / "db.json")


def writes(row, *names):
    return [a["arguments"] for a in row["evaluation_criteria"]["actions"] if a["name"] in names]


def asked(row):
    return row["user_scenario"]["instructions"]["reason_for_call"]


# ---- the sets --------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name, kinds", [("retail", len(retail.GOALS)), ("airline", len(airline.GOALS))])
def test_a_set_has_the_paper_s_size_and_every_kind_of_goal(name, kinds):
    rows = made(name)
    assert len(rows) == len({r["id"] for r in rows}) == COUNTS[name]
    seen = {k for r in rows for k in kinds_of(r)}
    assert len(seen) == kinds + (name == "airline")      # a change of cabin is an upgrade or a downgrade
    assert {len(kinds_of(r)) for r in rows} == {1, 2, 3}


@pytest.mark.parametrize("name", MADE)
def test_the_same_seed_gives_the_same_tasks_and_another_seed_others(name):
    assert generate(domain(name), 12) == made(name)[:12]
    assert [asked(r) for r in generate(domain(name), 12, seed=1)] != [asked(r) for r in made(name)[:12]]


@pytest.mark.parametrize("name", MADE)
def test_every_task_changes_the_database_as_no_other_and_no_base_task_does(name):
    before = domain(name).fingerprint()
    base = {as_set(domain(name).gold(t)) for t in domain(name).tasks("base")}
    effects = [as_set(domain(name).gold(official_task(r))) for r in made(name)]
    assert len(set(effects)) == len(effects)
    assert not set(effects) & (base | {NOTHING})
    assert domain(name).fingerprint() == before


@pytest.mark.parametrize("name", MADE)
def test_the_official_evaluator_gives_the_reference_one_and_nothing_zero(name):
    rows = made(name)
    for row in rows[::len(rows) // 12]:
        assert problem_of(domain(name), official_task(row)) == "", row["id"]


@pytest.mark.parametrize("name", MADE)
def test_no_reference_call_is_answered_by_an_error(name):
    tool_message = official.load().message.ToolMessage
    for row in made(name):
        said = conversation(domain(name), official_task(row), solve=True)
        assert not [m.content for m in said if isinstance(m, tool_message) and m.error], row["id"]


def test_the_check_refuses_what_cannot_be_solved_and_what_needs_nothing():
    row = made("retail")[0]
    nothing = {**row, "evaluation_criteria": {**row["evaluation_criteria"], "actions": [], "communicate_info": []}}
    assert problem_of(domain("retail"), official_task(nothing)) == "doing nothing scores 1"
    silent = official_task({**row, "evaluation_criteria": {**row["evaluation_criteria"], "communicate_info": ["1234.56"]}})
    assert official_reward(domain("retail"), silent, conversation(domain("retail"), silent, solve=False)) == 0.0
    twice = [TrainingTask(official_task(row)), TrainingTask(official_task({**row, "id": "again"}))]
    with pytest.raises(build.CheckFailed, match=f"again: it changes the database as {row['id']} does"):
        build.check(domain("retail"), twice, say=lambda line: None)


def test_more_tasks_than_the_database_holds_are_refused(monkeypatch):
    monkeypatch.setattr("rti.envs.tau2.tasks.generate.MOST_DRAWS", 1)
    with pytest.raises(TooFewTasks, match="of 20 different tasks in 20 draws; mend: ask for fewer"):
        generate(domain("airline"), 20)


# ---- the policies, told from the database alone ----------------------------------------------------------------------

def test_retail_tasks_keep_the_retail_policy():
    db = database("retail")
    for row in made("retail"):
        for a in writes(row, "cancel_pending_order", "modify_pending_order_items", "modify_pending_order_payment",
                        "modify_pending_order_address"):
            assert db["orders"][a["order_id"]]["status"] == "pending", row["id"]
        for a in writes(row, "return_delivered_order_items", "exchange_delivered_order_items"):
            assert db["orders"][a["order_id"]]["status"] == "delivered", row["id"]
        for a in writes(row, "return_delivered_order_items"):
            original = db["orders"][a["order_id"]]["payment_history"][0]["payment_method_id"]
            assert a["payment_method_id"] == original or a["payment_method_id"].startswith("gift_card"), row["id"]
        touched = [a["order_id"] for a in writes(row, "cancel_pending_order", "modify_pending_order_items",
                                                 "modify_pending_order_payment", "return_delivered_order_items",
                                                 "exchange_delivered_order_items")]
        assert len(touched) == len(set(touched)), row["id"]     # items of an order are changed, returned or exchanged once


def test_a_wanted_item_follows_from_what_the_user_says():
    db = database("retail")
    for row in made("retail"):
        for a in writes(row, "exchange_delivered_order_items", "modify_pending_order_items"):
            items = {i["item_id"]: i for i in db["orders"][a["order_id"]]["items"]}
            for old, new in zip(a["item_ids"], a["new_item_ids"], strict=True):
                variants = db["products"][items[old]["product_id"]]["variants"]
                others = [v for v in variants.values() if v["item_id"] != old and v["available"]]
                least = min(v["price"] for v in others)
                named = all(f"{k} {v}" in asked(row) for k, v in variants[new]["options"].items()
                            if items[old]["options"].get(k) != v)
                assert named or "the cheapest other one" in asked(row) and variants[new]["price"] == least, row["id"]
                assert variants[new]["available"], row["id"]


def test_airline_tasks_keep_the_airline_policy():
    db = database("airline")
    for row in made("airline"):
        user = db["users"][writes(row, "get_user_details")[0]["user_id"]]
        for a in writes(row, "cancel_reservation", "update_reservation_flights", "update_reservation_baggages",
                        "update_reservation_passengers"):
            r = db["reservations"][a["reservation_id"]]
            states = {db["flights"][f["flight_number"]]["dates"][f["date"]]["status"] for f in r["flights"]}
            assert r["user_id"] == user["user_id"] and not states & {"landed", "flying"}, row["id"]
        for a in writes(row, "cancel_reservation"):
            r = db["reservations"][a["reservation_id"]]
            states = {db["flights"][f["flight_number"]]["dates"][f["date"]]["status"] for f in r["flights"]}
            covered = r["insurance"] == "yes" and any(word in asked(row) for word in ("fallen ill", "storms are forecast"))
            assert r["cabin"] == "business" or r["created_at"] >= "2024-05-14T15:00:00" or "cancelled" in states or covered
        for a in writes(row, "update_reservation_flights"):
            r = db["reservations"][a["reservation_id"]]
            same_flights = a["flights"] == [{"flight_number": f["flight_number"], "date": f["date"]} for f in r["flights"]]
            assert same_flights or r["cabin"] == a["cabin"] != "basic_economy", row["id"]
            legs = [db["flights"][f["flight_number"]] for f in a["flights"]]
            assert (legs[0]["origin"], r["origin"]) == (r["origin"], legs[0]["origin"])
            assert all(x["destination"] == y["origin"] for x, y in zip(legs, legs[1:])), row["id"]
            assert legs[-1]["destination"] == r["flights"][-1]["destination"], row["id"]
            assert not a["payment_id"].startswith("certificate"), row["id"]
        for a in writes(row, "book_reservation"):
            assert len(a["payment_methods"]) == 1 and len(a["passengers"]) <= 5, row["id"]


def test_bags_that_cost_are_those_beyond_the_free_ones():
    db = database("airline")
    free = {("regular", "economy"): 1, ("regular", "business"): 2, ("silver", "basic_economy"): 1, ("silver", "economy"): 2,
            ("silver", "business"): 3, ("gold", "basic_economy"): 2, ("gold", "economy"): 3, ("gold", "business"): 4}
    for row in made("airline"):
        for a in [*writes(row, "update_reservation_baggages"), *writes(row, "book_reservation")]:
            r = db["reservations"].get(a.get("reservation_id"), a)
            membership = db["users"][r["user_id"]]["membership"]
            allowed = free.get((membership, r["cabin"]), 0) * len(r["passengers"])
            assert a["nonfree_baggages"] == max(0, a["total_baggages"] - allowed), row["id"]


def test_certificates_are_of_the_policy_s_amounts():
    db = database("airline")
    seen = 0
    for row in made("airline"):
        for a in writes(row, "send_certificate"):
            seen += 1
            kinds = kinds_of(row)
            each = 50 if "compensation for a delayed flight" in kinds else 100
            looked_at = [w["reservation_id"] for w in writes(row, "get_reservation_details")]
            parties = {len(db["reservations"][r]["passengers"]) for r in looked_at}
            assert a["amount"] in {each * p for p in parties}, row["id"]
    assert seen > 5


def test_an_amount_is_found_however_it_is_written():
    assert [money(x) for x in (54.1, 3646.68, 20.0)] == ["54.1", "3646.68", "20"]
    assert money(54.1) in "you get $54.10 back" and money(54.1) in "54.1 dollars"


def test_calls_over_the_domain_leave_it_as_it_was():
    before = domain("retail").fingerprint()
    row = next(r for r in made("retail") if writes(r, "cancel_pending_order"))
    arguments = writes(row, "cancel_pending_order")[0]
    effect = effect_of(domain("retail"), [Call("cancel_pending_order", arguments)])
    assert {key[1:] for key, _ in effect} >= {("orders", arguments["order_id"])}
    assert domain("retail").fingerprint() == before


# ---- telecom, and the task set ---------------------------------------------------------------------------------------

def test_telecom_trains_on_the_full_set_outside_the_base_split():
    tasks = [t.task.id for t in training_tasks(domain("telecom"), "auto")]
    assert len(tasks) == len(set(tasks)) == 2171
    assert not set(tasks) & set(domain("telecom").splits["base"])


@pytest.mark.parametrize("name, train, test", [("retail", 563, 114), ("airline", 271, 50), ("telecom", 2171, 114)])
def test_the_task_set_trains_on_them_and_tests_on_the_base_split(name, train, test):
    from rti.envs.tau2.taskset import Tau2TaskSet
    config = Tau2Config(domain=name, data_dir=DATA_DIR, user="llm", nl_assertions="skip")
    config.user_endpoint.base_url, config.user_endpoint.model = "http://127.0.0.1:9/v1", "nobody"
    tasks = Tau2TaskSet(config, lambda endpoint, role: None)
    assert (len(tasks.train), len(tasks.test)) == (train, test)
    assert not {t.id for t in tasks.train} & {t.id for t in tasks.test}


# ---- files -----------------------------------------------------------------------------------------------------------

def test_a_file_that_was_written_gives_its_tasks_back(tmp_path):
    files.write(tmp_path / "airline.jsonl", made("airline")[:20])
    found = training_tasks(domain("airline"), str(tmp_path / "airline.jsonl"))
    assert [t.task for t in found] == [official_task(r) for r in made("airline")[:20]]
    assert {t.db for t in found} == {""}


def published(folder, rows=4):
    """A folder in the form of AReaL-tau2-data: two domains, one id twice, criteria as text, a snapshot each."""
    database_folder = folder / "tau2_rl_database"
    database_folder.mkdir(parents=True)
    lines = []
    for name in MADE:
        snapshot = database_folder / f"tau2_{name}_new_db_1.json"
        shutil.copy(domain(name).data / "domains" / name / "db.json", snapshot)
        for row in made(name)[:rows]:
            actions = [{k: a[k] for k in ("name", "arguments")} for a in row["evaluation_criteria"]["actions"]]
            criteria = {"actions": actions, "communicate_info": row["evaluation_criteria"]["communicate_info"]}
            lines.append({"id": "airline_1", "description": {"purpose": "as published"}, "user_scenario": row["user_scenario"],
                          "evaluation_criteria": json.dumps(criteria), "db_path": f"tau2_rl_database/{snapshot.name}"})
    (folder / PUBLISHED).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return lines


@pytest.mark.parametrize("name", MADE)
def test_published_rows_are_told_apart_and_belong_to_the_domain_that_they_name(tmp_path, name):
    published(tmp_path)
    found = training_tasks(domain(name), str(tmp_path))
    assert len({t.task.id for t in found}) == len(found) == 4       # every row has the id airline_1
    assert {os.path.basename(t.db) for t in found} == {f"tau2_{name}_new_db_1.json"}
    snapshot = load_domain(name, DATA_DIR, found[0].db)
    assert problem_of(snapshot, found[0].task) == ""


def spoil(folder, change):
    lines = published(folder)
    change(lines)
    (folder / PUBLISHED).write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize("change, message", [
    (lambda rows: rows[1].update(db_path="tau2_rl_database/gone.json"), "line 2 .* names the database snapshot .*gone.json"),
    (lambda rows: rows[1].update(db_path="../../etc/passwd"), "line 2 .* outside the file's folder"),
    (lambda rows: rows[2].update(evaluation_criteria='{"actions": ['), "evaluation_criteria in line 3 .* are not JSON"),
    (lambda rows: rows[0].update(user_scenario={"instructions": {"domain": "retail"}}), "line 1 .* is no official task"),
    (lambda rows: rows[3].pop("user_scenario"), "line 4 .* it has no user_scenario"),
    (lambda rows: rows[0].update(id="x", db_path="", user_scenario={"instructions": "Hello"}),
     "line 1 .* does not say which domain"),
])
def test_a_row_that_cannot_be_used_is_named_by_its_line(tmp_path, change, message):
    spoil(tmp_path, change)
    with pytest.raises(TaskFileError, match=message):
        files.read(tmp_path, "retail")


def test_a_file_that_is_cut_short_or_of_another_kind_is_refused(tmp_path):
    published(tmp_path)
    whole = (tmp_path / PUBLISHED).read_bytes()
    (tmp_path / "cut.jsonl").write_bytes(whole[:len(whole) - 100])
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe\x00PK")
    (tmp_path / "empty.jsonl").write_bytes(b"")
    for name, message in [("cut.jsonl", "line 8 .* cut short"), ("binary.jsonl", "not UTF-8"),
                          ("empty.jsonl", "holds no retail task .it holds nothing."), ("none.jsonl", "cannot read")]:
        with pytest.raises(FatalEnvironmentError, match=f"env.tau2.tasks: .*{message}"):
            training_tasks(domain("retail"), str(tmp_path / name))
    with pytest.raises(TaskFileError, match="holds no telecom task .it holds .'retail': 4, 'airline': 4"):
        files.read(tmp_path, "telecom")


# ---- the command ---------------------------------------------------------------------------------------------------------

def test_the_command_writes_checked_tasks_and_checks_what_is_there(tmp_path, capsys):
    out = tmp_path / "made" / "retail.jsonl"
    options = ["tau2", "--domain", "retail", "--data-dir", DATA_DIR]
    assert data.main([*options, "--out", str(out), "--count", "4", "--seed", "3"]) == 0
    report = json.loads(capsys.readouterr().out.partition("\n")[2])
    assert (report["tasks"], report["checked"], report["seed"]) == (4, 4, 3) and sum(report["goals"].values()) >= 4
    assert len(training_tasks(domain("retail"), str(out))) == 4
    assert data.main([*options, "--check", str(out)]) == 0


def test_the_command_writes_nothing_that_fails_the_check(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(build, "problem_of", lambda d, task: "its reference scores 0")
    out = tmp_path / "airline.jsonl"
    assert data.main(["tau2", "--domain", "airline", "--data-dir", DATA_DIR, "--out", str(out), "--count", "2"]) == 1
    assert "2 problems in 2 airline tasks" in capsys.readouterr().err and not out.exists()
    assert data.main(["tau2", "--domain", "airline", "--check", str(out)]) == 1
    assert data.main(["tau2", "--domain", "airline", "--data-dir", str(tmp_path)]) == 2
