# Everything runs in .venv, which `make` sets up by itself; PYTHON picks another interpreter (3.11 or newer).
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
TEST_READY := .venv/.test-ready
BENCH_READY := .venv/.bench-ready
COVERAGE_READY := .venv/.coverage-ready
MUTATION_READY := .venv/.mutation-ready
DOCS_READY := .venv/.docs-ready
LOWEST := .venv-lowest/bin
LOWEST_READY := .venv-lowest/.ready
WITH_CHILDREN := runner/test_probe.py runner/test_ranks.py runner/test_runner.py child benchmarks docs \
	test_end_to_end.py test_standing_answer.py test_docs.py  # and what is marked slow
ALONE := tests/faults/test_budgets.py  # it measures; all other tests run in two processes
IN_TWO := --numprocesses 2 --dist loadfile --no-loadscope-reorder

.PHONY: demo test test-all coverage mutation test-lowest faults test-gpu test-libraries lint types dist check bench bench-gpu replay docs
.PHONY: clean help

help: ## List the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

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

test: $(READY) ## Set up, then run the tests that are not marked slow: under five minutes on two cores
	$(BIN)/python -m pytest tests -m "not slow" $(IN_TWO)

test-all: test $(TEST_READY) ## Then the slow ones: faults, chaos, other libraries (half a gigabyte), a browser
	$(BIN)/python -m pytest $(ALONE)
	$(BIN)/python -m pytest tests -m slow $(ALONE:%=--ignore %) $(IN_TWO)

$(COVERAGE_READY): $(READY)
	$(BIN)/pip install --quiet --constraint constraints.txt --group coverage
	@touch $(COVERAGE_READY)

coverage: $(COVERAGE_READY) ## Run the tests that are not marked slow, and print which branches they take, children's included
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest tests -m "not slow" $(IN_TWO)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

$(MUTATION_READY): $(READY)
	$(BIN)/pip install --quiet --constraint constraints.txt --group mutation
	@touch $(MUTATION_READY)

mutation: $(MUTATION_READY) ## Break the rooms that decide in a thousand ways, and print what no test notices (two minutes)
	rm -rf mutants
	$(BIN)/python -m mutmut run --max-children 2 > mutants.log 2>&1 || { tail -n 40 mutants.log; exit 1; }
	$(BIN)/python -m mutmut results
	@tr '\r' '\n' < mutants.log | tail -n 2

$(LOWEST_READY): pyproject.toml constraints.txt .ci/lowest.py
	$(PYTHON) -m venv .venv-lowest
	$(LOWEST)/pip install --quiet --upgrade 'pip>=25.1'
	$(LOWEST)/pip install --quiet --constraint constraints.txt torch
	$(LOWEST)/python .ci/lowest.py > .venv-lowest/lowest.txt
	$(LOWEST)/pip install --quiet --constraint .venv-lowest/lowest.txt --editable . pytest pytest-xdist hypothesis import-linter
	@touch $(LOWEST_READY)

# torch's own lower bound is not tested here: an earlier torch than that of constraints.txt fetches gigabytes of CUDA.
test-lowest: $(LOWEST_READY) ## Run one tuning and the tests that start no processes with the lowest versions allowed
	$(LOWEST)/dltune --dataset tests.misbehaving:make_honest --batch-size 32 --max-workers 1 --trials 2 \
		--trial-time 300ms --no-resume --output .venv-lowest/dltune.json --storage sqlite:///.venv-lowest/studies.db
	$(LOWEST)/dltune check .venv-lowest/dltune.json
	$(LOWEST)/dltune report .venv-lowest/dltune.json --format md
	$(LOWEST)/python -m pytest tests -m "not slow" --ignore tests/faults --ignore tests/gpu \
		$(WITH_CHILDREN:%=--ignore tests/%) $(IN_TWO)

faults: $(READY) ## Run the fault tests alone, and print what became of each fault
	$(BIN)/python -m pytest tests/faults --fault-matrix

test-gpu: $(READY) ## Run the tests that need a CUDA device; they say so where there is none
	$(BIN)/python -m pytest tests/gpu

VERSIONS ?=  # --newest: whatever is newest, instead of what constraints-libraries.txt pins

test-libraries: ## Run the tests of other libraries' loaders, in .venv-libraries (gigabytes; once a month in CI)
	PYTHON=$(PYTHON) .ci/libraries $(VERSIONS)

lint: $(READY) ## Check style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY) ## Check types
	$(BIN)/mypy

dist: ## Build sdist and wheel, and try both in fresh environments
	PYTHON=$(PYTHON) .ci/dist

check: lint types test-all test-lowest docs dist ## Everything that CI runs

$(BENCH_READY): $(READY)
	$(BIN)/pip install --quiet --constraint constraints.txt --group bench
	@touch $(BENCH_READY)

bench: $(BENCH_READY) ## Hold predictions and choices against whole training runs and other tuners (about an hour)
	$(BIN)/python -m benchmarks.footprint
	$(BIN)/python -m benchmarks.suite

GPU_OPTIONS ?=  # such as --minutes 15, --only jpeg floats; --device cpu --quick rehearses without a GPU

bench-gpu: $(BENCH_READY) ## The same on a CUDA device, with real training steps (8 minutes)
	$(BIN)/python -m benchmarks.gpu $(GPU_OPTIONS)

replay: $(READY) ## Compare samplers on recorded grids, and hold each grid out once (a minute)
	$(BIN)/python -m benchmarks.replay
	$(BIN)/python -m benchmarks.holdout

$(DOCS_READY): $(READY)
	$(BIN)/pip install --quiet --constraint constraints.txt --group docs
	@touch $(DOCS_READY)

docs: $(DOCS_READY) ## Build the documentation site
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "site/index.html opens in a browser; searching needs a server: python3 -m http.server --directory site"

clean: ## Remove what was made here
	rm -rf .venv .venv-dist .venv-lowest .venv-libraries dist site .dltune dltune.json examples/.data .coverage*
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis mutants mutants.log
