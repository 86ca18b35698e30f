"""Makes a larger policy that computes what the shipped one does: `python -m rti.lab.grow --out DIR [--layers 8]`.

New layers are put between the shipped policy's own, each a copy of the one before it whose two outputs are zero: nothing
changes until it is trained. The study trains one with RTI as the teacher of OPD and LUFFY and as a stronger intervener.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path
from typing import Sequence

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from rti.commands import guarded
from rti.lab import policy_dir


def grown(small: Qwen3ForCausalLM, layers: int) -> Qwen3ForCausalLM:
    """A model of `layers` decoder layers with `small`'s outputs, to the bit. The new ones are spread evenly over the depth.
    Raises ValueError where `layers` is fewer than there are."""
    old = len(small.model.layers)
    if layers < old:
        raise ValueError(f"--layers {layers} is fewer than the {old} of the policy to grow from; give {old} or more")
    settings = {k: v for k, v in small.config.to_dict().items() if k != "layer_types"}
    made = Qwen3ForCausalLM(Qwen3Config(**settings | {"num_hidden_layers": layers}))
    made.model.embed_tokens.load_state_dict(small.model.embed_tokens.state_dict())
    made.model.norm.load_state_dict(small.model.norm.state_dict())
    source = [place * old // layers for place in range(layers)]
    for place, came_from in enumerate(source):
        layer = made.model.layers[place]
        layer.load_state_dict(small.model.layers[came_from].state_dict())
        if place and source[place - 1] == came_from:
            torch.nn.init.zeros_(layer.self_attn.o_proj.weight)
            torch.nn.init.zeros_(layer.mlp.down_proj.weight)
    made.generation_config = small.generation_config
    return made


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m rti.lab.grow", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="directory to write the policy to")
    parser.add_argument("--layers", type=int, default=8, help="decoder layers; the shipped policy has 5 (default 8)")
    args = parser.parse_args(argv)
    model = grown(Qwen3ForCausalLM.from_pretrained(policy_dir(), dtype=torch.float32), args.layers)
    args.out.mkdir(parents=True, exist_ok=True)
    for path in policy_dir().glob("tokenizer*.json"):
        shutil.copy(path, args.out)
    model.save_pretrained(args.out)
    print(f"{model.num_parameters() / 1e6:.2f} M parameters: {args.out}")


if __name__ == "__main__":
    sys.exit(guarded(main))
