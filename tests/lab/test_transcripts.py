"""What the lab policy is shown before reinforcement learning, and what it is never shown."""

import random
from collections import defaultdict

import pytest

from rti.chat.lab import LabChatFormat
from rti.envs.navigation.gazetteer import Gazetteer
from rti.lab import tokenizer as lab_tokenizer
from rti.lab.build import VOCABULARY, corpus
from rti.lab.transcripts import ALL_FOUND, LOOK_AGAIN, Desk
from rti.lab.world import training_desk
from rti.mas.roles import read_correction, read_validation, read_verdict


@pytest.fixture(scope="module")
def gazetteer():
    return Gazetteer.load()


@pytest.fixture(scope="module")
def chat(gazetteer):
    return LabChatFormat(lab_tokenizer.build(corpus(gazetteer), VOCABULARY))


async def write(chat, gazetteer, n=300, seed=3):
    desk = training_desk(chat, gazetteer, random.Random(seed))
    return [await desk.write() for _ in range(n)]


def learnt_spans(chat, transcript):
    """Texts of the learnt stretches, and the text that stood before each."""
    spans, at = [], 0
    while at < len(transcript.ids):
        end = at
        while end < len(transcript.ids) and transcript.learn[end] == transcript.learn[at]:
            end += 1
        if transcript.learn[at]:
            spans.append((chat.decode(transcript.ids[:at]), chat.decode_text(transcript.ids[at:end])))
        at = end
    return spans


async def test_every_kind_is_written_and_the_same_seed_gives_the_same_transcripts(chat, gazetteer):
    first, second = await write(chat, gazetteer, 120), await write(chat, gazetteer, 120)
    assert first == second
    assert {t.kind for t in first} == set(Desk.KINDS)


async def test_on_a_namesake_the_policy_is_never_taught_to_look_again(chat, gazetteer):
    looks_after_a_miss = 0
    for transcript in await write(chat, gazetteer):
        if transcript.kind in ("validate", "correct", "verify"):
            continue
        for before, turn in learnt_spans(chat, transcript):
            if LOOK_AGAIN in turn:
                assert "no match" in before, "a second look is learnt only after a search that found nothing"
                looks_after_a_miss += 1
    assert looks_after_a_miss > 10


async def test_what_follows_a_second_look_is_learnt_without_the_look(chat, gazetteer):
    for transcript in await write(chat, gazetteer):
        if transcript.kind == "second_look":
            turns = [turn for _, turn in learnt_spans(chat, transcript)]
            assert len(turns) == 2 and ALL_FOUND in turns[1]
            assert LOOK_AGAIN in chat.decode(transcript.ids)


async def test_names_held_out_for_test_are_never_shown(chat, gazetteer):
    desk = training_desk(chat, gazetteer, random.Random(5))
    for _ in range(200):
        assert all(Gazetteer.part(s["name"]) == "train" for s in desk.draw().evidence["stops"])


async def test_role_answers_are_read_by_the_pipeline_and_cover_both_verdicts(chat, gazetteer):
    read = {"validate": read_validation, "correct": read_correction, "verify": read_verdict}
    verdicts = defaultdict(set)
    for transcript in await write(chat, gazetteer):
        if transcript.kind in read:
            (_, answer), = learnt_spans(chat, transcript)
            record = read[transcript.kind](answer)
            assert record is not None, answer
            verdicts[transcript.kind].add(getattr(record, "is_valid", getattr(record, "ok", None)))
            if transcript.kind == "correct":
                turn = chat.parse(chat.encode_turn(record.message()))
                assert turn.tool_calls and not any(c.error for c in turn.tool_calls)
    assert verdicts["validate"] == verdicts["verify"] == {True, False}


def test_a_coordinate_has_the_same_tokens_wherever_it_stands(chat):
    alone = chat.encode("114.26667,30.58333")
    for text in ('{"reasoning": "All found.", "origin": "114.26667,30.58333", ', "Wuhan, Hubei 114.26667,30.58333\n"):
        ids = chat.encode(text)
        assert any(ids[i:i + len(alone)] == alone for i in range(len(ids)))
    assert all(len(chat.decode_text([i])) <= 2 for i in alone)
