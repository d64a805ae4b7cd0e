# Countersign from the command line. `make help` lists the targets. Needs make and Python 3.11 or newer.

PYTHON ?= python3
# The other runtimes of the bench need it; nothing else does.
PYTHON312 ?= python3.12
VENV   := .venv
PY     := $(VENV)/bin/python
# One more than the cores most machines of ours have: a third of a test is waiting.
JOBS   ?= 3
# One order and one set of drawn examples for every run of `make test`; SEED=n takes another.
SEED   ?= 20261121

# Where it is set, each of some hundred child programs compiles the whole of both packages again.
export PYTHONDONTWRITEBYTECODE :=
# A third of the suite's time is waiting for the disk; no test asks what a power cut leaves. Where memory has a file
# system with two gigabytes to spare, the tests write there; the bench and the demo do not.
MEMORY := $(shell df -k /dev/shm 2>/dev/null | awk 'NR == 2 && $$4 > 2000000 { print "/dev/shm" }')
ifneq ($(MEMORY),)
test test-at test-long test-fast coverage vectors _repository: export TMPDIR ?= $(MEMORY)
endif

REQUIREMENTS := requirements/dev.txt
READY        := $(VENV)/.ready

# `make check` runs the tests of the repository itself; `make test` only where ARGS names them.
SHORT := $(if $(findstring tests/conventions,$(ARGS)),,--ignore=tests/conventions)

# The tests of functions that need no database and no process.
FAST := $(addprefix tests/unit/,contract domain pdp tokens identity facts channels/presentation channels/web channels/http) \
  $(addprefix tests/unit/sdk/,tools manifests catalogue llm)

# The tests that read other people's vectors; tests/vectors/third_party/README.md says whose.
VECTORS := tests/unit/contract/test_third_party.py tests/properties/test_cedar_corpus.py

.DEFAULT_GOAL := help
.PHONY: help demo airline test test-fast test-at test-long coverage vectors check bench predecessors frameworks dist pages lock env counterparts

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: $(READY) ## the support-desk agent against a real service on loopback; CHECK=1 plays every part and checks
	@$(PY) -m examples.support_desk.demo $(if $(filter-out 0,$(CHECK)),--check)

airline: $(READY) ## 100 recorded agent runs through SDK and service; TAU_AIRLINE_DATA names the folder
	@$(PY) -m examples.airline

test: $(READY) counterparts ## the suite; what is missing on this machine is skipped and told
	@$(PY) -m pytest -n $(JOBS) --dist loadfile -m "not long" --randomly-seed=$(SEED) $(SHORT) $(ARGS)

test-at: $(READY) counterparts ## the suite on another day: AT="2028-02-29 23:55" (UTC) and a zone, TZ=; Linux with a C compiler
	@folder=$$(mktemp -d) && trap "rm -r $$folder" EXIT && chmod 755 $$folder \
	  && $(CC) -shared -fPIC -O2 -o $$folder/moved_clock.so tests/fakes/moved_clock.c \
	  && export CLOCK_AHEAD_S=$$(( $$(date -u -d "$(AT)" +%s) - $$(date +%s) )) LD_PRELOAD=$$folder/moved_clock.so \
	  && $(PY) -m pytest -n $(JOBS) --dist loadfile -m "not long" --randomly-seed=$(SEED) $(SHORT) $(ARGS)

# The parts are in tests/parts.py. Each ends with pytest's own line and its time; the first that fails ends the run.
# One in which ARGS leave nothing (pytest's status 5) is no failure.
test-long: $(READY) counterparts ## what `test` leaves out, part by part, with a fresh seed; PART=name for one
	@for part in $(or $(PART),$$($(PY) -c 'from tests.parts import PARTS; print(*PARTS)')); do echo "== $$part"; \
	  HYPOTHESIS_PROFILE=long $(PY) -m pytest -n $(JOBS) --timeout 1800 --part=$$part $(ARGS) || [ $$? -eq 5 ] || exit 1; \
	done

test-fast: $(READY) ## the tests of single functions and of the contract, in half a minute
	@$(PY) -m pytest -q -n $(JOBS) --dist loadfile -m "not long" --randomly-seed=$(SEED) $(FAST) $(ARGS)

coverage: $(READY) counterparts ## the suite once more, slower, with the lines and branches it runs
	@$(PY) -m pytest -n $(JOBS) --dist loadfile --timeout 1800 -m "not long" --randomly-seed=$(SEED) --cov --cov-report=term $(ARGS)

vectors: $(READY) ## other people's vectors: JWS, Ed25519, JSON, RFC 8785 with a million numbers, Cedar's corpus
	@COUNTERSIGN_CORPUS=whole $(PY) -m pytest -q $(VECTORS) $(ARGS)

check: $(READY) ## format, lint, strict types, import arrows, README blocks, policy cases
	@$(PY) -m ruff format --check .
	@$(PY) -m ruff check .
	@$(MAKE) --no-print-directory --output-sync=target -j2 _types _repository

# Beside each other: the types take one core for half a minute where nothing is cached.
.PHONY: _types _repository
_types: $(READY)
	@$(PY) -m mypy

_repository: $(READY)
	@$(PY) -m pytest -q -n $(JOBS) --randomly-seed=$(SEED) tests/conventions tests/policies

bench: $(READY) ## measure the service and the SDK; prints one table; BASE=commit measures that one beside it
	@$(PY) -m tests.bench $(if $(BASE),--base $(BASE)) $(ARGS)

# Not with `make bench`: a hundred packages, and an interpreter of its own.
predecessors: requirements/predecessors.txt ## fetch the other runtimes `make bench` measures beside ours (Python 3.12)
	@$(PYTHON312) -m venv --clear .venv-predecessors
	@.venv-predecessors/bin/python -m pip install --disable-pip-version-check --quiet --require-hashes -r $<

# Nothing is fetched: the build uses what the lock has installed.
dist: $(READY) ## build the wheels of the service and the SDK in dist/
	@rm -rf dist && $(PY) -m pip wheel --disable-pip-version-check --quiet --no-deps --no-index --no-build-isolation \
	  --wheel-dir dist ./sdk/python . && ls dist

# Apart from .venv: two hundred packages that only one part of `make test-long` needs, and crewai agrees with no other.
frameworks: requirements/frameworks.txt requirements/crewai.txt ## fetch the agent frameworks for `make test-long PART=frameworks`
	@for name in frameworks crewai; do \
	  $(PYTHON) -m venv --clear .venv-$$name && .venv-$$name/bin/python -m pip install --disable-pip-version-check --quiet \
	    --require-hashes -r requirements/$$name.txt || exit 1; \
	done

pages: $(READY) ## write the generated pages again: settings, command line, HTTP API, tables of modules, the audit set
	@$(PY) -m tests.conventions.settings_page
	@$(PY) -m tests.conventions.reference_pages
	@$(PY) -m tests.conventions.readme_per_folder
	@$(PY) -m tests.conventions.audit_set

# --------------------------------------------------------------------------------------- the environment

env: $(READY) ## make the environment in .venv and nothing else

# Third-party servers the tests talk to. Without npm, or without a network, their tests are skipped and told.
counterparts: ## fetch the third-party servers the tests talk to (needs npm)
	@if command -v npm >/dev/null && ! cmp -s tests/counterparts/package-lock.json tests/counterparts/node_modules/.installed; then \
	  npm ci --silent --prefix tests/counterparts \
	    && cp tests/counterparts/package-lock.json tests/counterparts/node_modules/.installed \
	    || echo "npm ci --prefix tests/counterparts failed: the tests against identity providers will be skipped" >&2; \
	fi

# Rebuilt from nothing when the locked requirements, the interpreter or the folder changed; otherwise only the
# two local packages are installed again. The third-party lock comes first, every file checked against its
# hash; the local packages follow without dependencies, so no name of ours is ever looked up on an index.
$(READY): $(REQUIREMENTS) pyproject.toml sdk/python/pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "there is no $(PYTHON) here; name a Python 3.11 or newer: make PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit("Countersign needs Python 3.11 or newer; %s is %d.%d. Name another: make PYTHON=python3.12 $(or $(MAKECMDGOALS),help)" % (sys.executable, v[0], v[1]))'
	@{ echo "$(CURDIR)"; $(PYTHON) -c 'import sys; print(sys.version)'; cat $(REQUIREMENTS); } > .made-from.new
	@if ! cmp -s .made-from.new $(VENV)/.made-from || ! $(PY) -c '' 2>/dev/null; then \
	  echo "building $(VENV) from $(REQUIREMENTS)"; \
	  $(PYTHON) -m venv --clear $(VENV) || { echo "python3 cannot make environments here; on Debian: apt-get install python3-venv" >&2; exit 1; }; \
	  echo "installing $$(grep -c '==' $(REQUIREMENTS)) locked packages; this takes a minute"; \
	  $(PY) -m pip install --disable-pip-version-check --quiet --require-hashes -r $(REQUIREMENTS) || exit 1; \
	  echo "installing the two packages of this repository"; \
	fi
	@$(PY) -m pip install --disable-pip-version-check --quiet --no-deps --no-build-isolation -e sdk/python -e .
	@mv .made-from.new $(VENV)/.made-from
	@touch $@

COMPILE := $(PY) -m uv pip compile --quiet --universal --generate-hashes --no-annotate --no-strip-extras --no-emit-index-url \
  --no-emit-package countersign-sdk --no-emit-package countersign-service \
  --custom-compile-command "make lock"

lock: $(READY) ## resolve the requirements again, with hashes; UPGRADE=1 takes newer versions
	@$(COMPILE) $(if $(UPGRADE),--upgrade) pyproject.toml sdk/python/pyproject.toml --group dev -o requirements/dev.txt
	@$(COMPILE) pyproject.toml sdk/python/pyproject.toml --extra otel -c requirements/dev.txt -o requirements/service.txt
	@$(COMPILE) sdk/python/pyproject.toml -c requirements/dev.txt -o requirements/sdk.txt
	@$(COMPILE) --group build -c requirements/dev.txt -o requirements/build.txt
	@$(COMPILE) $(if $(UPGRADE),--upgrade) --python-version 3.12 --group predecessors -o requirements/predecessors.txt
	@$(COMPILE) $(if $(UPGRADE),--upgrade) sdk/python/pyproject.toml --extra langgraph --extra openai-agents --extra pydantic-ai \
	  --extra claude-agent --group frameworks -o requirements/frameworks.txt
	@$(COMPILE) $(if $(UPGRADE),--upgrade) sdk/python/pyproject.toml --extra crewai -o requirements/crewai.txt
