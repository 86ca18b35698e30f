"""Loading of models and tokenizers, and the forward pass over packed sequences that the learner trains with.

Keeps "no attention across samples": a packed row [1, T] of several sequences is attended to segment by segment, so that no
T x T mask is ever built and a sample's logits do not depend on what it is packed with. May import torch and transformers.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any, Sequence

import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from rti.pretrained import resolve

VARLEN = "rti_varlen"
"""Name of our attention function in transformers' registry."""

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class ModelNotFound(FileNotFoundError):
    """There is no model where the configuration says."""


def resolve_device(name: str | torch.device) -> torch.device:
    """`auto` is cuda where there is one, else cpu."""
    if isinstance(name, torch.device):
        return name
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise RuntimeError(f"device {name!r} was asked for, but torch sees no CUDA device here; use device=cpu or auto")
    return device


def resolve_dtype(name: str | torch.dtype, device: str | torch.device) -> torch.dtype:
    """`auto` is bfloat16 on a GPU and float32 on a CPU."""
    if isinstance(name, torch.dtype):
        return name
    if name == "auto":
        return torch.bfloat16 if resolve_device(device).type == "cuda" else torch.float32
    if name not in _DTYPES:
        raise ValueError(f"unknown dtype {name!r}; one of auto, {', '.join(_DTYPES)}")
    return _DTYPES[name]


def resolve_attention(name: str, device: str | torch.device) -> str:
    """The attention function for the learner: flash_attention_2 on a GPU where installed, else ours."""
    has_flash = importlib.util.find_spec("flash_attn") is not None
    if name == "auto":
        return "flash_attention_2" if has_flash and resolve_device(device).type == "cuda" else VARLEN
    if name == "flash_attention_2" and not has_flash:
        raise RuntimeError("model.attention=flash_attention_2 needs the flash-attn package, which is not installed here; "
                           "install RTI with its `flash-attn` extra, or use model.attention=auto")
    if name in ("sdpa", VARLEN):
        return VARLEN
    if name == "flash_attention_2":
        return name
    raise ValueError(f"unknown attention {name!r}; one of auto, flash_attention_2, sdpa")


def model_path(path: str) -> str:
    """The directory that `lab` or `smollm2` stands for; anything else is a Hugging Face directory or name."""
    path = resolve(path)
    directory = Path(path)
    looks_local = directory.is_absolute() or path.startswith((".", "~")) or path.count("/") != 1
    if directory.is_dir() and not (directory / "config.json").is_file():
        raise ModelNotFound(f"{path} is a directory without a config.json: give one that `save_pretrained` wrote")
    if not directory.exists() and looks_local:
        raise ModelNotFound(f"no model at {path}: model.path is `lab`, `smollm2`, a Hugging Face directory, or a name "
                            "like owner/model")
    return path


def load_model(path: str, dtype: str | torch.dtype = "auto", device: str | torch.device = "auto",
               attention: str = "auto") -> PreTrainedModel:
    """A causal language model with its weights, in eval mode, on `device`, with the attention that packed_forward needs."""
    device = resolve_device(device)
    model = AutoModelForCausalLM.from_pretrained(
        model_path(path), dtype=resolve_dtype(dtype, device), attn_implementation=resolve_attention(attention, device))
    return keep_segments_apart(model).to(device).eval()


def load_tokenizer(path: str) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(model_path(path))


# --- packed sequences --------------------------------------------------------------------------------------------
def packed_forward(model: torch.nn.Module, token_ids: torch.Tensor, position_ids: torch.Tensor,
                   cu_seqlens: torch.Tensor | Sequence[int]) -> torch.Tensor:
    """Logits [T, V] of sequences packed one after another in `token_ids` [T]; `cu_seqlens` = 0, end of 1st, ..., T.

    `model` may be wrapped by FSDP2. Logits at t depend only on the tokens of t's own sequence up to t.
    """
    kwargs = _packed_kwargs(model.config, token_ids, cu_seqlens)
    return model(input_ids=token_ids[None], position_ids=position_ids[None], use_cache=False, **kwargs).logits[0]


def packed_hidden(model: PreTrainedModel, token_ids: torch.Tensor, position_ids: torch.Tensor,
                  cu_seqlens: torch.Tensor | Sequence[int]) -> torch.Tensor:
    """Last hidden states [T, H] (what the output embedding is applied to) of a packed row; as packed_forward otherwise."""
    kwargs = _packed_kwargs(model.config, token_ids, cu_seqlens)
    out = model.base_model(input_ids=token_ids[None], position_ids=position_ids[None], use_cache=False, **kwargs)
    return out.last_hidden_state[0]


def _packed_kwargs(config: Any, token_ids: torch.Tensor, cu_seqlens: torch.Tensor | Sequence[int]) -> dict[str, Any]:
    bounds = tuple(int(b) for b in (cu_seqlens.tolist() if isinstance(cu_seqlens, torch.Tensor) else cu_seqlens))
    if bounds[0] != 0 or bounds[-1] != len(token_ids) or any(a >= b for a, b in zip(bounds, bounds[1:])):
        raise ValueError(f"cu_seqlens must rise from 0 to the number of tokens ({len(token_ids)}), got {bounds}")
    if config._attn_implementation == VARLEN:
        return {"segment_bounds": bounds}
    cu = torch.tensor(bounds, dtype=torch.int32, device=token_ids.device)   # transformers' own flash attention: its names
    longest = max(b - a for a, b in zip(bounds, bounds[1:]))
    return {"cu_seq_lens_q": cu, "cu_seq_lens_k": cu, "max_length_q": longest, "max_length_k": longest}


def keep_segments_apart(model: PreTrainedModel) -> PreTrainedModel:
    """The same model, whose recurrent layers (Qwen3.5's gated delta nets) run each sequence of a packed row by itself: their
    state would go from one into the next. Raises ValueError for a recurrent model of another kind."""
    recurrent = [m for m in model.modules() if type(m).__name__.endswith("GatedDeltaNet")]
    if not recurrent and getattr(model, "_is_stateful", False):
        raise ValueError(f"{type(model).__name__} carries a state along its input, which would go from one sample of a packed "
                         "row into the next: this kind cannot be trained here; choose a model of attention or gated delta nets")
    for module in recurrent:
        module.forward = _by_segment(module.forward)
    return model


def _by_segment(forward: Any) -> Any:
    def apart(hidden_states: torch.Tensor, cache_params: Any = None, attention_mask: torch.Tensor | None = None,
              segment_bounds: Sequence[int] | None = None, cu_seq_lens_q: torch.Tensor | None = None,
              **_: Any) -> torch.Tensor:
        bounds = cu_seq_lens_q.tolist() if segment_bounds is None and cu_seq_lens_q is not None else segment_bounds
        if bounds is None or cache_params is not None:
            return forward(hidden_states, cache_params, attention_mask)
        sizes = [b - a for a, b in zip(bounds, bounds[1:])]
        return torch.cat([forward(part) for part in hidden_states.split(sizes, 1)], 1)

    return apart


def segment_bounds_of(position_ids: torch.Tensor) -> tuple[int, ...]:
    """0, ..., T of a packed row from its position ids [1, T]: a sequence begins where they do not go up by one."""
    starts = (position_ids[0].diff() != 1).nonzero().flatten() + 1
    return (0, *starts.tolist(), position_ids.shape[-1])


def varlen_attention(module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
                     attention_mask: torch.Tensor | None, scaling: float | None = None, dropout: float = 0.0,
                     sliding_window: int | None = None, segment_bounds: tuple[int, ...] | None = None,
                     position_ids: torch.Tensor | None = None, **_: Any) -> tuple[torch.Tensor, None]:
    """Causal attention [B, heads, T, dim], segment by segment where B is 1 and the row is packed.

    Boundaries come from `segment_bounds`, else from restarts of `position_ids`. Also serves a plain batch and, for
    transformers' own generate without padding, queries over a longer cache.
    """
    q_len, kv_len = query.shape[2], key.shape[2]
    if segment_bounds is None:
        packed = query.shape[0] == 1 and q_len == kv_len and position_ids is not None and position_ids.ndim == 2
        segment_bounds = segment_bounds_of(position_ids) if packed else (0, q_len)
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    if q_len != kv_len:
        out = _causal(query, key, value, scaling, dropout, sliding_window)
        return out.transpose(1, 2).contiguous(), None
    sizes = [b - a for a, b in zip(segment_bounds, segment_bounds[1:])]
    # split, not slices: the backward pass of a slice fills a whole row with zeros, once for every segment.
    parts = [_causal(q, k, v, scaling, dropout, sliding_window)
             for q, k, v in zip(query.split(sizes, 2), key.split(sizes, 2), value.split(sizes, 2))]
    return torch.cat(parts, 2).transpose(1, 2).contiguous(), None


def _causal(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float | None, dropout: float,
            window: int | None) -> torch.Tensor:
    q_len, kv_len = query.shape[2], key.shape[2]
    mask = None
    if kv_len != q_len or (window is not None and window < kv_len):
        q_pos = torch.arange(kv_len - q_len, kv_len, device=query.device)[:, None]
        k_pos = torch.arange(kv_len, device=query.device)[None]
        mask = k_pos <= q_pos
        if window is not None:
            mask &= k_pos > q_pos - window
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout, scale=scaling,
                                          is_causal=mask is None)


def _no_mask(*args: Any, attention_mask: torch.Tensor | None = None, **_: Any) -> None:
    """transformers asks for a mask: ours is implicit. Padding would be attended to silently, so it is refused."""
    if attention_mask is not None and not bool(attention_mask.all()):
        raise ValueError(f"the {VARLEN} attention takes packed rows without padding (see packed_forward), "
                         "but the attention mask has zeros; load the model with attn_implementation='sdpa' for padded batches")
    return None


ALL_ATTENTION_FUNCTIONS.register(VARLEN, varlen_attention)
ALL_MASK_ATTENTION_FUNCTIONS.register(VARLEN, _no_mask)
