"""Episodes: what is recorded per token, and how each way to end is named."""

import asyncio

import msgspec
import numpy as np
import pytest

from rti.config.schema import RolloutConfig
from rti.engines.base import EngineError, PromptTooLong, SamplingParams
from rti.envs.base import EnvironmentFault, FatalEnvironmentError
from rti.rollout import PlainPolicy, run_episode
from rti.trajectory import Ending, Source
from tests.mas.scripted import EchoEnvironment, ScriptedEngine, byte_chat, echo_task, forking_chat, say

ECHO = say("Again.", [("echo", {"text": "hello"})])
FINISH = say("Done.", [("finish", {})])


def engine_of(*replies, chat=None, **options):
    """An engine that gives the replies in turn, the last one for ever."""
    left = list(replies)
    return ScriptedEngine(chat or byte_chat(), lambda text, params: left.pop(0) if len(left) > 1 else left[0], **options)


async def play(engine, env=None, *, seed=5, limits=None, temperature=0.8, **options):
    limits = limits or RolloutConfig(max_tokens=500, max_context=5000)
    policy = PlainPolicy(engine, engine.chat, SamplingParams(max_tokens=limits.max_tokens, temperature=temperature))
    return await run_episode(echo_task(secret="s3cret"), env or EchoEnvironment(), policy, engine.chat, id="g/0", group_id="g",
                             seed=seed, limits=limits, temperature=temperature, **options)


async def test_the_sample_holds_the_sampled_ids_and_their_log_probabilities():
    engine = engine_of(ECHO, FINISH)
    t = await play(engine)
    assert (t.ending, t.success, t.reward) == (Ending.COMPLETED, True, 1.0)
    (sample,) = t.samples
    sample.check()
    for turn, text in enumerate((ECHO, FINISH)):
        at = np.flatnonzero(sample.turns == turn)
        ids = [*engine.chat.encode(text), *engine.chat.stop_token_ids]
        assert sample.token_ids[at].tolist() == ids
        assert (np.diff(at) == 1).all() and (sample.sources[at] == Source.POLICY).all()
        prompt = sample.token_ids[:at[0]].tolist()
        assert engine.chat.decode(prompt) == engine.prompts[turn]
        np.testing.assert_array_equal(sample.behaviour_logps[at], engine.logps(prompt, ids, 0.8))
    context = ~sample.mask
    assert (sample.behaviour_logps[context] == 0).all() and (sample.weights[context] == 0).all()
    assert (sample.versions[context] == -1).all() and (sample.turns[context] == -1).all()
    assert sample.mask[-1], "nothing follows the last turn"


async def test_the_whole_prompt_is_what_rendering_the_history_would_give():
    engine = engine_of(ECHO, ECHO, FINISH)
    t = await play(engine)
    history = [*t.prompt]
    for step, prompt in zip(t.steps, engine.prompts, strict=True):
        assert engine.chat.decode(engine.chat.render(history, ())) == prompt
        history += [step.message, *step.observations]


async def test_each_token_names_the_version_that_sampled_it():
    engine = engine_of(FINISH)

    def load(i):
        engine._version = 3 if i < 10 else 4

    engine.on_token = load
    t = await play(engine)
    versions = t.samples[0].versions[t.samples[0].mask]
    assert versions[:10].tolist() == [3] * 10 and set(versions[10:].tolist()) == {4}
    assert t.oldest_version == 3


async def test_a_stop_token_that_was_not_sampled_is_context():
    engine = engine_of(byte_chat().encode(ECHO), FINISH)     # whole, but without its stop token: cut there by the limit
    t = await play(engine)
    assert t.ending == Ending.COMPLETED and t.steps[0].finish_reason == "length"
    sample = t.samples[0]
    end = np.flatnonzero(sample.turns == 0)[-1] + 1
    assert sample.token_ids[end] in engine.chat.stop_token_ids
    assert sample.sources[end] == Source.CONTEXT and sample.versions[end] == -1


async def test_a_cut_reply_whose_calls_cannot_run_is_truncated():
    engine = engine_of(ECHO)
    env = EchoEnvironment()
    t = await play(engine, env, limits=RolloutConfig(max_tokens=20, max_context=5000))
    assert (t.ending, t.success, t.reward) == (Ending.TRUNCATED, False, 0.0)
    assert t.samples[0].mask.sum() == 20 and env.seen == []


async def test_a_full_context_is_truncated():
    engine = engine_of(ECHO)
    t = await play(engine, EchoEnvironment(max_turns=50), limits=RolloutConfig(max_tokens=500, max_context=400))
    assert t.ending == Ending.TRUNCATED
    assert len(t.samples[0].token_ids) <= 400
    assert engine.requests[-1].max_tokens < 500, "the last request fits what the context leaves"


async def test_a_tool_output_of_5000_tokens_ends_the_episode_and_what_came_before_it_trains():
    class Flood(EchoEnvironment):
        async def step(self, message):
            came = await super().step(message)
            flood = [msgspec.structs.replace(m, content="7" * 5000) for m in came.messages]
            return msgspec.structs.replace(came, messages=flood)

    engine = engine_of(ECHO)
    t = await play(engine, Flood(), limits=RolloutConfig(max_tokens=300, max_context=1000))
    assert (t.ending, t.reward, len(t.steps), len(engine.requests)) == (Ending.TRUNCATED, 0.0, 1, 1)
    assert len(t.steps[0].observations[0].content) == 5000
    (sample,) = t.samples
    assert len(sample.token_ids) < 1000 and sample.mask.sum() == t.steps[0].n_tokens
    whole = await play(engine_of(ECHO, FINISH), Flood(), limits=RolloutConfig(max_tokens=300, max_context=10_000))
    assert whole.success and (whole.samples[0].sources == Source.CONTEXT).sum() > 5000


async def test_a_prompt_that_the_engine_has_no_room_for_is_truncated():
    t = await play(engine_of(ECHO, PromptTooLong("no room")))
    assert t.ending == Ending.TRUNCATED and len(t.samples) == 1 and len(t.steps) == 1


@pytest.mark.parametrize("ids", [[], list(byte_chat().stop_token_ids)])
async def test_an_empty_reply_is_the_agents_failure(ids):
    env = EchoEnvironment()
    t = await play(engine_of(ECHO, ids), env)
    assert (t.ending, t.reward) == (Ending.EMPTY_REPLY, 0.0) and t.ending.is_agents
    assert len(env.seen) == 1
    assert t.samples[0].mask.sum() == len(byte_chat().encode(ECHO)) + 1 + len(ids)


async def test_an_empty_first_reply_leaves_nothing_to_train_on():
    t = await play(engine_of([]))
    assert t.ending == Ending.EMPTY_REPLY and t.samples == [] and t.oldest_version is None


async def test_the_turn_limit_asks_for_the_outcome():
    t = await play(engine_of(ECHO), EchoEnvironment(max_turns=3))
    assert t.ending == Ending.TURN_LIMIT and t.info == {"turns": 3} and len(t.steps) == 3


@pytest.mark.parametrize("reply", ["not json", '{"tool_calls": 3}', say("x", [("echo", {"text": 1})]).replace('"echo"', "7")])
async def test_a_malformed_call_is_an_observation(reply):
    t = await play(engine_of(reply, FINISH))
    assert t.ending == Ending.COMPLETED and t.success
    assert t.steps[0].observations[0].content.startswith("error:")


@pytest.mark.parametrize("method", ["reset", "step", "outcome"])
async def test_a_broken_environment_is_run_again_and_never_trained(method):
    env = EchoEnvironment(faults={method: EnvironmentFault("the service is down")})
    t = await play(engine_of(ECHO, FINISH), env)
    assert t.ending == Ending.ENVIRONMENT and not t.ending.is_agents
    assert t.samples == [] and t.reward == 0.0 and "service is down" in t.info["fault"]
    assert env.closed == 1


async def test_an_engine_that_fails_is_run_again_and_never_trained():
    env = EchoEnvironment()
    t = await play(engine_of(ECHO, EngineError("replica lost")), env)
    assert t.ending == Ending.INFRASTRUCTURE and t.samples == [] and len(t.steps) == 1
    assert env.closed == 1


async def test_a_fault_in_closing_does_not_undo_the_episode():
    t = await play(engine_of(FINISH), EchoEnvironment(faults={"close": EnvironmentFault("gone")}))
    assert t.ending == Ending.COMPLETED and t.success and len(t.samples) == 1


async def test_an_environment_that_cannot_work_stops_the_run():
    env = EchoEnvironment(faults={"step": FatalEnvironmentError("wrong key")})
    with pytest.raises(FatalEnvironmentError, match="wrong key"):
        await play(engine_of(ECHO), env)
    assert env.closed == 1


async def test_an_episode_beyond_its_time_is_lost():
    env = EchoEnvironment(delay_s=30)
    t = await play(engine_of(ECHO), env, limits=RolloutConfig(timeout_s=0.05))
    assert t.ending == Ending.INFRASTRUCTURE and "timeout_s" in t.info["fault"]
    assert env.closed == 1


async def test_a_timeout_of_the_environments_own_is_not_taken_for_the_episodes():
    with pytest.raises(TimeoutError, match="own"):
        await play(engine_of(ECHO), EchoEnvironment(faults={"step": TimeoutError("own")}))


async def test_cancelling_closes_the_environment():
    env = EchoEnvironment(delay_s=30)
    running = asyncio.create_task(play(engine_of(ECHO), env))
    while not running.done() and not env.closed:
        await asyncio.sleep(0.01)
        running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert env.closed == 1


async def test_a_format_that_rewrites_earlier_turns_gives_one_sample_a_fork():
    chat = forking_chat()
    ask = say("Hm.", [("echo", {"text": "ask"})])
    engine = engine_of(ECHO, ask, ECHO, FINISH, chat=chat)
    t = await play(engine)
    # tools answer turn 0, a user also turn 1: the template then drops the reasoning of both
    assert [sorted(set(s.turns[s.mask].tolist())) for s in t.samples] == [[0, 1], [2, 3]]
    for sample in t.samples:
        sample.check()
        assert sample.mask[-1]
    second = t.samples[1]
    start = np.flatnonzero(second.mask)[0]
    assert chat.decode(second.token_ids[:start].tolist()) == engine.prompts[2]
    assert "Again." in engine.prompts[1] and "Again." not in engine.prompts[2]
    assert t.n_agent_tokens == sum(s.n_tokens for s in t.steps)


async def test_a_user_message_does_not_fork_where_nothing_was_rewritten():
    chat = forking_chat()
    quiet = say("", [("echo", {"text": "ask"})])
    t = await play(engine_of(quiet, FINISH, chat=chat))
    assert len(t.samples) == 1 and sorted(set(t.samples[0].turns[t.samples[0].mask].tolist())) == [0, 1]


async def test_a_token_without_a_finite_log_probability_is_in_no_loss():
    engine = engine_of(FINISH)
    plain = engine.logps

    def logps(prompt, ids, temperature):
        values = plain(prompt, ids, temperature)
        values[[2, 5]] = [np.nan, -np.inf]
        return values

    engine.logps = logps
    t = await play(engine)
    sample = t.samples[0]
    sample.check()
    turn = slice(len(sample.token_ids) - len(byte_chat().encode(FINISH)) - 1, None)
    assert np.flatnonzero(~sample.mask[turn]).tolist() == [2, 5]


async def test_the_same_seed_gives_the_same_requests_and_turns_differ():
    engines = [engine_of(ECHO, ECHO, FINISH) for _ in range(2)]
    for engine in engines:
        await play(engine, seed=11)
    other = engine_of(ECHO, ECHO, FINISH)
    await play(other, seed=12)
    seeds = [[p.seed for p in e.requests] for e in (*engines, other)]
    assert seeds[0] == seeds[1] and len(set(seeds[0])) == 3
    assert not set(seeds[0]) & set(seeds[2])


async def test_fifty_episodes_at_once_share_nothing():
    chat = byte_chat()

    def script(text, params):
        word = text.split("word ")[1].split(".")[0]
        return FINISH if f"<|tool|>{word}<" in text else say("", [("echo", {"text": word})])

    engine = ScriptedEngine(chat, script)
    policy = PlainPolicy(engine, chat, SamplingParams(max_tokens=200))

    async def one(i):
        limits = RolloutConfig(max_tokens=200, max_context=2000)
        return await run_episode(echo_task(f"Say word w{i}."), EchoEnvironment(), policy, chat, id=f"g/{i}", group_id="g",
                                 seed=i, limits=limits, temperature=1.0)

    done = await asyncio.gather(*(one(i) for i in range(50)))
    assert [t.steps[0].observations[0].content for t in done] == [f"w{i}" for i in range(50)]
    assert all(t.success for t in done)


async def test_the_prompt_holds_no_evidence():
    engine = engine_of(ECHO, FINISH)
    t = await play(engine)
    assert not any("s3cret" in p for p in engine.prompts)
    assert "s3cret" not in repr([t.prompt, t.steps]) and t.evidence == {"secret": "s3cret"}


async def test_wall_time_comes_from_the_clock_given():
    ticks = iter([10.0, 12.5])
    assert (await play(engine_of(FINISH), clock=lambda: next(ticks))).wall_s == 2.5
