# Each target sets up what it needs in virtual environments; test and demo need no torch.
PYTHON ?= python3
STAMP = .installed
# What is imported is compiled once, where the environment forbids it too.
INSTALL = -m pip install --quiet --no-compile
export PYTHONDONTWRITEBYTECODE =
JOBS ?= 2
# Share of the slow tests that is run, drawn by seed: none, a tenth in CI, all in a campaign.
SLOW ?= 0

.PHONY: demo test test-torch test-all test-site campaign campaign-tenth lint docs docs-examples package clean

demo: .venv-demo/$(STAMP)
	.venv-demo/bin/crossknn demo

# One thread in each of the processes: more would wait for each other.
test: .venv-test/$(STAMP)
	OMP_NUM_THREADS=1 .venv-test/bin/python -m pytest -n $(JOBS) --dist worksteal -m "not torch" --slow-share $(SLOW)

test-all: test test-torch

test-torch: .venv-test/.torch
	OMP_NUM_THREADS=1 .venv-test/bin/python -m pytest -n $(JOBS) --dist worksteal -m torch --slow-share $(SLOW)

# Everything, whole: slow tests, references on thirty queries of each matrix, kills and damages.
campaign: .venv-test/.torch
	CROSSKNN_REFERENCE_QUERIES=30 .venv-test/bin/python -m pytest --slow-share 1
	.venv-test/bin/python lab/benchmarks/campaign.py
	.venv-test/bin/python lab/benchmarks/load.py

campaign-tenth: .venv-test/$(STAMP)
	.venv-test/bin/python lab/benchmarks/campaign.py --kills 20 --damages 200 --steps 100 --changes 40 --lists 10 --work build/tenth --out build/tenth.json

lint: .venv-test/$(STAMP)
	.venv-test/bin/ruff check .
	.venv-test/bin/ruff format --check .
	.venv-test/bin/mypy
	.venv-test/bin/lint-imports

# The site in build/site: open build/site/index.html through  python -m http.server -d build/site
docs: .venv-docs/$(STAMP)
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict

# What readers of the site see, in a browser.
test-site: docs .venv-test/$(STAMP)
	CROSSKNN_SITE=build/site .venv-test/bin/python -m pytest tests/test_site.py

docs-examples: .venv-test/.torch
	.venv-test/bin/python -m pytest --doctest-modules src/crossknn lab/src/crossknn_lab train/src/crossknn_train

# Wheel and sdist in dist/; the wheel is built of the sdist, installed into an empty environment and used there.
package:
	rm -rf dist
	$(PYTHON) -m venv --clear .venv-package
	.venv-package/bin/python $(INSTALL) build hatchling
	.venv-package/bin/python -m build --no-isolation
	$(PYTHON) tests/package/contents.py dist $(RELEASE)
	$(PYTHON) -m venv --clear .venv-package
	.venv-package/bin/python -m pip install --quiet dist/*.whl
	.venv-package/bin/python -I tests/package/smoke.py

.venv-demo/$(STAMP): pyproject.toml $(shell find src -name '*.py' -o -name '*.onnx')
	$(PYTHON) -m venv --clear .venv-demo
	.venv-demo/bin/python -m pip install --upgrade pip  # a recent one shows how far it is
	.venv-demo/bin/python -m pip install .
	touch $@

.venv-test/$(STAMP): pyproject.toml lab/pyproject.toml train/pyproject.toml
	$(PYTHON) -m venv --clear .venv-test
	.venv-test/bin/python $(INSTALL) --editable '.[dev]' --editable lab
	.venv-test/bin/python $(INSTALL) --no-deps --editable train  # to be checked, without torch
	touch $@

# Added to what the other tests use.
.venv-test/.torch: .venv-test/$(STAMP) requirements/torch.txt
	.venv-test/bin/python $(INSTALL) --requirement requirements/torch.txt
	.venv-test/bin/python $(INSTALL) --editable '.[torch,dev,mteb]' --editable lab --editable train accelerate openai  # for transformers serve
	touch $@

.venv-docs/$(STAMP): pyproject.toml lab/pyproject.toml requirements/docs.txt
	$(PYTHON) -m venv --clear .venv-docs
	.venv-docs/bin/python $(INSTALL) --requirement requirements/docs.txt --editable . --editable lab
	touch $@

clean:
	rm -rf .venv-demo .venv-test .venv-package build dist crossknn-demo
