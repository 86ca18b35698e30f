#!/usr/bin/env bash
# What differs on a GPU, checked on one: torch engine, FSDP2, flash-attention against SDPA, bfloat16 mismatch, a lab run; and
# weights over NCCL, where there are two GPUs and vLLM.
# At most eight minutes. Needs a checkout with .venv (make install) and a CUDA build of torch in it.
#   scripts/gpu_check.sh            on the first GPU
#   RTI_GPU_DEVICE=cpu scripts/gpu_check.sh      what a CPU can run of it
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON="${PYTHON:-.venv/bin/python}"
export RAY_USAGE_STATS_ENABLED=0 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false RTI_GPU_DEVICE="${RTI_GPU_DEVICE:-cuda}"

"$PYTHON" - <<'PY'
import importlib.util
import os
import sys

import torch

there = torch.cuda.is_available()
print(f"torch {torch.__version__}, CUDA {torch.version.cuda}, "
      + (f"{torch.cuda.get_device_name(0)}, {torch.cuda.get_device_properties(0).total_memory / 1e9:.0f} GB" if there else "no GPU")
      + f", flash-attn {'installed' if importlib.util.find_spec('flash_attn') else 'not installed'}")
if os.environ["RTI_GPU_DEVICE"] == "cuda" and not there:
    sys.exit("no CUDA device: install a CUDA build of torch, or run with RTI_GPU_DEVICE=cpu")
PY
exec timeout --signal=INT --kill-after=20 460 "$PYTHON" -m pytest -m gpu tests/gpu -v --timeout=300 "$@"
