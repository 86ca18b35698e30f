# make quickstart   install, train the lab policy with RTI, print the table and where things are
# make test         install, run the test suite
# make docs         write the documentation that comes from the source
# make clean        remove what tests and builds left (not runs/, not .venv)
# Everything is installed into .venv, which is made once from setup.py; an existing one is kept.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

export RAY_USAGE_STATS_ENABLED := 0
export HF_HUB_DISABLE_TELEMETRY := 1
export TOKENIZERS_PARALLELISM := false

.PHONY: quickstart test docs install clean

quickstart: $(INSTALLED)
	$(BIN)/python launch/rti.py --config lab.yaml
	@echo
	@echo "The run is in runs/lab: summary.json, metrics.jsonl, ledger.jsonl, trajectories/, checkpoints/."
	@echo "Plots:  $(BIN)/tensorboard --logdir runs/lab/tensorboard"
	@echo "Audit:  $(BIN)/python -m rti.run.audit runs/lab"

test: $(INSTALLED)
	$(BIN)/python -m pytest

docs: $(INSTALLED)
	$(BIN)/python -m rti.config.describe > docs/configuration.md

install: $(INSTALLED)

$(INSTALLED): setup.py
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -e '.[dev]'
	touch $@

clean:
	rm -rf build dist *.egg-info .pytest_cache .hypothesis
	find rti launch tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
