# Two commands are all a newcomer needs: `make run` and `make test`.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# Only locked versions are installed, each checked against its hash; the project itself needs no network then.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: help run demo test lint types check properties evidence soak fuzz bench growth request streams reading replay decision journal report picture stats acceptance lock clean
.DEFAULT_GOAL := help

help: ## show this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Ramjet needs Python 3.11 or newer: make PYTHON=/path/to/python3.11 run" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: $(BIN)/python requirements/run.txt pyproject.toml
	$(INSTALL) --require-hashes -r requirements/run.txt
	$(INSTALL) --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.run requirements/dev.txt scripts/kubectl.sh
	$(INSTALL) --require-hashes -r requirements/dev.txt
	scripts/kubectl.sh $(VENV)
	@touch $@

run: $(VENV)/.run ## two simulated replicas with Ramjet in front, on 127.0.0.1:8000
	@exec $(BIN)/ramjet demo $(ARGS)

# On every core: nearly all tests wait for sockets or reckon; those that measure time are marked `alone`.
test: $(VENV)/.dev ## every test, on all cores
	$(BIN)/python -m pytest --numprocesses logical --maxprocesses 8 --dist worksteal $(ARGS)

lint: $(VENV)/.dev ## style and likely bugs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev ## static types
	$(BIN)/mypy

check: lint types test ## everything before a commit

properties: $(VENV)/.dev ## what must hold for everything, with ten times the examples
	TIMES=10 $(BIN)/python -m pytest --numprocesses logical --dist worksteal --timeout 1800 tests/core tests/sim $(ARGS)

evidence: $(VENV)/.dev ## the long measurements; results go to docs/evidence/
	$(BIN)/python -m pytest -m evidence --timeout 3600 $(ARGS)

acceptance: $(VENV)/.dev ## real SGLang and vLLM on the CPU behind Ramjet; installs them, 7 GB (ARGS="-k vllm")
	$(BIN)/python -m tests.acceptance.install
	$(BIN)/python -m pytest -m acceptance --timeout 1800 $(ARGS)

soak: $(VENV)/.dev ## ten minutes of traffic while a replica falls ill in every way (SECONDS_=60)
	$(BIN)/python -m tests.soak --seconds $(or $(SECONDS_),600) $(ARGS)

fuzz: $(VENV)/.dev ## 200,000 mutated requests and answers (ARGS="--count 2000")
	$(BIN)/python -m tests.fuzz $(ARGS)

bench: $(VENV)/.dev ## what requests cost through Ramjet, as multiples of haproxy's (ARGS="--rounds 3")
	@$(BIN)/python -m benchmarks.proxy $(ARGS)

growth: $(VENV)/.dev ## how that grows: with bodies, replicas, streams, conversations (ARGS="--axis body")
	@$(BIN)/python -m benchmarks.proxy.growth $(ARGS)

replay: $(VENV)/.run ## 50,000 recorded requests through one simulated replica (ARGS="--requests 5000")
	@$(BIN)/python benchmarks/sim_replay.py $(ARGS)

reading: $(VENV)/.run ## what reading a prompt costs, and what is kept of it (ARGS="--json")
	@$(BIN)/python benchmarks/reading.py $(ARGS)

decision: $(VENV)/.run ## what one routing decision costs (ARGS="--replicas 4 --conversations 1000")
	@$(BIN)/python benchmarks/decision.py $(ARGS)

request: $(VENV)/.run ## what is done for one request, by part, in microseconds (ARGS="--requests 500")
	@$(BIN)/python benchmarks/request.py $(ARGS)

journal: $(VENV)/.run ## what the journal costs: size, rows a second, delay (ARGS="--requests 100000")
	@$(BIN)/python benchmarks/journal.py $(ARGS)

report: $(VENV)/.run ## what a report on a million requests costs (ARGS="--requests 100000")
	@$(BIN)/python benchmarks/report.py $(ARGS)

picture: $(VENV)/.run ## what it costs to be watched, and to be asked (ARGS="--replicas 4 --conversations 1000")
	@$(BIN)/python benchmarks/picture.py $(ARGS)

stats: $(VENV)/.run ## what it costs to ask 64 replicas every second what they are doing (ARGS="--seconds 60")
	@$(BIN)/python benchmarks/stats.py $(ARGS)

streams: $(VENV)/.run ## what a chunk of a streamed answer costs on its way (ARGS="--chunks 1000")
	@$(BIN)/python benchmarks/streams.py $(ARGS)

lock: $(VENV)/.dev ## write requirements/*.txt anew from pyproject.toml
	scripts/lock.sh $(BIN)

clean: ## remove the virtual environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
