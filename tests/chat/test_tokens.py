"""Two models share a tokenizer or not: by what their ids mean, whatever they are called."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from rti.chat.tokens import OtherTokens, check_same_tokens
from rti.lab import policy_dir


@pytest.fixture
def copy(tmp_path) -> Path:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(Path(policy_dir()) / name, tmp_path / name)
    return tmp_path


def edited(directory: Path, change) -> str:
    file = directory / "tokenizer.json"
    tree = json.loads(file.read_text(encoding="utf-8"))
    change(tree)
    file.write_text(json.dumps(tree), encoding="utf-8")
    return str(directory)


def test_a_copy_under_another_name_is_the_same(copy):
    check_same_tokens("lab", str(copy))


def swapped(tree):
    vocabulary = tree["model"]["vocab"]
    one, other = [t for t, i in vocabulary.items() if i in (100, 101)]
    vocabulary[one], vocabulary[other] = vocabulary[other], vocabulary[one]


def test_two_tokens_that_changed_their_ids_are_found_and_named(copy):
    with pytest.raises(OtherTokens, match=r"is id 10[01] here and id 10[01] there.*of the same family.*player: endpoint"):
        check_same_tokens("lab", edited(copy, swapped))


def test_a_token_more_is_found(copy):
    more = {"id": 9999, "content": "<|more|>", "special": True, "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": False}
    with pytest.raises(OtherTokens, match=r"'<\|more\|>' is no token here"):
        check_same_tokens("lab", edited(copy, lambda tree: tree["added_tokens"].append(more)))


def test_a_special_token_that_is_plain_text_to_the_other_is_found(copy):
    def plain(tree):
        next(t for t in tree["added_tokens"] if t["content"] == "<|user|>")["special"] = False

    with pytest.raises(OtherTokens, match=r"'<\|user\|>' is a special token in only one"):
        check_same_tokens("lab", edited(copy, plain))


def test_text_that_is_cut_in_another_way_is_found(copy):
    with pytest.raises(OtherTokens, match="cut text in different ways .*normalizer"):
        check_same_tokens("lab", edited(copy, lambda tree: tree.update(normalizer={"type": "Lowercase"})))
