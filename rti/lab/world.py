"""Where the lab policy's transcripts happen: the navigation environment without HTTP, and fresh trips of the training part."""

from __future__ import annotations

import random

from rti.chat.lab import LabChatFormat
from rti.envs.navigation.gazetteer import Gazetteer
from rti.envs.navigation.tasks import lab_trip
from rti.envs.navigation.taskset import in_process_environment
from rti.lab.transcripts import Desk


def training_desk(chat: LabChatFormat, gazetteer: Gazetteer, rng: random.Random) -> Desk:
    """A desk that writes transcripts of trips whose names are of the gazetteer's training part."""
    env = in_process_environment(gazetteer=gazetteer)
    return Desk(chat, env, lambda: lab_trip(gazetteer, rng, "train"), rng)
