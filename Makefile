.DEFAULT_GOAL := help

BIN := .venv/bin
# Tests and demo start many processes: each would have to compile everything anew.
export PYTHONDONTWRITEBYTECODE :=
# What "make bench" passes to each benchmark, and "make lock" to the resolver.
bench: ARGS ?= --quick
lock: ARGS ?=

.PHONY: help setup test lint format demo lab bench chaos fast soak lock clean

help: ## Show this help
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Create .venv from requirements.lock and install the system tools
	@sh scripts/setup.sh

# Much of the time goes to waiting for slow links, so there are more workers than cores; each takes whole files, whose
# tests share servers. What is compiled first, none of them has to compile.
test: lint ## Run lint, then the tests
	@$(BIN)/python -m pytest --collect-only -qq > /dev/null || true
	$(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder

lint: setup ## Run ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup ## Reformat the code and apply safe lint fixes
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

demo: setup ## Run the demo
	$(BIN)/threadline demo

lab: setup ## Run everything on this machine until Ctrl-C
	$(BIN)/threadline lab

bench: setup ## Run the benchmarks (NAME=gateway for one, ARGS=... instead of --quick)
	@set -e; for file in bench/$(or $(NAME),[!_]*).py; do \
	    module=bench.$$(basename "$$file" .py); \
	    echo "== $$module $(ARGS)"; \
	    $(BIN)/python -m "$$module" $(ARGS); \
	done

chaos: setup ## Run the fault laboratory (DURATION=10m) and write a report into build/chaos
	$(BIN)/python -m tests.faults.chaos --duration $(or $(DURATION),10m) $(ARGS)

fast: setup ## Compile the stream engine into build/fast and test that build
	@$(BIN)/python scripts/fast.py

soak: setup ## Run the long tests
	$(BIN)/python -m pytest -m soak -rP --timeout=7200
	$(BIN)/python -m pytest -n 2 --hypothesis-profile=soak --timeout=7200 tests/protocol tests/edge_agent tests/collector/store tests/collector/export tests/collector/api/test_graph_questions.py tests/spark_jobs

lock: ## Regenerate requirements.lock (ARGS=--upgrade for newer versions)
	python3 -m venv build/lock
	build/lock/bin/pip install -q 'uv<1'
	build/lock/bin/uv pip compile pyproject.toml --extra server --extra spark --extra bench --extra dev --universal --python-version 3.11 \
	    --generate-hashes --no-emit-index-url --no-emit-find-links --custom-compile-command 'make lock' \
	    --quiet --output-file requirements.lock $(ARGS)

clean: ## Remove .venv and everything generated
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
