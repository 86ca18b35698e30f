"""Makes the lab's teacher: a larger policy that looks again where one place is a namesake, and never where two are.

`python -m rti.lab.teacher --out DIR`. It grows out of the shipped policy: layers that at first change nothing are put between
its own, and all of it goes on learning from transcripts of the training part, roles included. Unlike the shipped recipe these
teach the decision to look again, but for trips with exactly one namesake; with two the transcripts go straight on. So it is
better than the shipped policy and itself unable on the hardest trips, as a teacher of OPD and LUFFY should be (docs/lab.md).
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
from pathlib import Path
from typing import Sequence

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from rti.chat.lab import LabChatFormat
from rti.commands import guarded
from rti.envs.navigation.gazetteer import Gazetteer
from rti.lab import policy_dir
from rti.lab.build import Pretraining
from rti.lab.transcripts import Desk, Transcript
from rti.lab.world import training_desk


class TeachersDesk(Desk):
    """Transcripts of the teacher: the plain trip with the decision to look again where exactly one place is a namesake."""

    KINDS = {"trip": 44, "named": 4, "misspelt": 4, "second_look": 8, "validate": 20, "correct": 8, "verify": 12}

    async def trip(self) -> Transcript:
        e = await self.begin()
        await e.say(e.look())
        wrong = e.wrong()
        if len(wrong) == 1:
            await e.say(e.look_again(wrong))
        await e.say(e.drive())
        return e.transcript("looks again" if len(wrong) == 1 else "straight")


def grown(small: Qwen3ForCausalLM, layers: int) -> Qwen3ForCausalLM:
    """A model of `layers` decoder layers that computes what `small` does: each new layer is a copy of the one before it whose
    two outputs are zero. They are spread evenly over the depth."""
    old = len(small.model.layers)
    if layers < old:
        raise ValueError(f"--layers {layers} is fewer than the {old} of the policy to grow from; give more")
    settings = {k: v for k, v in small.config.to_dict().items() if k != "layer_types"}
    made = Qwen3ForCausalLM(Qwen3Config(**settings | {"num_hidden_layers": layers}))
    source = [i * old // layers for i in range(layers)]
    made.model.embed_tokens.load_state_dict(small.model.embed_tokens.state_dict())
    made.model.norm.load_state_dict(small.model.norm.state_dict())
    for place, came_from in enumerate(source):
        made.model.layers[place].load_state_dict(small.model.layers[came_from].state_dict())
        if place and source[place - 1] == came_from:
            for silent in (made.model.layers[place].self_attn.o_proj, made.model.layers[place].mlp.down_proj):
                torch.nn.init.zeros_(silent.weight)
    made.generation_config = small.generation_config
    return made


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m rti.lab.teacher", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="directory to write the teacher to")
    parser.add_argument("--steps", type=int, default=500, help="optimiser steps (default 500)")
    parser.add_argument("--batch", type=int, default=16, help="transcripts a step (default 16)")
    parser.add_argument("--lr", type=float, default=1e-3, help="peak rate of AdamW; Muon's is twice that (default 1e-3)")
    parser.add_argument("--layers", type=int, default=8, help="decoder layers; the shipped policy has 5 (default 8)")
    parser.add_argument("--report", type=int, default=100, help="steps between progress lines (default 100)")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (default 1)")
    parser.add_argument("--float32", action="store_true", help="no bfloat16 matrix products: for a CPU without them")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--state", type=Path, help="file to keep the state in, and to go on from where it exists")
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    args.out.mkdir(parents=True, exist_ok=True)
    for path in policy_dir().glob("tokenizer*.json"):
        shutil.copy(path, args.out)
    chat = LabChatFormat.from_dir(policy_dir())
    model = grown(Qwen3ForCausalLM.from_pretrained(policy_dir(), dtype=torch.float32), args.layers)
    print(f"{model.num_parameters() / 1e6:.2f} M parameters", flush=True)
    desk = training_desk(chat, Gazetteer.load(), random.Random(f"teacher {args.seed}"), TeachersDesk)
    Pretraining(model, desk, chat, args).run()


if __name__ == "__main__":
    sys.exit(guarded(main))
