"""The shipped lab policy: its size, and the failure that docs/lab.md says it has."""

import asyncio
import random

import pytest
import torch

from rti.chat.lab import LabChatFormat
from rti.config.schema import RolloutConfig
from rti.control.seeds import derive
from rti.engines.base import SamplingParams
from rti.engines.torch_engine import TorchEngine
from rti.envs.navigation.gazetteer import Gazetteer
from rti.envs.navigation.tasks import task_set
from rti.envs.navigation.taskset import in_process_environment
from rti.lab import policy_dir
from rti.modeling import load_model
from rti.rollout import PlainPolicy, run_episode

TEMPERATURE = 0.8


def test_it_has_one_to_three_million_parameters_in_at_most_twelve_megabytes():
    model = load_model("lab", torch.float32, "cpu")
    assert 0.9e6 < sum(p.numel() for p in model.parameters()) < 3e6
    assert sum(f.stat().st_size for f in policy_dir().iterdir()) < 12e6


@pytest.fixture(scope="module")
def solved():
    """Task class -> outcomes of two rollouts of each of 60 test tasks at the training temperature."""
    return asyncio.run(play())


async def play() -> dict[str, list[bool]]:
    chat = LabChatFormat.from_dir(policy_dir())
    engine = TorchEngine(load_model("lab", torch.float32, "cpu"), max_context=512)
    sampling = SamplingParams(max_tokens=96, temperature=TEMPERATURE, stop_token_ids=chat.stop_token_ids)
    policy = PlainPolicy(engine, chat, sampling)
    tasks = random.Random(0).sample(list(task_set(Gazetteer.load(), "lab").test), 60)

    async def one(task, member):
        episode = await run_episode(
            task, in_process_environment(), policy, chat, id=f"{task.id}/{member}", group_id=task.id,
            seed=derive(7, task.id, member), limits=RolloutConfig(), temperature=TEMPERATURE)
        return task.cls, episode.success

    outcomes = await asyncio.gather(*(one(task, member) for task in tasks for member in range(2)))
    await engine.close()
    return {cls: [success for c, success in outcomes if c == cls] for cls in ("ambiguous", "plain")}


def test_it_can_do_the_task_where_names_are_unambiguous(solved):
    assert len(solved["plain"]) > 20 and sum(solved["plain"]) / len(solved["plain"]) > 0.75


def test_on_ambiguous_trips_it_hardly_ever_succeeds(solved):
    assert len(solved["ambiguous"]) > 50 and sum(solved["ambiguous"]) / len(solved["ambiguous"]) < 0.03
