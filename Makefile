# Everything runs in .venv, which `make` sets up by itself; PYTHON picks another interpreter (3.11 or newer).
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
TEST_READY := .venv/.test-ready
BENCH_READY := .venv/.bench-ready

.PHONY: demo test faults lint types check bench replay clean help

help: ## List the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/pip install --quiet --constraint constraints.txt --editable . --group dev
	@touch $(READY)

demo: $(READY) ## Set up, then tune the JPEG example; writes dltune.json
	@$(BIN)/python -c "from examples.images import make_dataset; make_dataset()"
	$(BIN)/dltune --dataset examples.images:make_dataset --step examples.images:make_step \
		--batch-size 32 --trials 12 --trial-time 2500ms

$(TEST_READY): $(READY)
	$(BIN)/pip install --quiet --constraint constraints.txt --group integrations --group browser
	$(BIN)/pip install --quiet --constraint constraints.txt --no-deps timm  # only read; torchvision is left out
	@touch $(TEST_READY)

test: $(TEST_READY) ## Set up, then run the tests
	$(BIN)/python -m pytest tests/faults
	$(BIN)/python -m pytest --ignore tests/faults --numprocesses 2 --dist loadfile

faults: $(READY) ## Run the fault tests alone, and print what became of each fault
	$(BIN)/python -m pytest tests/faults --fault-matrix

lint: $(READY) ## Check style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY) ## Check types
	$(BIN)/mypy

check: lint types test ## Everything that CI runs

$(BENCH_READY): $(READY)
	$(BIN)/pip install --quiet --constraint constraints.txt --group bench
	@touch $(BENCH_READY)

bench: $(BENCH_READY) ## Hold promises and choices against whole training runs and other tuners (about an hour)
	$(BIN)/python -m benchmarks.footprint
	$(BIN)/python -m benchmarks.suite

replay: $(READY) ## Compare samplers on recorded grids (seconds)
	$(BIN)/python -m benchmarks.replay

clean: ## Remove what was made here
	rm -rf .venv .dltune dltune.json examples/.data .pytest_cache .mypy_cache .ruff_cache .hypothesis
