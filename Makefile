# Everything runs in .venv, which `make setup` makes once and again when pyproject.toml changes.

PYTHON ?= python3
BIN := .venv/bin
AUDIO ?= $(firstword $(wildcard ../shared/speech/speech-en) tests/data)

.PHONY: setup clients talk test check bench serve clean

setup: .venv/.installed

.venv/.installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "$(PYTHON) must be Python 3.11 or newer; name another: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "$(PYTHON) cannot make virtual environments; on Debian: sudo apt install python3-venv" >&2; exit 1; }
	@$(PYTHON) -c 'import ctypes, sys; sys.platform != "linux" or ctypes.CDLL("libgomp.so.1")' 2>/dev/null || \
	  { echo "libgomp.so.1 is missing (llama.cpp needs it); on Debian: sudo apt install libgomp1" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

# The clients that tests/clients runs; without them those tests are skipped. instructor wants an older openai
# than the others, and openai for Node is npm's, where there is npm.
clients: .venv/.clients .venv-clients/.installed

.venv/.clients: .venv/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,clients]'
	@touch $@

.venv-clients/.installed: Makefile
	$(PYTHON) -m venv .venv-clients/instructor
	.venv-clients/instructor/bin/python -m pip install --quiet --disable-pip-version-check instructor==1.17.0
	if command -v npm >/dev/null; then \
	  npm install --silent --no-audit --no-fund --prefix .venv-clients/node openai@7.59.0; fi
	@touch $@

talk: setup
	$(BIN)/antiphon talk tests/data/question.wav --save reply.wav

test: setup
	$(BIN)/antiphon models fetch
	$(BIN)/python -m pytest -m 'not gpu'

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright --pythonpath $(BIN)/python

bench: setup
	$(BIN)/antiphon bench asr --audio $(AUDIO)
	$(BIN)/antiphon bench latency --audio $(AUDIO) --serial

serve: setup
	$(BIN)/antiphon serve

clean:
	rm -rf .venv .venv-clients build dist *.egg-info .pytest_cache .ruff_cache .hypothesis reply.wav
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
