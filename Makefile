# Everything runs in .venv, which `make` creates; PYTHON selects another interpreter (3.11 or newer).
PYTHON ?= python3
BIN := .venv/bin
INSTALL := pip install --quiet --no-compile  # Python compiles a module at its first import:
unexport PYTHONDONTWRITEBYTECODE
READY := .venv/.ready
TEST_READY := .venv/.test-ready
BENCH_READY := .venv/.bench-ready
COVERAGE_READY := .venv/.coverage-ready
MUTATION_READY := .venv/.mutation-ready
DOCS_READY := .venv/.docs-ready
LOWEST := .venv-lowest/bin
LOWEST_READY := .venv-lowest/.ready
# tests of processes, memory and devices, which the versions of pure Python libraries hardly change
NOT_LOWEST := faults gpu runner child system online benchmarks docs test_end_to_end.py test_checking.py test_docs.py \
	test_import_strings.py profiles/test_shared_list.py profiles/test_device_prefetch.py
ALONE := tests/faults/test_budgets.py  # it measures memory; all other tests run in two processes
IN_TWO := --numprocesses 2 --dist loadfile --no-loadscope-reorder

.PHONY: demo test test-all coverage mutation test-lowest faults test-gpu test-libraries lint types dist check bench bench-gpu replay coverage-simulation docs
.PHONY: clean help

help: ## List the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/$(INSTALL) --upgrade 'pip>=25.1'
	$(BIN)/$(INSTALL) --constraint constraints.txt --editable . --group dev
	@touch $(READY)

demo: $(READY) ## Set up, then tune the JPEG example; writes dltune.json
	@$(BIN)/python -c "from examples.images import make_dataset; make_dataset()"
	$(BIN)/dltune --dataset examples.images:make_dataset --step examples.images:make_step \
		--batch-size 32 --trials 12 --trial-time 2500ms

$(TEST_READY): $(READY)
	$(BIN)/$(INSTALL) --constraint constraints.txt --group integrations --group browser
	$(BIN)/$(INSTALL) --constraint constraints.txt --no-deps timm  # without torchvision, which brings a CUDA build
	@touch $(TEST_READY)

test: $(READY) ## Set up, then run the fast tests: about five minutes on two cores
	$(BIN)/python -m pytest tests -m "not slow" $(IN_TWO)

test-all: test $(TEST_READY) ## Then the slow tests: faults, other libraries (half a gigabyte), a browser
	$(BIN)/python -m pytest $(ALONE)
	$(BIN)/python -m pytest tests -m slow $(ALONE:%=--ignore %) $(IN_TWO)

$(COVERAGE_READY): $(READY)
	$(BIN)/$(INSTALL) --constraint constraints.txt --group coverage
	@touch $(COVERAGE_READY)

coverage: $(COVERAGE_READY) ## Run the fast tests and print their branch coverage, child processes included
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest tests -m "not slow" $(IN_TWO)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

$(MUTATION_READY): $(READY)
	$(BIN)/$(INSTALL) --constraint constraints.txt --group mutation
	@touch $(MUTATION_READY)

mutation: $(MUTATION_READY) ## Mutate the modules that decide, and print the surviving mutants (two minutes)
	rm -rf mutants
	$(BIN)/python -m mutmut run --max-children 2 > mutants.log 2>&1 || { tail -n 40 mutants.log; exit 1; }
	$(BIN)/python -m mutmut results
	@tr '\r' '\n' < mutants.log | tail -n 2

$(LOWEST_READY): pyproject.toml constraints.txt .ci/lowest.py
	$(PYTHON) -m venv .venv-lowest
	$(LOWEST)/$(INSTALL) --upgrade 'pip>=25.1'
	$(LOWEST)/$(INSTALL) --constraint constraints.txt torch
	$(LOWEST)/python .ci/lowest.py > .venv-lowest/lowest.txt
	$(LOWEST)/$(INSTALL) --constraint .venv-lowest/lowest.txt --editable . pytest pytest-xdist hypothesis import-linter psutil
	@touch $(LOWEST_READY)

# torch's lower bound is not tested here: an earlier torch than that of constraints.txt downloads gigabytes of CUDA.
test-lowest: $(LOWEST_READY) ## Run one tuning and the tests without child processes with the lowest versions allowed
	$(LOWEST)/dltune --dataset tests.misbehaving:make_honest --batch-size 32 --max-workers 1 --trials 2 \
		--trial-time 300ms --fresh --output .venv-lowest/dltune.json --storage sqlite:///.venv-lowest/study.db
	$(LOWEST)/dltune check .venv-lowest/dltune.json
	$(LOWEST)/dltune report .venv-lowest/dltune.json --format md
	$(LOWEST)/python -m pytest tests -m "not slow" $(NOT_LOWEST:%=--ignore tests/%) $(IN_TWO)

faults: $(READY) ## Run the fault tests alone and print the outcome of each fault
	$(BIN)/python -m pytest tests/faults --fault-matrix

test-gpu: $(READY) ## Run the tests that need a CUDA device; skipped without one
	$(BIN)/python -m pytest tests/gpu

VERSIONS ?=  # --newest tests the newest versions instead of those of constraints-libraries.txt

test-libraries: ## Test other libraries' loaders in .venv-libraries (gigabytes; once a month in CI)
	PYTHON=$(PYTHON) .ci/libraries $(VERSIONS)

lint: $(READY) ## Check style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY) ## Check types
	$(BIN)/mypy

dist: ## Build sdist and wheel, and try the wheel in a fresh environment
	PYTHON=$(PYTHON) .ci/dist

check: lint types test-all test-lowest docs dist ## Everything that CI runs

$(BENCH_READY): $(READY)
	$(BIN)/$(INSTALL) --constraint constraints.txt --group bench
	@touch $(BENCH_READY)

BENCH_OPTIONS ?=  # such as --only tutorial decode --skip-grid --tuners loadtune random

bench: $(BENCH_READY) ## Compare choices and predictions with whole training runs (about an hour)
	$(BIN)/python -m benchmarks.suite $(BENCH_OPTIONS)

bench-gpu: $(BENCH_READY) ## The same on a CUDA device with real training steps; --device cpu --quick rehearses it
	$(BIN)/python -m benchmarks.gpu $(BENCH_OPTIONS)

replay: $(READY) ## Compare the samplers on recorded grids (a minute)
	$(BIN)/python -m benchmarks.replay

coverage-simulation: $(READY) ## Simulate how often the intervals cover the true value
	$(BIN)/python -m benchmarks.coverage

$(DOCS_READY): $(READY)
	$(BIN)/$(INSTALL) --constraint constraints.txt --group docs
	@touch $(DOCS_READY)

docs: $(DOCS_READY) ## Build the documentation site
	$(BIN)/zensical build --strict
	@echo "site/index.html opens in a browser; searching needs a server: python3 -m http.server --directory site"

clean: ## Remove everything that make created
	rm -rf .venv .venv-dist .venv-lowest .venv-libraries dist site dltune.json examples/.data .coverage*
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis mutants mutants.log
