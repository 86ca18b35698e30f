"""Whether two models speak the same tokens: what lets one of them read and continue what the other wrote, id by id.

Compared is what ids mean (the vocabulary with its added and special tokens, and how text is cut into them), never a name or a
path. What a model's own chat template says is not: a teacher is always asked in the policy's format. Nor are embeddings that
are padded beyond the vocabulary.
"""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer

from rti.pretrained import resolve

HOW_TEXT_IS_CUT = ("normalizer", "pre_tokenizer", "decoder", "model")


class OtherTokens(ValueError):
    """A teacher whose token ids mean something else than the policy's."""


def check_same_tokens(policy: str, teacher: str) -> None:
    """Raise OtherTokens where the tokenizers of two models (as model.path names them) differ."""
    mine, other = _tokenizer(policy), _tokenizer(teacher)
    difference = _vocabularies(mine, other) or _pipelines(mine, other)
    if difference:
        raise OtherTokens(f"teacher.path is {teacher!r}, whose tokenizer is not that of the policy {policy!r}: {difference}. A "
                          "teacher reads and writes the policy's token ids: give a model of the same family; a model with "
                          "another tokenizer can play roles of the intervention through an endpoint (player: endpoint)")


def _tokenizer(path: str) -> Tokenizer:
    file = Path(resolve(path)) / "tokenizer.json"
    if file.is_file():
        return Tokenizer.from_file(str(file))
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(resolve(path)).backend_tokenizer


def _vocabularies(mine: Tokenizer, other: Tokenizer) -> str:
    ours, theirs = mine.get_vocab(with_added_tokens=True), other.get_vocab(with_added_tokens=True)
    odd = next((t for t in sorted(ours.keys() | theirs.keys(), key=lambda t: (ours.get(t, theirs.get(t)), t))
                if ours.get(t) != theirs.get(t)), None)
    if odd is not None:
        return (f"{len(ours)} tokens there are in the one, {len(theirs)} in the other, and {odd!r} is "
                f"{_id(ours, odd)} here and {_id(theirs, odd)} there")
    special = [{i: t.content for i, t in tokenizer.get_added_tokens_decoder().items() if t.special}
               for tokenizer in (mine, other)]
    odd_ids = sorted(special[0].items() ^ special[1].items())
    return f"{odd_ids[0][1]!r} is a special token in only one of them" if odd_ids else ""


def _id(vocabulary: dict[str, int], token: str) -> str:
    return f"id {vocabulary[token]}" if token in vocabulary else "no token"


def _pipelines(mine: Tokenizer, other: Tokenizer) -> str:
    here, there = json.loads(mine.to_str()), json.loads(other.to_str())
    odd = [name for name in HOW_TEXT_IS_CUT if here.get(name) != there.get(name)]
    return f"they cut text in different ways ({', '.join(odd)})" if odd else ""
