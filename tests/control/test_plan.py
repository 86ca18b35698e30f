"""The plan: slots, staleness, consumption exactly once, resume by what was consumed (invariants 5 and 6)."""

import random

import pytest

from rti.control import admission
from rti.control.order import TaskOrder
from rti.control.plan import Phase, Plan, PlanError
from rti.control.store import Facts


def make(n_tasks=20, groups=4, staleness=0, steps=10, **more) -> Plan:
    return Plan(TaskOrder(n_tasks, seed=1), groups_per_step=groups, max_staleness=staleness, steps=steps, **more)


def finish(plan: Plan, entries, version=None) -> None:
    for entry in entries:
        assert plan.ready(entry.ticket, entry.admitted_version if version is None else version)


def take_step(plan: Plan, teaches=True):
    tickets = plan.lease()
    plan.commit(plan.version + teaches)
    plan.published()
    return tickets


@pytest.mark.parametrize("staleness, expected", [(0, 4), (1, 8), (3, 16)])
def test_slots_are_one_steps_groups_and_one_more_for_each_step_of_staleness(staleness, expected):
    plan = make(staleness=staleness, steps=100)
    assert len(plan.admit()) == expected == admission.slots(4, staleness)
    assert plan.admit() == []


@pytest.mark.parametrize("groups, staleness", [(0, 0), (1, -1)])
def test_impossible_bounds_are_refused(groups, staleness):
    with pytest.raises(ValueError, match="groups_per_step|max_staleness"):
        make(groups=groups, staleness=staleness)


def test_a_slot_is_freed_by_publication_not_by_consumption():
    plan = make()
    finish(plan, plan.admit())
    plan.lease()
    plan.commit(1)
    assert plan.room == 0
    plan.published()
    assert plan.room == 4


def test_synchronous_mode_consumes_exactly_what_it_admitted_in_plan_order():
    plan = make()
    for step in range(10):
        entries = plan.admit()
        assert plan.lease() is None
        finish(plan, reversed(entries))
        assert take_step(plan) == [e.ticket for e in entries]
    assert plan.finished and plan.admit() == []


def test_the_end_of_the_run_admits_no_more_than_the_steps_left_consume():
    plan = make(staleness=3, steps=2)
    assert len(plan.admit()) == 8
    finish(plan, plan.entries(Phase.RUNNING)[:4])
    take_step(plan)
    assert plan.admit() == []


def test_a_step_that_teaches_nothing_counts_but_moves_no_version():
    plan = make()
    finish(plan, plan.admit())
    take_step(plan, teaches=False)
    assert (plan.step, plan.version) == (1, 0)
    assert plan.admit()[0].admitted_version == 0


def test_a_group_admitted_between_commit_and_publication_counts_from_what_the_generators_serve():
    plan = make(staleness=1, steps=100)
    entries = plan.admit()
    finish(plan, entries)
    plan.lease()
    plan.commit(1)
    assert plan.version == 1 and plan.published_version == 0
    plan.published()
    assert {e.admitted_version for e in plan.admit()} == {1}


def test_a_long_tail_group_does_not_hold_a_step_and_is_voided_when_it_gets_too_old():
    plan = make(staleness=1, steps=100)
    slow, *rest = plan.admit()
    finish(plan, rest)
    take_step(plan)
    finish(plan, plan.admit())
    assert plan.sweep() == []
    take_step(plan)
    (void,) = plan.sweep()
    assert void.ticket == slow.ticket and not void.was_ready and not void.dropped
    assert not plan.ready(slow.ticket, 0)       # its late arrival is refused
    again = plan.admit()[0]
    assert again.ticket.group_id == slow.ticket.group_id and again.ticket.round == 1
    assert plan.ready(again.ticket, again.admitted_version)


def test_a_ready_group_is_judged_by_its_tokens():
    plan = make(staleness=1, steps=100)
    late, *rest = plan.admit()
    finish(plan, rest)
    take_step(plan)
    plan.ready(late.ticket, 1)      # its first token came after the update
    finish(plan, plan.admit())
    take_step(plan)
    assert plan.sweep() == []


def test_older_groups_are_chosen_first():
    plan = make(groups=2, staleness=2, steps=100)
    entries = plan.admit()
    finish(plan, entries[:2])
    take_step(plan)
    fresh = plan.admit()
    finish(plan, fresh)             # of version 1
    finish(plan, entries[4:], version=0)
    assert take_step(plan) == [e.ticket for e in entries[4:]]


def test_a_group_that_is_voided_for_ever_is_dropped():
    plan = make(groups=1, staleness=0, steps=100, max_voids=1)
    for expected in (False, True):
        (entry,) = plan.admit()
        plan.version += 1           # as if a version came from elsewhere
        (void,) = plan.sweep()
        plan.published_version = plan.version
        assert void.dropped is expected
    assert plan.dropped == (0,)
    assert plan.admit()[0].ticket.ordinal == 1


def test_misuse_is_refused():
    plan = make()
    entries = plan.admit()
    finish(plan, entries)
    with pytest.raises(PlanError, match="became ready once more"):
        plan.ready(entries[0].ticket, 0)
    with pytest.raises(PlanError, match="no step"):
        plan.commit(1)
    plan.lease()
    with pytest.raises(PlanError, match="under way"):
        plan.lease()
    with pytest.raises(PlanError, match="between steps"):
        plan.state()
    plan.commit(3)
    plan.published()
    finish(plan, plan.admit())
    plan.lease()
    with pytest.raises(PlanError, match="went back"):
        plan.commit(2)


def test_a_resumed_plan_runs_what_was_not_consumed_however_it_was_overtaken():
    plan = make(n_tasks=6, groups=2, staleness=2, steps=6)
    entries = plan.admit()
    finish(plan, entries[2:])       # the first two are slow
    consumed = take_step(plan) + take_step(plan)
    state = plan.state()
    again = make(n_tasks=6, groups=2, staleness=2, steps=6)
    again.restore(state)
    assert (again.step, again.version, again.published_version) == (2, 2, 2)
    assert [e.ticket.ordinal for e in again.admit()] == [0, 1, 6, 7, 8, 9]
    assert [t.ordinal for t in consumed] == [2, 3, 4, 5]


def test_a_group_that_was_adopted_or_overtaken_is_not_admitted_once_more():
    plan = make(groups=2, staleness=1, steps=10)
    plan.restore({**plan.state(), "done_beyond": [2], "step": 1})
    plan.adopt([Facts(f"0-{i}", 0, 0, 0) for i in (0, 1, 3)])
    seen = [2]
    while not plan.finished:
        finish(plan, plan.admit())
        plan.sweep()
        seen += [t.ordinal for t in take_step(plan)]
    assert sorted(seen) == list(range(19))


def test_the_state_is_plain_data():
    import msgspec
    plan = make()
    finish(plan, plan.admit())
    take_step(plan)
    assert msgspec.json.decode(msgspec.json.encode(plan.state())) == plan.state()


def test_a_checkpoint_of_another_task_set_is_refused():
    with pytest.raises(ValueError, match="20 training tasks, now there are 21"):
        make(n_tasks=21).restore(make().state())


def test_groups_that_the_buffer_still_has_are_adopted_where_they_are_of_use():
    plan = make(groups=2, staleness=1, steps=10)
    finish(plan, plan.admit())
    take_step(plan)
    state = plan.state()            # consumed 0-0 and 0-1, version 1
    again = make(groups=2, staleness=1, steps=10)
    again.restore(state)
    def held(name: str, oldest=0) -> Facts:
        return Facts(name, 0, oldest, oldest)
    refused = ["0-0", "0-99", "other"]      # consumed, of no such task, of another run
    assert again.adopt([held(name) for name in ("0-3", *refused)]) == refused
    assert again.adopt([held("0-3")]) == ["0-3"]        # it is there already
    again.version = 2
    assert again.adopt([held("0-4")]) == ["0-4"]        # too old
    again.version = 1
    assert [e.ticket.group_id for e in again.admit()] == ["0-2", "0-4", "0-5"]
    assert [e.ticket.group_id for e in again.entries(Phase.READY)] == ["0-3"]


@pytest.mark.parametrize("seed", range(200))
def test_under_any_schedule_the_invariants_hold(seed):
    """Random completions, overtaking, versions and crashes; after each event: slots, staleness, exactly-once."""
    rng = random.Random(seed)
    groups, staleness, n_tasks, steps = rng.randint(1, 4), rng.randint(0, 3), rng.randint(3, 15), 15
    def fresh() -> Plan:
        return make(n_tasks=n_tasks, groups=groups, staleness=staleness, steps=steps, max_voids=2)
    plan, saved, consumed, at_save, crashes = fresh(), None, [], [], 0
    saved = plan.state()
    for _ in range(3000):
        if plan.finished:
            break
        plan.admit()
        assert plan.charged <= admission.slots(groups, staleness)
        running = plan.entries(Phase.RUNNING)
        if running and rng.random() < 0.8:
            entry = running[min(int(rng.expovariate(0.5)), len(running) - 1)]
            plan.ready(entry.ticket, rng.randint(entry.admitted_version, plan.published_version), uses=rng.choice([1, 1, 3]))
        if rng.random() < 0.5:
            plan.expire()
            plan.sweep()
            tickets = plan.lease()
            if tickets is not None:
                before = {t.ordinal: plan._entries[t.ordinal].age_version for t in tickets}
                assert all(plan.version - v <= staleness for v in before.values())
                assert all(plan.version - k.oldest_version <= staleness and 1 <= k.used < k.uses for k in plan.again)
                plan.commit(plan.version + (rng.random() < 0.9))
                consumed += [t.ordinal for t in tickets]
                plan.published()
        if rng.random() < 0.05:
            saved, at_save = plan.state(), list(consumed)
        if rng.random() < 0.02 and crashes < 5:
            plan, consumed, crashes = fresh(), list(at_save), crashes + 1
            plan.restore(saved)
            held = [plan.order.ticket(o).group_id for o in rng.sample(range(60), 6)]       # what the buffer kept
            plan.adopt([Facts(group_id, plan.version, plan.version, plan.version) for group_id in held])
    assert plan.finished, "the run does not come to an end"
    assert len(set(consumed)) == len(consumed) == steps * groups
    # nothing was skipped: what is missing below the newest consumed group was never further ahead than the slots allow
    missing = set(range(max(consumed))) - set(consumed) - set(plan.dropped)
    assert len(missing) <= staleness * groups or crashes


def test_adoption_goes_in_plan_order_and_ends_with_the_room():
    plan = make(n_tasks=20, groups=2, staleness=0, steps=10)
    assert plan.adopt([Facts(f"0-{i}", 0, 0, 0) for i in (2, 1, 0)]) == ["0-2"]
    assert plan.lease() == [plan.order.ticket(0), plan.order.ticket(1)]
    assert plan.consumed_ids() == []
    plan.commit(1)
    assert plan.consumed_ids() == ["0-0", "0-1"]


def test_a_group_of_a_later_step_is_not_adopted_before_those_of_an_earlier_one():
    plan = make(n_tasks=20, groups=2, staleness=0, steps=10)
    assert plan.adopt([Facts(f"0-{i}", 0, 0, 0) for i in (3, 2, 1)]) == ["0-3", "0-2"]
    assert [e.ticket.ordinal for e in plan.admit()] == [0]


# --- dynamic sampling ----------------------------------------------------------------------------------------------
def sampled(order, idle, max_passed, groups=3):
    """Take one synchronous step whose groups become ready in an order drawn by `order`; ordinals in `idle` teach nothing.
    (consumed, passed over)"""
    plan = make(groups=groups, max_passed=max_passed)
    running, gone = plan.admit(), []
    while True:
        gone += (passed := plan.pass_over())
        running += plan.admit()
        assert plan.charged <= groups and (plan.room == 0 or not passed)
        if (tickets := plan.lease()) is not None:
            plan.commit(1)
            plan.published()
            return [t.ordinal for t in tickets], sorted(e.ticket.ordinal for e in gone), plan
        entry = running.pop(order.randrange(len(running)))      # an IndexError here would be a step that stalls
        assert plan.ready(entry.ticket, 0, "equal" if entry.ticket.ordinal in idle else "")


@pytest.mark.parametrize("max_passed", [0, 1, 2, 5, 100])
def test_which_groups_a_step_passes_over_does_not_depend_on_when_they_are_ready(max_passed):
    for seed in range(60):
        rng = random.Random(seed)
        idle = {o for o in range(120) if rng.random() < rng.choice([0.3, 0.9])}
        consumed, passed = [], []
        for ordinal in range(200):      # the words of the setting, one group after the other
            if len(consumed) == 3:
                break
            (passed if ordinal in idle and len(passed) < max_passed else consumed).append(ordinal)
        for again in range(5):
            got = sampled(random.Random(1000 * seed + again), idle, max_passed)
            assert got[:2] == (consumed, passed)
            assert got[2].state()["frontier"] == len(consumed) + len(passed)
            order = got[2].order
            assert got[2].consumed_ids() == [order.ticket(o).group_id for o in consumed]


def test_a_stop_in_the_middle_of_a_step_forgets_what_it_passed_over():
    plan = make(groups=2, max_passed=4)
    first, second = plan.admit()
    plan.ready(first.ticket, 0, "equal")
    assert plan.pass_over() == [first]
    state = plan.state()
    assert (state["frontier"], state["passed"]) == (0, [])
    fresh = make(groups=2, max_passed=4)
    fresh.restore(state)
    assert [e.ticket.ordinal for e in fresh.admit()] == [0, 1]


def test_a_resume_knows_what_earlier_steps_passed_over():
    plan = sampled(random.Random(0), {0, 2}, 5)[2]
    fresh = make(groups=3, max_passed=5)
    fresh.restore(plan.state())
    assert fresh.consumed_ids() == plan.consumed_ids() and [e.ticket.ordinal for e in fresh.admit()] == [5, 6, 7]


def test_a_group_that_the_buffer_kept_over_a_resume_is_passed_over_as_well():
    plan = make(groups=2, max_passed=1)
    facts = [Facts(plan.order.ticket(o).group_id, 0, 0, 0, idle="equal" if o == 1 else "") for o in range(2)]
    assert plan.adopt(facts) == []
    assert [e.ticket.ordinal for e in plan.pass_over()] == [1] and plan.lease() is None


# --- groups that may be used again ---------------------------------------------------------------------------------
def used_again(plan: Plan) -> list[tuple[int, int]]:
    return [(kept.ticket.ordinal, kept.used) for kept in plan.again]


def test_a_kept_group_comes_on_top_of_each_following_step_until_its_allowance_is_used_up():
    plan = make(groups=2, staleness=3, steps=100)
    first, *rest = plan.admit()
    plan.ready(first.ticket, 0, uses=3)
    finish(plan, rest)
    seen = []
    for step in range(4):
        assert plan.expire() == [] and plan.sweep() == []
        assert plan.charged <= admission.slots(2, 3)
        seen.append(used_again(plan))
        assert len(take_step(plan)) == 2
        finish(plan, plan.admit())
    assert seen == [[], [(0, 1)], [(0, 2)], []]
    assert plan.consumed_ids() == [f"0-{i}" for i in range(8)]


def test_a_kept_group_goes_when_it_is_too_old_or_the_run_is_over():
    plan = make(groups=1, staleness=1, steps=3)
    for entry in plan.admit():
        plan.ready(entry.ticket, 0, uses=9)
    take_step(plan)
    assert plan.expire() == [] and used_again(plan) == [(0, 1)]
    take_step(plan)     # at version 1, with both groups
    assert used_again(plan) == [(0, 2), (1, 1)]
    finish(plan, plan.admit())
    with pytest.raises(PlanError, match="too old"):
        plan.lease()
    assert plan.expire() == ["0-0", "0-1"] and plan.again == []
    (entry,) = plan.entries(Phase.READY)
    entry.uses = 9
    plan.lease()
    with pytest.raises(PlanError, match="under way"):
        plan.expire()
    plan.commit(3)
    assert plan.finished and plan.expire() == ["0-2"]


def test_a_resume_keeps_what_checkpoint_and_buffer_agree_on():
    plan = make(groups=2, staleness=4, steps=100)
    for entry in plan.admit():
        plan.ready(entry.ticket, 0, uses=4)
    take_step(plan)
    take_step(plan)
    state = plan.state()
    assert state["kept"] == [[0, 2], [1, 2], [2, 1], [3, 1]]
    again = make(groups=2, staleness=4, steps=100)
    again.restore(state)
    held = [Facts("0-0", 0, 0, 0, uses=4, used=2), Facts("0-1", 0, 0, 0, uses=4, used=1), Facts("0-2", 0, 0, 0, uses=1, used=1),
            Facts("0-4", 0, 0, 0, uses=4)]
    assert again.adopt(held) == ["0-1", "0-2"]      # the buffer knows of fewer uses, or of no allowance
    assert used_again(again) == [(0, 2)] and [e.ticket.ordinal for e in again.entries(Phase.READY)] == [4]
    again.restore({key: value for key, value in state.items() if key != "kept"})    # a checkpoint of before there was reuse
    assert again.adopt(held[:3]) == ["0-0", "0-1", "0-2"] and again.again == []
