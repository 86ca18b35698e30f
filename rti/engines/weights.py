"""Replacing a model's weights while it serves: all of them or none, every name accounted for, tied ones included.

Keeps faults 22 and 23 out: a name that is missing or not known is refused before anything is copied. May import torch.
"""

from __future__ import annotations

from typing import Any, Mapping

import torch
from torch import nn


class WeightsMismatch(ValueError):
    """The weights given are not those of this model; nothing was changed."""


def replace_weights(model: nn.Module, state: Mapping[str, Any]) -> None:
    """Copy `state` (Hugging Face names -> tensors or arrays of any float dtype) into the model's own tensors.

    Of names that the model ties (an embedding and its lm_head) one is enough; two must be equal.
    """
    targets, sources = check_weights(model, state)
    with torch.no_grad():
        for name, source in sources.items():
            targets[name].data.copy_(source)


def check_weights(model: nn.Module, state: Mapping[str, Any]) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """The model's own tensors and those given, by name; WeightsMismatch where they do not fit. The model may be on `meta`."""
    targets = model.state_dict(keep_vars=True)
    sources = {name: torch.as_tensor(value) for name, value in state.items()}
    _check_names(targets, sources)
    _check_tied(targets, sources)
    return targets, sources


def _check_names(targets: Mapping[str, torch.Tensor], sources: Mapping[str, torch.Tensor]) -> None:
    given = {id(targets[name]) for name in sources if name in targets}
    missing = [name for name, target in targets.items() if name not in sources and id(target) not in given]
    unknown = [name for name in sources if name not in targets]
    shapes = [f"{name} {tuple(source.shape)} instead of {tuple(targets[name].shape)}" for name, source in sources.items()
              if name in targets and source.shape != targets[name].shape]
    faults = [f"{len(names)} {what}: {_some(names)}" for what, names in
              (("missing", missing), ("not of this model", unknown), ("of another shape", shapes)) if names]
    if faults:
        raise WeightsMismatch("weights refused, nothing was changed. " + "; ".join(faults))


def _check_tied(targets: Mapping[str, torch.Tensor], sources: Mapping[str, torch.Tensor]) -> None:
    first: dict[int, str] = {}
    for name, source in sources.items():
        other = first.setdefault(id(targets[name]), name)
        if other != name and sources[other] is not source and not torch.equal(sources[other], source):
            raise WeightsMismatch(f"weights refused, nothing was changed. The model ties {other} and {name}, "
                                  "but the values given differ")


def _some(names: list[str], most: int = 8) -> str:
    return ", ".join(names[:most]) + (f", and {len(names) - most} more" if len(names) > most else "")
