"""Reading role answers: lenient about what stands around the JSON, strict about its fields, never raising."""

import json
import random

import pytest

from rti.mas.roles import (Correction, RoleContext, Validation, Verdict, answer_dict, read_correction, read_validation,
                           read_verdict)
from rti.trajectory import Message, ToolCall

VALID = Validation(diagnosis="Fine.", is_valid=True)
INVALID = Validation(diagnosis="Wrong {place}.", is_valid=False, error_types=["ARGUMENT_MISMATCH"], suggest_next="Look.")
SEARCH = ToolCall(name="poi_search", arguments={"address": "A", "n": [1, 2.5]})
CORRECTION = Correction(reasoning="Look again.", tool_calls=[SEARCH])
VERDICT = Verdict(ok=False, reasons=["leak"], diagnosis="It tells.")
READ = {Validation: read_validation, Correction: read_correction, Verdict: read_verdict}
ANSWERS = [VALID, INVALID, CORRECTION, Correction(reasoning="Ask.", content="Which one?"), VERDICT]


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("around", ["{}", "```json\n{}\n```", "Here it is: {} I hope it helps {{not}} json.",
                                    "<think>maybe {{\"is_valid\": 1}}</think>\n{}", "{{broken {}", "{{\"other\": 1}} then {}"])
def test_an_answer_is_read_whatever_stands_around_it(answer, around):
    text = around.format(json.dumps(answer_dict(answer), ensure_ascii=False))
    assert READ[type(answer)](text) == answer


@pytest.mark.parametrize("answer", ANSWERS)
def test_an_answer_cut_anywhere_is_malformed(answer):
    text = json.dumps(answer_dict(answer))
    for end in range(len(text)):
        assert READ[type(answer)](text[:end]) is None


@pytest.mark.parametrize("text", [
    "", "no json", "[]", "null", '{"is_valid": true}',
    '{"diagnosis": "d", "is_valid": "true", "error_types": [], "suggest_next": ""}',
    '{"diagnosis": "d", "is_valid": 1, "error_types": [], "suggest_next": ""}',
    '{"diagnosis": "d", "is_valid": false, "error_types": "LEAK", "suggest_next": ""}',
    '{"diagnosis": "d", "is_valid": false, "error_types": [3], "suggest_next": ""}',
    '{"diagnosis": ["d"], "is_valid": false, "error_types": [], "suggest_next": ""}',
    '{"diagnosis": "\\ud800", "is_valid": false, "error_types": [], "suggest_next": ""}',
    '{"diagnosis": "d", "is_valid": false, "error_types": ["\\udfff"], "suggest_next": ""}',
])
def test_a_validation_with_wrong_fields_is_malformed(text):
    assert read_validation(text) is None


@pytest.mark.parametrize("text", [
    '{"reasoning": "r"}', '{"tool_calls": [], "content": "c"}', '{"reasoning": 1, "content": "c"}',
    '{"reasoning": "r", "tool_calls": [{"name": "a", "arguments": {}}], "content": "both"}',
    '{"reasoning": "r", "tool_calls": {"name": "a"}, "content": ""}', '{"reasoning": "r", "tool_calls": ["a"], "content": ""}',
    '{"reasoning": "r", "tool_calls": [{"name": "", "arguments": {}}], "content": ""}',
    '{"reasoning": "r", "tool_calls": [{"name": "a", "arguments": [1]}], "content": ""}',
    '{"reasoning": "r", "tool_calls": [{"name": "a", "arguments": "{"}], "content": ""}',
    '{"reasoning": "r", "tool_calls": [{"name": "a", "arguments": {"x": NaN}}], "content": ""}',
    '{"reasoning": "r", "tool_calls": [{"name": "a", "arguments": {"x": 1e999}}], "content": ""}',
    '{"reasoning": "r", "tool_calls": [{"name": "a", "arguments": {"x": 99999999999999999999}}], "content": ""}',
    '{"reasoning": "r", "tool_calls": [{"name": "a", "arguments": {"x": "\\ud800"}}], "content": ""}',
])
def test_a_correction_with_wrong_fields_is_malformed(text):
    assert read_correction(text) is None


def test_null_counts_as_empty_and_openai_calls_are_read():
    text = ('{"reasoning": "r", "content": null, "tool_calls": [{"id": "c1", "type": "function", "function": '
            '{"name": "a", "arguments": "{\\"x\\": 1}"}}]}')
    assert read_correction(text) == Correction(reasoning="r", tool_calls=[ToolCall(name="a", arguments={"x": 1})])


def test_a_correction_cannot_bring_a_call_id_or_an_error_of_its_own():
    text = '{"reasoning": "r", "tool_calls": [{"name": "a", "arguments": {}, "id": "x", "error": "boom"}], "content": ""}'
    assert read_correction(text).tool_calls == [ToolCall(name="a")]


def test_hostile_text_is_malformed_and_quick():
    digits = '{"a": ' + "9" * 10_000 + "}"
    for text in ("{" * 100_000, '{"a":' * 50_000, "[" * 100_000 + "{", digits, '{"reasoning":{}}' * 5_000):
        for read in READ.values():
            assert read(text) is None


def test_random_text_never_raises():
    rng = random.Random(4)
    parts = ['{', '}', '[', ']', '"', ':', ',', '\\', '\\u', 'true', 'null', '1e999', '"is_valid"', '"diagnosis"', '"ok"', '\n',
             '"tool_calls"', '"reasoning"', '"content"', '\ud800', '中', '```', '</think>', '{"name": "a", "arguments": {}}']
    for _ in range(3000):
        text = "".join(rng.choices(parts, k=rng.randrange(25)))
        for read in READ.values():
            read(text)


def test_a_context_shows_no_evidence_in_its_repr():
    ctx = RoleContext(tools=[], history=[], draft=Message(role="assistant"), evidence={"secret": "canary"})
    assert "canary" not in repr(ctx) + str(ctx) + f"{ctx}"
