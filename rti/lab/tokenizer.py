"""The lab policy's tokenizer: byte-level BPE trained on place names, the JSON skeletons of turns and roles as single tokens.

Digits come in groups of at most two, counted from the left, so that a coordinate always has the same tokens wherever it
stands and can be copied. Names are those of the gazetteer's *training* part only.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Iterable

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from rti.chat.lab import END, PAD, ROLE_TOKENS

MARKERS = [PAD, END, *ROLE_TOKENS.values()]

SKELETONS = [
    # a turn, and the Corrector's answer
    '{"reasoning": "', '", "tool_calls": [', '], "content": "', '"}',
    '{"name": "poi_search", "arguments": {"address": "', '", "region": "', '"}}, ', '"}}',
    '{"name": "around_search", "arguments": {"location": "', '", "radius": ', ', "keyword": "',
    '{"name": "direction", "arguments": {"origin": "', '", "waypoints": ["', '"], "destination": "', '", "destination": "',
    '", "mode": "driving"}}', '", "mode": "',
    "Find the places.", "Look again.", "All found.",
    # the roles: what is asked, and the Validator's and the Verifier's answers
    "Validate.\n", "Correct.\n", "Verify.\n", "\nDraft: ", "\nCorrected: ",
    '{"diagnosis": "', '", "is_valid": true, "error_types": [', '", "is_valid": false, "error_types": [',
    '], "suggest_next": "', '{"ok": true, "reasons": [', '{"ok": false, "reasons": [', '], "diagnosis": "',
    '"FABRICATED_ARGUMENTS"', '"POINTLESS_REPEAT"', '"PREMATURE_TERMINATION"', '"ARGUMENT_MISMATCH"',
    '"leak"', '"not_derivable"', '"unreasonable_calibration"', "Fine.", "Wrong place: ", "Search again: ", "Not yet found: ",
    "Call direction with the places found.", "Uses coordinates that no tool returned.",
    "Holds coordinates that no tool returned.", "Holds a name that the history does not show.",
]


def build(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Train the tokenizer. `texts`: plain text (queries, observations, reasoning) of training transcripts."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(r" ?\p{L}+|\d{1,2}| ?[^\s\p{L}\d]|\s+"), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(MARKERS) - len(SKELETONS), initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False, special_tokens=[],
    )
    pairs = [f"{i:02d}" for i in range(100)]
    tokenizer.train_from_iterator([*texts, *(pairs * 10_000)], trainer)
    tokenizer.add_special_tokens([AddedToken(t, normalized=False) for t in MARKERS])
    tokenizer.add_tokens([AddedToken(t, normalized=False, special=False) for t in SKELETONS])
    return tokenizer


def save(tokenizer: Tokenizer, directory: Path) -> None:
    """tokenizer.json and the tokenizer_config.json that transformers and `load_chat_format` read."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "rti_chat": "lab", "pad_token": PAD, "eos_token": END,
              "clean_up_tokenization_spaces": False}
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")
