# Everything a person or CI runs. `make demo` makes an environment with what it needs; all other
# targets add the rest to it.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin
GUEST := neuraloperator tensorly tensorly-torch opt_einsum  # a foreign network for the tests; without its trackers
export OMP_NUM_THREADS ?= 1
export PYTHONDONTWRITEBYTECODE =  # or every worker and every command of the tests compiles all sources again

.PHONY: demo test test-seeds test-kernels test-adapters test-lightning check types style tests docs play \
	fuzz fuzz-loop bench bench-peers testbed-data clean

demo: export OMP_NUM_THREADS = $(shell getconf _NPROCESSORS_ONLN)
# Threads that spin while they wait take twice as long where the processor has other work.
demo: export OMP_WAIT_POLICY = passive
demo: $(VENV)/demo
	$(RUN)/probconserv reproduce stefan --out out/stefan

test: $(VENV)/ready  # types beside the site: neither can use two cores for long
	$(MAKE) -j 2 check docs
	$(MAKE) tests

check: style types

style: $(VENV)/ready
	$(RUN)/ruff check .
	$(RUN)/ruff format --check .

types: $(VENV)/ready
	$(RUN)/mypy

tests: $(VENV)/ready
	$(RUN)/pytest -n 2 --dist loadgroup

WORDS := adapters architecture cli* climate_files cuda docstrings enforce_file lightning package play progress report* \
	resuming site* startup stores_* types  # not of numbers: commands, files, pages, processes
test-seeds: $(VENV)/ready  # make test-seeds SEEDS="3 7": the tests of numbers, with 20 seeds unless told
	@failed=; for seed in $(or $(SEEDS),$(shell seq 20)); do echo "seed $$seed"; \
		SEED=$$seed PYTHONHASHSEED=$$seed $(RUN)/pytest -n 2 --dist loadgroup --hypothesis-seed=$$seed \
		$(WORDS:%=--ignore-glob='*/test_%.py') || failed="$$failed $$seed"; done; \
	test -z "$$failed" || { echo "seeds that fail:$$failed"; exit 1; }

KERNELS := build/kernels
test-kernels: $(KERNELS)/ready  # the kernels of a GPU, interpreted on a CPU; five minutes and 1.5 GB
	TRITON_INTERPRET=1 $(KERNELS)/bin/python -m pytest -o filterwarnings= -o addopts= -q -n 2 \
		tests/test_sweeps.py tests/test_kernels_columns.py

$(KERNELS)/ready: pyproject.toml
	$(PYTHON) -m venv $(KERNELS)
	$(KERNELS)/bin/python -m pip install --quiet --editable . pytest pytest-xdist hypothesis torch==2.13.0 triton==3.9.0
	touch $@

ADAPTERS := build/adapters
test-adapters: $(ADAPTERS)/ready  # the fixer inside ACE and CREDIT themselves; 3 minutes and 3 GB the first time
	$(ADAPTERS)/bin/python -m pytest -o filterwarnings= -o addopts= -q tests/test_adapters.py

$(ADAPTERS)/ready: pyproject.toml
	$(PYTHON) -m venv $(ADAPTERS)
	$(ADAPTERS)/bin/python -m pip install --quiet --editable . pytest hypothesis \
		torch==2.13.0 fme==2026.10.0 miles-credit==2026.2.0
	touch $@

LIGHTNING := build/lightning
test-lightning: $(LIGHTNING)/ready  # the layer inside Lightning; a minute and 1.2 GB the first time
	$(LIGHTNING)/bin/python -m pytest -o filterwarnings= -o addopts= -q tests/test_lightning.py

$(LIGHTNING)/ready: pyproject.toml
	$(PYTHON) -m venv $(LIGHTNING)
	$(LIGHTNING)/bin/python -m pip install --quiet --editable . pytest hypothesis torch==2.13.0 lightning==2.6.6
	touch $@

TESTBED := build/exponax
testbed-data: $(TESTBED)/ready  # eight equations into build/testbed, and how well each law holds; two minutes and 0.7 GB
	$(TESTBED)/bin/python benchmarks/testbed/data.py
	$(TESTBED)/bin/python benchmarks/testbed/laws.py

$(TESTBED)/ready:
	$(PYTHON) -m venv $(TESTBED)
	$(TESTBED)/bin/python -m pip install --quiet exponax==0.1.0 equinox==0.13.8 jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6
	touch $@

docs: $(VENV)/ready  # the site, in build/site; no warning, and no network but for npm
	rm -rf build/site
	$(RUN)/sphinx-build -q -W --keep-going -n -j auto -d build/doctrees -b html docs build/site
	$(RUN)/python docs/play/make_page.py build/play || { test $$? = 3 && rm -rf build/play && \
		echo "without npm the site has no page that runs in the browser"; }
	test ! -d build/play || cp -r build/play build/site/play

fuzz: $(VENV)/ready  # make fuzz N=100000: random problems against an oracle of 120 digits
	$(RUN)/python tests/fuzzing.py $(or $(N),20000) --jobs 2

fuzz-loop: $(VENV)/ready  # make fuzz-loop N=2000: random problems with inequalities, judged by duality
	$(RUN)/python tests/fuzzing_loop.py $(or $(N),2000) --jobs 2

bench: $(VENV)/ready
	OMP_NUM_THREADS=2 $(RUN)/python benchmarks/step2.py

PEERS := build/peers
bench-peers: $(PEERS)/ready  # Step 2 beside what others take for the same work; 2 GB the first time, some 15 minutes each time
	$(PEERS)/bin/python benchmarks/peers.py

# qpth asks for numpy below 2, which jax and diffcp refuse; it works with theirs.
$(PEERS)/ready: pyproject.toml
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --editable . torch==2.13.0 numpy==2.4.6 \
		pinet-hcnn==0.2.0 jax==0.10.2 cvxpylayers==1.2.0 cvxpy==1.9.3 diffcp==1.1.9 scs==3.3.1
	$(PEERS)/bin/python -m pip install --quiet --no-deps qpth==0.0.18
	touch $@

play: $(VENV)/ready  # the page that runs in a browser, into build/play; needs npm
	$(RUN)/python docs/play/make_page.py build/play

# Not compiled: that takes longer than the demo's own imports, which compile what they need.
INSTALL := $(RUN)/python -m pip install --no-compile --constraint constraints.txt

$(VENV)/demo: pyproject.toml constraints.txt
	@echo "Making an environment in $(VENV) with PyTorch, SciPy and Matplotlib: 1.1 GB, about a minute."
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) --editable '.[cli,plots]'
	touch $@

$(VENV)/ready: $(VENV)/demo
	@echo "Adding what the tests and the site need to $(VENV): 1.2 GB more, a minute or two."
	$(INSTALL) --quiet --editable '.[dev]'
	$(INSTALL) --quiet --no-deps $(GUEST)
	touch $@

clean:
	rm -rf $(VENV) out build
