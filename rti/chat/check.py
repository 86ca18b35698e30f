"""`python -m rti.chat.check MODEL`: whether a model can be trained here, and with which chat format.

Encodes turns and reads them again in every format that the tokenizer can serve, and renders conversations whole and turn by
turn. With `--sample N` the model itself is asked to call a tool. Exit code 0: there is a format in which all holds; 1: there is
none; 2: no tokenizer. Keeps nothing and changes nothing.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rti.chat import NAMES, ChatFormat, load_chat_format, next_prompt
from rti.commands import guarded
from rti.pretrained import PolicyMissing, resolve
from rti.trajectory import Message, ToolCall, ToolSchema

TOOLS = (
    ToolSchema(name="find_shop", description="Finds shops in a town.", parameters={
        "type": "object", "required": ["town"], "properties": {
            "town": {"type": "string", "description": "Name of the town"},
            "kinds": {"type": "array", "items": {"type": "string"}}, "page": {"type": "integer"},
            "open_now": {"type": "boolean"}}}),
    ToolSchema(name="book_table", description="Books a table.", parameters={
        "type": "object", "required": ["shop_id"],
        "properties": {"shop_id": {"type": "string"}, "seats": {"type": "integer"}}}),
)
ASKED = (Message(role="system", content="You help people with shops. Use the tools."),
         Message(role="user", content="Which tea shops are open in Yichang (宜昌) now?"))


def _turn(*calls: tuple[str, dict], content: str = "", reasoning: str = "") -> Message:
    return Message(role="assistant", content=content, reasoning=reasoning,
                   tool_calls=[ToolCall(name=n, arguments=a, id=f"call_{i}") for i, (n, a) in enumerate(calls)])


TURNS = {
    "a call": _turn(("find_shop", {"town": "Yichang"})),
    "a call with all types, after a thought": _turn(
        ("find_shop", {"town": "宜昌 \"old\" <town>", "kinds": ["tea", "a, b"], "page": 2, "open_now": True}),
        reasoning="First look."),
    "two calls": _turn(("find_shop", {"town": "Yichang"}), ("book_table", {"shop_id": "007", "seats": 2})),
    "plain words": _turn(content="There are two: A & B."),
}


class Finding(NamedTuple):
    """Of one question to a format. `ok` None: an answer that is neither good nor bad."""

    ok: bool | None
    text: str


def findings(chat: ChatFormat) -> Iterator[Finding]:
    """What holds in a format and what does not."""
    for what, turn in TURNS.items():
        read = chat.parse(chat.encode_turn(turn), TOOLS)
        same = _said(read) == _said(turn)
        yield Finding(same, f"{what}: read as written" if same else f"{what}: written {_said(turn)}, read {_said(read)}")
    broken = chat.parse(chat.encode_turn(_turn(content="<tool_call>{\"name\": }</tool_call>")), TOOLS)
    told = not broken.tool_calls or all(c.error for c in broken.tool_calls)
    yield Finding(told, "a call that cannot be read is told from one that can")
    shown = all(tool.name in chat.decode(chat.render(ASKED, TOOLS)) for tool in TOOLS)
    yield Finding(True if shown else None, "the prompt shows the tools" if shown else
                  "the prompt does not show the tools: only a model that knows them by heart can call them")
    yield from _prefix(chat)


def _prefix(chat: ChatFormat) -> Iterator[Finding]:
    """Whether a prompt goes on from the turn that was sampled, after a tool's reply and after a user's words."""
    call = TURNS["a call with all types, after a thought"]
    reply = Message(role="tool", name="find_shop", tool_call_id="call_0", content="1: Tea House")
    sampled = [*chat.render(ASKED, TOOLS), *chat.encode_turn(call)]
    after_tool, extends = next_prompt(chat, [*ASKED, call, reply], TOOLS, sampled)
    yield Finding(extends, "a tool's reply extends what was sampled: one sample" if extends else
                  "a tool's reply makes the template rewrite what was sampled")
    same = after_tool == list(chat.render([*ASKED, call, reply], TOOLS))
    yield Finding(True if same else None, "turn by turn gives the template's own tokens" if same else
                  "turn by turn differs from the template's own rendering (spacing of calls): trained is what was sampled")
    said = _turn(content="It is the Tea House.", reasoning="Only one.")
    _, extends = next_prompt(chat, [*ASKED, said, Message(role="user", content="And tomorrow?")], TOOLS,
                             [*chat.render(ASKED, TOOLS), *chat.encode_turn(said)])
    yield Finding(True if extends else None, "a user's words extend it, too" if extends else
                  "a user's words make the template drop earlier thinking: each begins a new sample (docs/chat.md)")


def _said(m: Message) -> tuple:
    return m.reasoning.strip(), m.content.strip(), [(c.name, c.arguments, c.error) for c in m.tool_calls]


def usable(model: str, names: Sequence[str]) -> dict[str, ChatFormat | str]:
    """Each format over the model's tokenizer, or why it cannot be had."""
    found: dict[str, ChatFormat | str] = {}
    for name in names:
        try:
            found[name] = load_chat_format(name, model)
        except ValueError as e:
            found[name] = str(e)
    return found


def sample(chat: ChatFormat, model: str, n: int) -> tuple[int, int, str]:
    """The model's own answers to ASKED at temperature 0.8: (with readable calls only, with any call, the first as text)."""
    import torch
    from transformers import AutoModelForCausalLM

    policy = AutoModelForCausalLM.from_pretrained(resolve(model)).eval()
    prompt = torch.tensor([chat.render(ASKED, TOOLS)])
    torch.manual_seed(0)
    with torch.no_grad():
        out = policy.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=True, temperature=0.8, top_p=1.0,
                              max_new_tokens=256, num_return_sequences=n, eos_token_id=list(chat.stop_token_ids),
                              pad_token_id=chat.stop_token_ids[0])
    turns = [_cut(row[prompt.shape[1]:].tolist(), chat.stop_token_ids) for row in out]
    read = [chat.parse(ids, TOOLS) for ids in turns]
    called = [m for m in read if m.tool_calls]
    return sum(not any(c.error for c in m.tool_calls) for m in called), len(called), chat.decode(turns[0])


def _cut(ids: list[int], stops: Sequence[int]) -> list[int]:
    """Up to the first stop token: what follows is padding."""
    end = next((i for i, token in enumerate(ids) if token in stops), len(ids))
    return ids[:end + 1]


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m rti.chat.check",
                                     description="Tell whether a model's tool calls parse and turns extend the prefix.")
    parser.add_argument("model", metavar="MODEL", help="what model.path would be: a directory, a hub name, lab, smollm2")
    parser.add_argument("--chat", default="", choices=NAMES, help="one format only (default: all that can be had)")
    parser.add_argument("--sample", type=int, default=0, metavar="N", help="also load the model and ask it for N turns")
    args = parser.parse_args(words)
    try:
        auto = load_chat_format("auto", args.model)
    except (ValueError, PolicyMissing) as e:
        print(f"error: {e}", file=sys.stderr)
        return 2
    found = usable(args.model, [args.chat] if args.chat else [n for n in NAMES if n != "auto"])
    best = _report(found, type(auto))
    if best is None:
        print("\nNone of these formats serves: take another model, or write a format (rti/chat/base.py)")
        return 1
    chosen = found[best]
    assert not isinstance(chosen, str)
    print(f"\nUse model.chat={'auto, which is ' if type(chosen) is type(auto) else ''}{best}. Turns end with "
          f"{', '.join(chosen.decode([i]) for i in chosen.stop_token_ids)}.")
    if args.sample:
        _say_sampled(*sample(chosen, args.model, args.sample), args.sample)
    return 0


def _report(found: dict[str, ChatFormat | str], auto: type) -> str | None:
    """Print what holds in each format; the one to take: auto's where all holds in it, else the first."""
    good = []
    for name, chat in found.items():
        print(f"{name}:")
        if isinstance(chat, str):
            print(f"  -       cannot be had: {chat}")
            continue
        seen = list(findings(chat))
        for ok, text in seen:
            print(f"  {'note' if ok is None else 'ok' if ok else 'BREACH':<8}{text}")
        if all(f.ok is not False for f in seen):
            good.append((type(chat) is not auto, name))
    return min(good)[1] if good else None


def _say_sampled(readable: int, called: int, first: str, n: int) -> None:
    print(f"Of {n} sampled turns {called} call a tool, {readable} of these readably. The first:\n\n{first}")
    if called < n / 2:
        print("\nFew turns call a tool: a stronger instruct model, or one trained for tool calls, learns faster")


if __name__ == "__main__":
    sys.exit(guarded(main))
