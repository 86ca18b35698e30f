"""The rule-based roles for navigation: their judgements one by one, and a whole rescue in the real environment."""

import msgspec
import pytest

from rti.config.schema import InterventionConfig, NavigationConfig, RoleConfig, RolloutConfig
from rti.envs.navigation.gazetteer import Gazetteer
from rti.envs.navigation.tasks import task_set
from rti.envs.navigation.taskset import in_process_environment
from rti.envs.navigation.tools import TOOLS
from rti.mas import guards
from rti.mas.pipeline import build_pipeline
from rti.mas.roles import RoleContext
from rti.mas.rules import navigation as rules
from rti.rollout import run_episode
from rti.trajectory import Message, ToolCall
from tests.mas.scripted import ScriptedEngine, byte_chat, say

A, B, C, NAMESAKE = "87.1,43.2", "87.3,43.4", "87.5,43.6", "110.5,25.3"
EVIDENCE = {
    "order_level": 4, "reference": {"origin": A, "waypoints": [B], "destination": C},
    "stops": [{"name": n, "province": "Xinjiang", "location": at}
              for n, at in (("Xindian", A), ("Dongshan", B), ("Beishan", C))],
}
USER = Message(role="user", content="Drive from Xindian via Dongshan to Beishan.")


def turn(*calls, content=""):
    return Message(role="assistant", content=content, tool_calls=[
        ToolCall(name=n, arguments=a, id=f"call_{i}") for i, (n, a) in enumerate(calls)])


def search(*names, region=None):
    return turn(*(("poi_search", {"address": n} | ({"region": region} if region else {})) for n in names))


def route(*places, **more):
    o, *w, d = places
    return turn(("direction", {"origin": o, "destination": d, "mode": "driving", "waypoints": w, **more}))


def replies(*texts):
    return [Message(role="tool", content=t, tool_call_id=f"call_{i}") for i, t in enumerate(texts)]


FOUND = [USER, search("Xindian", "Dongshan", "Beishan"),
         *replies(f"Xindian, Xinjiang {A}", f"Dongshan, Guangxi {NAMESAKE}", "no match")]
ALL = [*FOUND, search("Dongshan", "Beishan", region="Xinjiang"),
       *replies(f"Dongshan, Xinjiang {B}", f"Beishan, Xinjiang {C}")]


def ctx(history, draft, evidence=EVIDENCE, **more):
    return RoleContext(tools=TOOLS, history=history, draft=draft, evidence=evidence, **more)


@pytest.mark.parametrize("history,draft,error", [
    ([USER], search("Xindian", "Dongshan", "Beishan"), ""),
    ([USER], search("Xindian", "Xindian"), "POINTLESS_REPEAT"),
    ([USER], search("Xindian", " xindian "), "POINTLESS_REPEAT"),
    (FOUND, search("Dongshan"), "POINTLESS_REPEAT"),
    (FOUND, search("Beishan"), "POINTLESS_REPEAT"),                           # it has clearly failed before
    (FOUND, search("Dongshan", "Beishan", region="Xinjiang"), ""),
    (FOUND, search("Dongshan", region="Tibet"), ""),                          # of no use, but recoverable
    ([USER, search("Xindian"), *replies("error: try again")], search("Xindian"), ""),
    (FOUND, route(A, NAMESAKE, C), "FABRICATED_ARGUMENTS"),                   # C was never returned
    (FOUND, route(A, B, C), "FABRICATED_ARGUMENTS"),                          # right, but not known yet
    (ALL, route(A, "87.3,43.5", C), "FABRICATED_ARGUMENTS"),
    (FOUND, route(A, NAMESAKE, NAMESAKE), "ARGUMENT_MISMATCH"),
    (ALL, route(A, NAMESAKE, C), "ARGUMENT_MISMATCH"),
    (FOUND, route(A, A), "PREMATURE_TERMINATION"),
    (ALL, route(A, B, C), ""),
    (ALL, route("87.100000,43.20", B, "87.5 43.6"), ""),
    (ALL, route(A, C, B), "ARGUMENT_MISMATCH"),                               # the order was fixed
    (ALL, route(A, C), "ARGUMENT_MISMATCH"),                                  # a stop left out
    (ALL, turn(content="All done!"), "PREMATURE_TERMINATION"),
    (ALL, turn(), "PREMATURE_TERMINATION"),
    ([*ALL, route(A, B, C), *replies("ok 80 km")], turn(content="Done."), ""),
    ([*ALL, route(A, B, C), *replies("error: no road")], turn(content="Done."), "PREMATURE_TERMINATION"),
    ([*ALL, route(A, C, B), *replies("ok 80 km")], turn(content="Done."), "PREMATURE_TERMINATION"),
])
def test_the_validator(history, draft, error):
    validation = rules.validate(ctx(history, draft))
    assert validation.error_types == ([error] if error else []) and validation.is_valid == (not error)
    assert validation.diagnosis and bool(validation.suggest_next) == bool(error)


@pytest.mark.parametrize("level,routes", [
    (0, ["ABC", "CBA", "BCA"]), (1, ["ABC", "ACB"]), (2, ["ABC", "BAC"]), (3, ["ABC"]), (4, ["ABC"])])
def test_the_validator_goes_by_the_order_level(level, routes):
    evidence, place = {**EVIDENCE, "order_level": level}, {"A": A, "B": B, "C": C}
    for r in ("ABC", "ACB", "BAC", "BCA", "CAB", "CBA"):
        draft = route(*(place[p] for p in r))
        expected = r in routes or level == 0
        assert rules.validate(ctx(ALL, draft, evidence)).is_valid == expected


def test_a_direction_reply_returns_no_coordinates():
    history = [*FOUND, route(A, B, C), *replies(f"error: no road between {B} and {C}")]
    assert rules.validate(ctx(history, route(A, B, C))).error_types == ["FABRICATED_ARGUMENTS"]


def test_the_corrector_searches_all_missing_stops_in_one_turn_with_the_region_that_the_history_shows():
    correction = rules.correct(ctx(FOUND, route(A, NAMESAKE, NAMESAKE)))
    assert correction.reasoning == "Look again." and correction.content == ""
    assert correction.tool_calls == [ToolCall(name="poi_search", arguments={"address": n, "region": "Xinjiang"})
                                     for n in ("Dongshan", "Beishan")]


def test_the_corrector_calls_direction_when_all_is_found():
    correction = rules.correct(ctx(ALL, route(A, NAMESAKE, C)))
    assert correction.reasoning == "All found."
    assert correction.tool_calls == [ToolCall(name="direction", arguments={
        "origin": A, "destination": C, "mode": "driving", "waypoints": [B]})]
    assert list(correction.tool_calls[0].arguments) == ["origin", "waypoints", "destination", "mode"]


def test_the_corrector_begins_with_a_plain_search():
    correction = rules.correct(ctx([USER], turn(content="I know the way.")))
    assert correction.reasoning == "Find the places."
    assert [c.arguments for c in correction.tool_calls] == [{"address": n} for n in ("Xindian", "Dongshan", "Beishan")]


def test_the_corrector_uses_a_region_that_the_user_named():
    user = Message(role="user", content="Drive from Xindian to Dongshan, all in Xinjiang.")
    assert all(c.arguments["region"] == "Xinjiang" for c in rules.correct(ctx([user], turn())).tool_calls)


def test_where_the_region_did_not_help_the_corrector_searches_around_a_right_place():
    history = [*FOUND, search("Dongshan", "Beishan", region="Xinjiang"),
               *replies("Dongshan, Xinjiang 80.1,40.1", f"Beishan, Xinjiang {C}")]
    correction = rules.correct(ctx(history, route(A, NAMESAKE, C)))
    assert correction.tool_calls == [ToolCall(name="around_search", arguments={
        "location": A, "radius": 50000, "keyword": "Dongshan"})]
    assert guards.schema_violation(correction.tool_calls[0], TOOLS) == ""


def test_another_province_is_reached_by_a_search_around():
    stops = [*EVIDENCE["stops"][:2], {**EVIDENCE["stops"][2], "province": "Qinghai"}]
    correction = rules.correct(ctx(FOUND, route(A, NAMESAKE, NAMESAKE), {**EVIDENCE, "stops": stops}))
    assert [c.name for c in correction.tool_calls] == ["poi_search", "around_search"]


def test_the_corrector_offers_nothing_where_the_history_shows_no_way():
    history = [USER, search("Xindian", "Dongshan", "Beishan"), *replies("no match", "no match", "no match")]
    correction = rules.correct(ctx(history, turn(content="Sorry.")))
    assert correction.tool_calls == [] and correction.content == ""


def check(history, correction, draft=turn(content="d")):
    return rules.verify(ctx(history, draft, correction=correction))


@pytest.mark.parametrize("history,correction,reason", [
    (FOUND, search("Dongshan", "Beishan", region="Xinjiang"), None),
    (ALL, route(A, B, C), None),
    (FOUND, route(A, B, C), "not_derivable"),
    (FOUND, search("Dongshan", region="Qinghai"), "not_derivable"),
    (FOUND, search("Nanshan"), "not_derivable"),
    (FOUND, turn(content=f"It must be at {B}."), "not_derivable"),
    (ALL, turn(content="The reference route is fine."), "leak"),
    (ALL, turn(content="Better than my draft."), "leak"),
    (ALL, turn(content="d"), "unreasonable_calibration"),
])
def test_the_verifier(history, correction, reason):
    verdict = check(history, correction)
    assert verdict.ok == (reason is None) and verdict.reasons == ([reason] if reason else [])


def test_without_a_correction_there_is_nothing_to_let_pass():
    assert not check(ALL, None).ok


# --- in the real environment ------------------------------------------------------------------------------------------
GAZETTEER = Gazetteer.load()
LAB = task_set(GAZETTEER, "lab").test[:40]


def naive(chat):
    """The lab policy's habit: search every stop plainly, then drive to the first results, and again whatever it is told."""
    def script(text, params):
        stops = script.stops
        if "<|tool|>" not in text:
            return say("Find the places.", [("poi_search", {"address": n}) for n in stops])
        shown = [block.split("<|end|>")[0] for block in text.split("<|tool|>")[1:]]
        at = {line.split(",")[0]: line.rsplit(" ", 1)[-1] for line in shown if "," in line}
        places = [at.get(n, "100.1,30.1") for n in stops]
        return say("All found.", [("direction", {"origin": places[0], "destination": places[-1], "mode": "driving",
                                                 "waypoints": places[1:-1]})])
    return ScriptedEngine(chat, script)


async def rescue(task, config):
    chat = byte_chat()
    engine = naive(chat)
    engine.script.stops = [s["name"] for s in task.evidence["stops"]]
    limits = RolloutConfig(max_tokens=1000, max_context=20_000)
    policy = build_pipeline(config, "navigation", engine, chat, limits)
    env = in_process_environment(NavigationConfig(), GAZETTEER)
    return await run_episode(task, env, policy, chat, id="g/i0", group_id="g", seed=1, limits=limits, temperature=0.8,
                             intervened=True)


RULES = RoleConfig(player="rules")


async def test_the_rules_rescue_every_lab_task_in_the_real_environment():
    config = InterventionConfig(validator=RULES, corrector=RULES, verifier_role=RULES)
    failed = []
    for task in LAB:
        t = await rescue(task, config)
        outcomes = [s.intervention.outcome for s in t.steps]
        if not t.success:
            failed.append((task.id, outcomes))
        assert (t.n_accepted > 0) == (task.cls == "ambiguous"), (task.id, outcomes)
        for sample in t.samples:
            sample.check()
    assert failed == []
    assert {t.cls for t in LAB} == {"ambiguous", "plain"}


async def test_without_intervention_the_same_policy_fails_on_ambiguous_tasks_only():
    config = InterventionConfig(validator=RULES, corrector=RULES, verifier_role=RULES, delta=0.0)
    for task in LAB:
        assert (await rescue(task, config)).success == (task.cls == "plain")


async def test_the_rules_rescue_tasks_with_many_stops_and_instructions():
    config = InterventionConfig(validator=RULES, corrector=RULES, verifier_role=RULES, prompts="full")
    tasks = [t for t in task_set(GAZETTEER, "full").test if t.cls == "ambiguous"][:20]
    done = [await rescue(t, config) for t in tasks]
    assert sum(t.success for t in done) >= 18, [[s.intervention.outcome for s in t.steps] for t in done if not t.success]


async def test_evidence_of_a_real_task_never_stands_in_its_prompts_before_a_tool_returned_it():
    config = InterventionConfig(validator=RULES, corrector=RULES, verifier_role=RULES)
    task = next(t for t in LAB if t.cls == "ambiguous")
    t = await rescue(task, config)
    shown = ""
    for step in t.steps:
        calls = msgspec.json.encode(step.message).decode()
        assert not any(s["location"] in calls and s["location"] not in shown for s in task.evidence["stops"])
        shown += "".join(o.content for o in step.observations)
