# `make run` trains the demo, `make test` runs the tests; both first install what is missing into .venv.
PYTHON ?= python3

.PHONY: run test tests test-slow lint

run: .venv/installed
	.venv/bin/python -m recor_dist.run task=arg method=recor scale=laptop out=runs/demo
	.venv/bin/python -m recor_dist.compare run=runs/demo with=docs/results/arg.jsonl

# Files in their own order, because the longest ones, in tests/cluster, would otherwise start last.
PYTEST = .venv/bin/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

# The checks take one core; some tests wait more than they compute.
test: .venv/installed
	$(MAKE) --no-print-directory -j 2 lint tests

tests:
	$(PYTEST) -m "not slow"

test-slow: .venv/installed
	$(PYTEST) -m slow

lint: .venv/installed
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/basedpyright
	.venv/bin/basedpyright -p tests/basedpyright.json

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("recor_dist needs Python 3.11 or newer; try: make PYTHON=python3.11 ...") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv .venv
	# `compat` puts this folder itself on the path, so a stray folder named data/ elsewhere cannot hide our package.
	.venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
		--config-settings editable_mode=compat -e '.[dev]'
	touch .venv/installed
