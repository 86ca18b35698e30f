"""What the lab policy is shown before reinforcement learning, and what it is never shown."""

import asyncio
import random
from collections import defaultdict

import pytest

from rti.chat.lab import LabChatFormat
from rti.envs.navigation.gazetteer import Gazetteer
from rti.lab import policy_dir
from rti.lab import tokenizer as lab_tokenizer
from rti.lab.build import VOCABULARY, corpus
from rti.lab.transcripts import ALL_FOUND, LOOK_AGAIN, Desk, Use, garbled
from rti.lab.world import training_desk
from rti.mas.roles import read_correction, read_validation, read_verdict


@pytest.fixture(scope="module")
def gazetteer():
    return Gazetteer.load()


@pytest.fixture(scope="module")
def chat():
    return LabChatFormat.from_dir(policy_dir())


async def write(chat, gazetteer, n, seed=3):
    desk = training_desk(chat, gazetteer, random.Random(seed))
    return [await desk.write() for _ in range(n)]


@pytest.fixture(scope="module")
def transcripts(chat, gazetteer):
    return asyncio.run(write(chat, gazetteer, 300))


def learnt_spans(chat, transcript):
    """Texts of the learnt stretches, and the text that stood before each."""
    spans, at = [], 0
    while at < len(transcript.ids):
        end = at
        while end < len(transcript.ids) and transcript.uses[end] == transcript.uses[at]:
            end += 1
        if transcript.uses[at] == Use.LEARNT:
            spans.append((chat.decode(transcript.ids[:at]), chat.decode_text(transcript.ids[at:end])))
        at = end
    return spans


async def test_every_kind_is_written_and_the_same_seed_gives_the_same_transcripts(chat, gazetteer, transcripts):
    assert await write(chat, gazetteer, 60) == transcripts[:60]
    assert {t.kind for t in transcripts} == set(Desk.KINDS)


def test_the_decision_to_look_again_is_learnt_after_a_misspelt_name_only_and_without_a_region(chat, transcripts):
    looks_after_a_miss = 0
    for transcript in transcripts:
        if transcript.kind in ("validate", "correct", "verify"):
            continue
        for before, turn in learnt_spans(chat, transcript):
            if LOOK_AGAIN in turn:
                assert transcript.kind == "misspelt" and "no match" in before and '"region"' not in turn
                looks_after_a_miss += 1
    assert looks_after_a_miss > 10


def test_the_decision_to_look_again_at_a_namesake_is_never_in_the_loss(chat, transcripts):
    """Neither in the conversation itself nor as the history in a role's prompt."""
    looks = 0
    for transcript in transcripts:
        text = chat.decode([i for i, use in zip(transcript.ids, transcript.uses) if use != Use.HIDDEN])
        if transcript.kind in ("second_look", "validate", "correct", "verify"):
            assert f'{{"reasoning": "{LOOK_AGAIN}' not in text.split("\nDraft: ")[0]
            looks += LOOK_AGAIN in chat.decode(transcript.ids)
    assert looks > 50


def test_how_a_second_look_is_done_is_learnt_without_the_decision(chat, transcripts):
    looks = 0
    for transcript in transcripts:
        if transcript.kind == "second_look":
            (_, first), *look, (_, drive) = learnt_spans(chat, transcript)
            assert ALL_FOUND in drive and "poi_search" in first and LOOK_AGAIN in chat.decode(transcript.ids)
            for before, search in look:     # none where the second look was at places that were right already
                assert before.endswith(LOOK_AGAIN) and search.startswith('", "tool_calls": [') and '"region"' in search
                looks += 1
    assert looks > 20


def test_a_name_however_short_can_be_garbled():
    rng = random.Random(0)
    for name in ("A", "Ai", "Bai", "Shuangfeng"):
        slips = {garbled(name, rng) for _ in range(200)}
        assert "" not in slips and (name not in slips or len(set(name)) < len(name))


def test_a_slip_of_the_pen_is_never_learnt(chat, transcripts):
    for transcript in transcripts:
        if transcript.kind == "misspelt":
            again, drive = (turn for _, turn in learnt_spans(chat, transcript))
            assert LOOK_AGAIN in again and ALL_FOUND in drive


def test_names_held_out_for_test_are_never_shown(chat, gazetteer):
    desk = training_desk(chat, gazetteer, random.Random(5))
    for _ in range(200):
        assert all(Gazetteer.part(s["name"]) == "train" for s in desk.draw().evidence["stops"])


def test_role_answers_are_read_by_the_pipeline_and_cover_both_verdicts(chat, transcripts):
    read = {"validate": read_validation, "correct": read_correction, "verify": read_verdict}
    verdicts = defaultdict(set)
    for transcript in transcripts:
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


def test_the_shipped_tokenizer_is_what_the_script_makes(gazetteer, tmp_path):
    lab_tokenizer.save(lab_tokenizer.build(corpus(gazetteer), VOCABULARY), tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / name).read_bytes() == (policy_dir() / name).read_bytes(), name
