"""The controller over fakes: what is consumed, by which step, and what it writes down, whatever dies."""

import asyncio
import json

import pytest

from rti.control.faults import ActorGone, ActorLost
from rti.control.retry import RetriesExhausted
from rti.envs.base import FatalEnvironmentError
from rti.run import metrics
from rti.run.audit import audit
from rti.run.directory import _endpoints
from rti.run.ledger import read_ledger
from rti.trajectory import Ending, Message, Step, Trajectory, decode
from tests.actors.fakes import FakeRun, FakeWorker, World, make_config


class Killed(BaseException):
    """No handler of the code under test takes it: the run leaves without a word to anybody, as a killed process does."""


def lines(path):
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


def record(path):
    """All that a synchronous run must repeat: metrics off the clock, and the ledger."""
    return [metrics.comparable(line) for line in lines(path)], (path / "ledger.jsonl").read_text()


def consumed(path):
    return [n.entry.group_id for n in read_ledger(path / "ledger.jsonl") if n.entry.consumed]


def assert_audit_passes(path):
    assert not [result for result in audit(path) if result.findings.breaches]


async def test_a_synchronous_run_consumes_the_plan_in_order_each_group_once(tmp_path):
    fake = FakeRun(tmp_path / "run")
    assert await fake.run()
    assert consumed(tmp_path / "run") == [f"{e}-{p}" for e, p in (divmod(k, 10) for k in range(12))]
    assert [line["step"] for line in lines(tmp_path / "run")] == [1, 2, 3, 4]
    assert_audit_passes(tmp_path / "run")
    assert all(line["staleness/max"] == 0 for line in lines(tmp_path / "run"))
    assert fake.generators[0].loads == fake.generators[1].loads == list(range(fake.learner.version + 1))


async def test_the_same_seed_gives_the_same_run_and_another_seed_another(tmp_path):
    for name, seed in (("a", 7), ("b", 7), ("c", 8)):
        await FakeRun(tmp_path / name, make_config(seed=seed)).run()
    assert record(tmp_path / "a") == record(tmp_path / "b") != record(tmp_path / "c")


async def test_neither_the_number_of_workers_nor_their_pace_changes_a_synchronous_run(tmp_path):
    await FakeRun(tmp_path / "a").run()
    fake = FakeRun(tmp_path / "b")
    fake.workers = [FakeWorker(fake.world, f"env-worker-{i}", capacity=4) for i in range(3)]
    fake.world.before_run = lambda order: asyncio.sleep(hash(order.group_id) % 7 / 1000)
    await fake.run()
    assert record(tmp_path / "a") == record(tmp_path / "b")


@pytest.mark.parametrize("stop_after", [1, 2, 3])
async def test_a_run_that_is_stopped_and_resumed_equals_the_uninterrupted_one(tmp_path, stop_after):
    whole = FakeRun(tmp_path / "whole")
    await whole.run()

    async def stop(controller):
        while controller.plan.step < stop_after:
            await asyncio.sleep(0)
        controller.stop()

    assert not await FakeRun(tmp_path / "parts").run(during=stop)
    assert 1 <= len(lines(tmp_path / "parts")) < 4
    rest = FakeRun(tmp_path / "parts")
    assert await rest.run()
    assert record(tmp_path / "whole") == record(tmp_path / "parts")
    assert_audit_passes(tmp_path / "parts")
    assert rest.learner.policy == whole.learner.policy


@pytest.mark.parametrize("at", [1, 2, 3, 4])
async def test_a_run_killed_in_a_step_goes_on_from_the_newest_checkpoint_and_equals_the_uninterrupted_one(tmp_path, at):
    await FakeRun(tmp_path / "whole").run()
    fake = FakeRun(tmp_path / "killed")

    def die(step):
        if step == at:
            raise Killed

    fake.learner.on_step = die
    with pytest.raises(Killed):
        await fake.run()
    assert await FakeRun(tmp_path / "killed").run()
    assert record(tmp_path / "whole") == record(tmp_path / "killed")


async def test_a_learner_that_dies_restarts_from_the_newest_checkpoint_with_the_plan(tmp_path):
    await FakeRun(tmp_path / "whole").run()
    fake = FakeRun(tmp_path / "run")
    died = []

    def die(step):
        if step in (1, 4) and step not in died:
            died.append(step)
            fake.learner.die()

    fake.learner.on_step = die
    assert await fake.run()
    assert fake.learner.starts == 3 and len(fake.progress.notes) == 2
    assert sum(r["system/restarts"] for r in lines(tmp_path / "run")) == 2
    assert record(tmp_path / "whole") == record(tmp_path / "run")


async def test_lost_workers_cost_nothing_but_time(tmp_path):
    await FakeRun(tmp_path / "whole").run()
    fake = FakeRun(tmp_path / "run")
    fake.workers = [FakeWorker(fake.world, f"env-worker-{i}") for i in range(2)]
    runs = []

    def lose(order):
        runs.append(order)
        if len(runs) % 3 == 0:
            raise ActorLost("killed")

    fake.world.before_run = lose
    assert await fake.run()
    assert [r["groups/trained"] for r in lines(tmp_path / "run")] == [r["groups/trained"] for r in lines(tmp_path / "whole")]
    assert consumed(tmp_path / "run") == consumed(tmp_path / "whole")
    assert sum(w.revived for w in fake.workers) > 0
    assert sum(r["rollouts/lost_infrastructure"] for r in lines(tmp_path / "run")) > 0


async def test_a_dead_generator_is_given_the_newest_weights_before_anything_else(tmp_path):
    fake = FakeRun(tmp_path / "run")

    async def die(controller):
        while controller.plan.step < 2:
            await asyncio.sleep(0)
        fake.generators[1].die()

    assert await fake.run(during=die)
    assert fake.generators[1].version == fake.learner.version


async def test_a_buffer_rebuilt_from_its_journal_goes_on(tmp_path):
    fake = FakeRun(tmp_path / "run")

    async def die(controller):
        for step in (0, 1, 2):
            while controller.plan.step <= step:
                await asyncio.sleep(0)
            fake.buffer.die()

    assert await fake.run(during=die)
    assert len(set(consumed(tmp_path / "run"))) == 12
    assert_audit_passes(tmp_path / "run")


@pytest.mark.parametrize("staleness", [1, 2])
async def test_an_asynchronous_run_keeps_the_bound_and_consumes_each_group_once(tmp_path, staleness):
    fake = FakeRun(tmp_path / "run", make_config(max_staleness=staleness, steps=12))
    slow = {"0-1", "0-5", "1-0"}
    fake.world.before_run = lambda order: asyncio.sleep(0.05 if order.group_id in slow else 0)
    fake.learner.on_step = lambda step: asyncio.sleep(0.004)
    assert await fake.run()
    entries = [n.entry for n in read_ledger(tmp_path / "run" / "ledger.jsonl")]
    assert max(e.staleness for e in entries if e.consumed) <= staleness
    assert max(line["staleness/max"] for line in lines(tmp_path / "run")) >= 1
    ids = [e.group_id for e in entries if e.consumed]
    assert len(ids) == len(set(ids)) == 36
    assert {e.group_id for e in entries if not e.consumed} <= slow
    assert_audit_passes(tmp_path / "run")


async def test_a_long_tail_group_holds_no_step_and_runs_again_once_it_is_too_old(tmp_path):
    fake = FakeRun(tmp_path / "run", make_config(max_staleness=1, steps=6))
    stuck = asyncio.Event()
    rounds = []

    def hold(order):
        if order.group_id == "0-0" and order.split == "train":
            rounds.append(order.seeds)
            if len(rounds) == 1:
                return stuck.wait()

    fake.world.before_run = hold
    fake.world.percent = 50
    assert await fake.run()
    assert len(rounds) >= 2 and rounds[0] != rounds[1]
    entries = [n.entry for n in read_ledger(tmp_path / "run" / "ledger.jsonl") if n.entry.group_id == "0-0"]
    assert [e.disposition == "voided" for e in entries] == [True, False]
    assert_audit_passes(tmp_path / "run")


async def test_groups_that_teach_nothing_cost_no_learner_step(tmp_path):
    fake = FakeRun(tmp_path / "run", world=World(percent=0), intervenes=False)
    assert await fake.run()
    assert fake.learner.steps == [] and fake.learner.version == 0
    assert [line["groups/no_signal"] for line in lines(tmp_path / "run")] == [3, 3, 3, 3]
    assert fake.generators[0].loads == [0]


async def test_the_ledger_counts_as_trained_what_the_algorithm_trains(tmp_path):
    """rollout.train_truncated: false leaves cut episodes out of a group's statistics: one member alone teaches nothing."""
    for name, train_truncated in (("all", True), ("whole", False)):
        world = World(percent=100)
        world.ending = lambda id: Ending.COMPLETED if id.endswith("/0") else Ending.TRUNCATED
        fake = FakeRun(tmp_path / name, make_config(rollout__train_truncated=train_truncated), world, intervenes=False)
        assert await fake.run()
        kinds = {n.entry.disposition for n in read_ledger(tmp_path / name / "ledger.jsonl")}
        assert kinds == {"trained" if train_truncated else "no_signal"}
        assert len(fake.learner.steps) == (4 if train_truncated else 0)
        assert {line["groups/trained"] for line in lines(tmp_path / name)} == ({3} if train_truncated else {0})
        assert_audit_passes(tmp_path / name)


async def test_only_failed_groups_are_intervened_and_only_by_an_algorithm_that_intervenes(tmp_path):
    for name, intervenes in (("rti", True), ("grpo", False)):
        fake = FakeRun(tmp_path / name, intervenes=intervenes)
        await fake.run()
        entries = [n.entry for n in read_ledger(tmp_path / name / "ledger.jsonl")]
        assert any(e.failed for e in entries)
        failed = {e.group_id for e in entries if e.failed}
        assert {e.group_id for e in entries if e.attempts} == (failed if intervenes else set())


async def test_evaluations_come_before_after_and_in_between_and_change_nothing(tmp_path):
    await FakeRun(tmp_path / "a", make_config(evaluation__before=False, evaluation__after=False)).run()
    await FakeRun(tmp_path / "b", make_config(evaluation__every=3)).run()
    one, other = record(tmp_path / "a"), record(tmp_path / "b")
    assert one[1] == other[1]
    assert [{k: v for k, v in line.items() if not k.startswith("eval/")} for line in other[0]] == one[0]
    assert sorted(p.name for p in (tmp_path / "b" / "evaluations").iterdir()) == [
        "step-000000.json", "step-000003.json", "step-000004.json"]
    assert not (tmp_path / "a" / "evaluations").exists()


async def test_checkpoints_are_pruned_but_the_best_by_evaluation_stays(tmp_path):
    config = make_config(steps=8, checkpoint__every=8, checkpoint__keep=1, evaluation__every=1)
    await FakeRun(tmp_path / "run", config).run()
    results = {int(p.stem[5:]): json.loads(p.read_text())["p@1"] for p in (tmp_path / "run" / "evaluations").iterdir()}
    results.pop(0)
    best = max(results, key=lambda s: (results[s], -s))
    left = sorted(int(p.name[5:]) for p in (tmp_path / "run" / "checkpoints").iterdir())
    assert left == sorted({8, best})


async def test_more_steps_can_be_added_to_a_finished_run(tmp_path):
    await FakeRun(tmp_path / "long", make_config(steps=6, evaluation__after=False)).run()
    await FakeRun(tmp_path / "run", make_config(steps=4, evaluation__after=False)).run()
    await FakeRun(tmp_path / "run", make_config(steps=6, evaluation__after=False)).run()
    assert record(tmp_path / "long") == record(tmp_path / "run")


@pytest.mark.parametrize("ending", [Ending.ENVIRONMENT, Ending.INFRASTRUCTURE])
async def test_an_episode_that_is_always_lost_ends_the_run_with_its_name(tmp_path, ending):
    fake = FakeRun(tmp_path / "run")
    fake.world.ending = lambda id: ending if id == "0-2/1" else Ending.COMPLETED
    with pytest.raises(RetriesExhausted, match=r"group 0-2 \(task train-\d\): episode 1 was lost 4 times.*as asked"):
        await fake.run()


async def test_an_episode_that_is_lost_sometimes_runs_again_and_is_counted_once(tmp_path):
    fake = FakeRun(tmp_path / "run")
    lost = set()

    def ending(id):
        if id.endswith("/2") and id not in lost:
            lost.add(id)
            return Ending.ENVIRONMENT
        return Ending.COMPLETED

    fake.world.ending = ending
    assert await fake.run()
    entries = [n.entry for n in read_ledger(tmp_path / "run" / "ledger.jsonl")]
    assert all(e.ids[2] in (f"{e.group_id}/2", f"{e.group_id}/i0") and len(e.rewards) == 4 for e in entries)
    assert sum(line["rollouts/lost_environment"] for line in lines(tmp_path / "run")) > 0


async def test_what_endpoints_served_is_in_the_metrics_of_its_step_and_adds_up(tmp_path):
    fake = FakeRun(tmp_path / "run")
    asked = []

    def count(order):
        fake.workers[0].used.of("user").requests += 1
        fake.interveners[0].used.of("judge").completion_tokens += 5
        asked.append(order)

    fake.world.before_run = count
    assert await fake.run()
    of_steps = lines(tmp_path / "run")
    assert all(line["endpoint/requests/user"] > 0 and line["endpoint/completion_tokens/judge"] > 0 for line in of_steps)
    last = len(asked) - sum(line["endpoint/requests/user"] for line in of_steps)      # of the evaluation at the end
    total = _endpoints(tmp_path / "run" / "metrics.jsonl")
    assert 0 <= last and total["user"]["requests"] == len(asked) - last
    assert total["judge"]["completion_tokens"] == 5 * (len(asked) - last)


@pytest.mark.parametrize("error", [FatalEnvironmentError("wrong key"), ValueError("a bug")])
async def test_an_error_that_nobody_meant_to_survive_ends_the_run_as_itself(tmp_path, error):
    fake = FakeRun(tmp_path / "run")

    def fail(order):
        if order.group_id == "0-4":
            raise error

    fake.world.before_run = fail
    with pytest.raises(type(error), match=str(error)):
        await fake.run()


async def test_a_worker_that_does_not_come_back_ends_the_run(tmp_path):
    fake = FakeRun(tmp_path / "run")
    fake.workers[0].gone = True

    def fail(order):
        raise ActorLost("killed")

    fake.world.before_run = fail
    with pytest.raises(ActorGone, match="env-worker-0 does not come back"):
        await fake.run()


async def test_a_stop_before_the_first_step_leaves_a_directory_that_begins_anew(tmp_path):
    fake = FakeRun(tmp_path / "run")
    fake.world.before_run = lambda order: asyncio.Event().wait()

    async def stop(controller):
        await asyncio.sleep(0.02)
        controller.stop()

    assert not await fake.run(during=stop)
    await FakeRun(tmp_path / "whole").run()
    assert await FakeRun(tmp_path / "run").run()
    assert record(tmp_path / "run") == record(tmp_path / "whole")


@pytest.mark.parametrize("step", [1, 2, 3])
async def test_a_stop_interrupts_a_learner_step_that_is_longer_than_half_the_grace(tmp_path, step):
    whole = FakeRun(tmp_path / "whole")
    await whole.run()
    fake = FakeRun(tmp_path / "run", make_config(checkpoint__grace_s=0.02))

    def endless(at):
        if at == step:
            fake.controller.stop()
            return asyncio.Event().wait()

    fake.learner.on_step = endless
    assert not await fake.run()
    assert fake.learner.interrupts.is_set() and len(fake.learner.steps) == fake.controller.plan.step == step - 1
    assert [p.name for p in sorted((tmp_path / "run" / "checkpoints").glob("step-*"))][-1:] == [
        f"step-{step - 1:06d}"] * (step > 1)
    rest = FakeRun(tmp_path / "run")
    assert await rest.run()
    assert record(tmp_path / "whole") == record(tmp_path / "run") and rest.learner.policy == whole.learner.policy
    assert_audit_passes(tmp_path / "run")


@pytest.mark.parametrize("grace_s", [0, 3600])
async def test_a_learner_step_that_ends_in_time_is_kept_by_a_stop(tmp_path, grace_s):
    fake = FakeRun(tmp_path / "run", make_config(checkpoint__grace_s=grace_s))

    def longer(at):
        if at == 2:
            fake.controller.stop()
            return asyncio.sleep(0.05)

    fake.learner.on_step = longer
    assert not await fake.run()
    assert not fake.learner.interrupts.is_set() and fake.controller.plan.step == 2


async def test_a_stop_that_takes_longer_than_its_grace_says_what_a_kill_would_lose_and_still_saves(tmp_path):
    fake = FakeRun(tmp_path / "run", make_config(checkpoint__grace_s=0.02))
    save = fake.learner.save

    async def slowly(path, extra):
        if path.name == "step-000003":
            while not fake.progress.notes:
                await asyncio.sleep(0.005)
        await save(path, extra)

    fake.learner.save = slowly
    fake.learner.on_step = lambda step: fake.controller.stop() if step == 3 else None
    assert not await fake.run()
    assert "no checkpoint within 0.02 s" in fake.progress.notes[0] and "from step-000002" in fake.progress.notes[0]
    assert (tmp_path / "run" / "checkpoints" / "step-000003").is_dir()


async def run_stopped_in_evaluation(fake, step):
    """The evaluation after `step` never ends; the run is stopped in it. What `run` says."""
    holding = asyncio.Event()

    def hold(order):
        if order.split == "test" and fake.controller.plan.step == step:
            holding.set()
            return asyncio.Event().wait()

    async def stop(controller):
        await holding.wait()
        controller.stop()

    fake.world.before_run = hold
    return await fake.run(during=stop)


async def test_a_stop_in_an_evaluation_keeps_the_step_it_followed(tmp_path):
    fake = FakeRun(tmp_path / "run", make_config(evaluation__every=2))
    assert not await run_stopped_in_evaluation(fake, 2)
    assert [line["step"] for line in lines(tmp_path / "run")] == [1, 2]
    assert (tmp_path / "run" / "checkpoints" / "step-000002").is_dir()
    assert await FakeRun(tmp_path / "run", make_config(evaluation__every=2)).run()


@pytest.mark.parametrize("step", [2, 4])
async def test_an_evaluation_that_a_stop_cut_short_is_made_up_for(tmp_path, step):
    config = make_config(evaluation__every=2)
    await FakeRun(tmp_path / "whole", config).run()
    fake = FakeRun(tmp_path / "run", config)
    assert not await run_stopped_in_evaluation(fake, step)
    assert "eval/p@1" not in lines(tmp_path / "run")[-1] and lines(tmp_path / "run")[-1]["step"] == step
    assert await FakeRun(tmp_path / "run", config).run()
    assert record(tmp_path / "run") == record(tmp_path / "whole")
    for name in ("step-000002.json", "step-000004.json"):
        assert (tmp_path / "run/evaluations" / name).read_bytes() == (tmp_path / "whole/evaluations" / name).read_bytes()


async def test_dynamic_sampling_passes_over_groups_that_teach_nothing(tmp_path):
    config = make_config(algo__dynamic_sampling=100)
    fake = FakeRun(tmp_path / "run", config, World(percent=15), intervenes=False)
    assert await fake.run()
    entries = [n.entry for n in read_ledger(tmp_path / "run" / "ledger.jsonl")]
    passed = [e for e in entries if e.disposition == "passed"]
    assert passed and {e.reason for e in passed} == {"every member that trains has reward 0"}
    assert all(e.disposition == "trained" for e in entries if e.consumed)
    assert sum(line["groups/passed"] for line in lines(tmp_path / "run")) == len(passed)
    assert_audit_passes(tmp_path / "run")


async def test_dynamic_sampling_never_stalls_a_run_in_which_nothing_teaches(tmp_path):
    config = make_config(algo__dynamic_sampling=2)
    fake = FakeRun(tmp_path / "run", config, World(percent=0), intervenes=False)
    assert await fake.run()
    assert [line["groups/passed"] for line in lines(tmp_path / "run")] == [2, 2, 2, 2]
    assert [line["groups/no_signal"] for line in lines(tmp_path / "run")] == [3, 3, 3, 3]
    assert_audit_passes(tmp_path / "run")


class TwoTurns(World):
    """Trajectories that say what their two turns were."""

    def trajectory(self, order, id, seed):
        made = super().trajectory(order, id, seed)
        counts = [int((made.samples[0].turns == turn).sum()) for turn in range(2)]
        made.steps = [Step(message=Message(role="assistant", content="On."), n_tokens=n) for n in counts]
        return made


async def test_aepo_fills_a_group_with_branches_of_its_rollouts(tmp_path):
    config = make_config(algo__name="aepo", algo__branch_base=1.0, algo__branch_gamma=0.0)
    fake = FakeRun(tmp_path / "run", config, TwoTurns(percent=50), intervenes=False)
    assert await fake.run()
    orders = [o for o in fake.world.orders if o.split == "train" and o.group_id == "0-0"]
    assert sorted(m for o in orders for m in o.members) == list(range(config.rollout.group_size))
    branches = [o for o in orders if o.root is not None]
    assert orders[0].members == (0,) and branches
    for order in branches:
        parent = decode(order.root.parent, Trajectory)
        assert parent.group_id == "0-0" and order.root.turn == 1
    assert_audit_passes(tmp_path / "run")
