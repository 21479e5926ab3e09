# Two commands do everything on a fresh machine: `make demo` and `make test`.
# They need python3 (3.11 or later, with venv) and network access. All packages are installed into .venv/.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The CUDA build of torch has a separate environment. It runs on the simulated device of tests/cuda.
CUDA_VENV := .venv-cuda
CUDA_BIN := $(CUDA_VENV)/bin
DEVICE := build/simulated_device
# `make test-torch` installs this PyTorch release, for example 2.11.0, into a separate environment.
TORCH ?= 2.11.0
TORCH_VENV := .venv-torch-$(TORCH)
# In continuous integration, tests fail if the folder with real recordings is missing. Elsewhere, they are skipped.
REQUIRE_SHARED := $(if $(CI),TRACE_REQUIRE_SHARED=1)
# Other programs may disturb a test that measures time or runs real threads. A test has failed if it failed three times.
REPEAT := --reruns 2

# Python keeps its compiled files, so the programs that tests start do not compile all packages again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test test-all test-cuda test-torch test-slow lint types clean
.DELETE_ON_ERROR:

help:
	@echo "make demo    train ResNet-18 at the speed of a Tesla P100, on this machine, without a GPU"
	@echo "make test    lint, types and the fast tests: about five minutes on two cores"
	@echo "make test-all    the other tests: whole programs, and tests that measure time"
	@echo "make test-cuda   the recorder below torch's CUDA build, on a simulated device (tests/cuda); needs a C compiler"
	@echo "make test-torch TORCH=2.11.0   the recorder and the replayer with that PyTorch release"
	@echo "make test-slow   whole programs, all stages of benchmarks/on_gpu.sh, and the report in a browser; takes hours"
	@echo "make clean   remove .venv and everything else that can be made again"

demo: $(VENV)/.installed
	@mkdir -p out
	@echo "--- examples/train_resnet.py, an unmodified script, at the speed of a Tesla P100 without cuDNN (published figures)"
	$(BIN)/trace replay -o out/demo.msgpack examples/train_resnet.py --trace p100-no-cudnn \
	    --model resnet18 --batch-size 128 --workers 2 --steps 8 --print-every 2 --pin-memory
	@echo "--- to run trace in this shell: source $(BIN)/activate"

test: lint types
	@echo "--- fast tests"
	$(REQUIRE_SHARED) $(BIN)/python -m pytest -n 2 --dist loadfile -m "not real_time and not program and not cuda"

test-all: $(VENV)/.installed-test
	@echo "--- whole programs, two at a time"
	$(REQUIRE_SHARED) $(BIN)/python -m pytest -n 2 --dist loadfile -m "program and not real_time"
	@echo "--- more examples of each property"
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "hypothesis and not program" --hypothesis-profile=thorough
	@echo "--- tests that measure time, one at a time"
	$(REQUIRE_SHARED) $(BIN)/python -m pytest -m real_time $(REPEAT)

test-slow: $(VENV)/.installed-test
	$(REQUIRE_SHARED) $(BIN)/python -m pytest --slow -m slow

test-cuda: $(DEVICE)/with_device
	@echo "--- tests of the recorder on the simulated CUDA device"
	REQUIRE_SIMULATED_DEVICE=1 SIMULATED_DEVICE=$(abspath $<) $(CUDA_BIN)/python -m pytest -n 2 --dist loadgroup $(REPEAT) tests/cuda

# Warnings are no errors here, because this run installs the newest releases of all other packages.
test-torch: $(TORCH_VENV)/.installed
	@echo "--- tests that PyTorch's internals decide, with PyTorch $(TORCH)"
	$(TORCH_VENV)/bin/python -m pytest -n 2 --dist loadfile -W default -m "not real_time and not slow" tests/tracer tests/replayer/surfaces \
	    tests/replayer/compiled tests/replayer/ops tests/replayer/tensor tests/e2e/test_pytest_plugin.py

$(TORCH_VENV)/.installed: pyproject.toml
	@echo "--- installing PyTorch $(TORCH) into $(TORCH_VENV)"
	$(PYTHON) -m venv $(TORCH_VENV)
	$(TORCH_VENV)/bin/python -m pip install --quiet --disable-pip-version-check torch==$(TORCH) -e . pytest pytest-xdist hypothesis
	@touch $@

$(DEVICE)/with_device: $(CUDA_VENV)/.installed tests/cuda/build.py $(wildcard tests/cuda/device/*)
	@echo "--- compiling the simulated device"
	$(CUDA_BIN)/python -m tests.cuda.build $(DEVICE)

lint: $(VENV)/.installed-test
	@echo "--- lint"
	$(BIN)/ruff check .

types: $(VENV)/.installed-test
	@echo "--- types"
	$(BIN)/mypy

# The file .installed is a time stamp: if pyproject.toml or the constraints change, `make` installs the packages again.
$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	@echo "--- installing trace-replay into $(VENV)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

$(VENV)/.installed-test: pyproject.toml constraints.txt | $(BIN)/python
	@echo "--- installing trace-replay and what its tests need into $(VENV)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	@touch $@ $(VENV)/.installed

$(CUDA_VENV)/.installed: pyproject.toml constraints-cuda.txt | $(CUDA_BIN)/python
	@echo "--- installing torch's CUDA build, trace-replay and pytest into $(CUDA_VENV) (3 GB to download)"
	$(CUDA_BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints-cuda.txt -e . \
	    pytest pytest-xdist pytest-rerunfailures hypothesis
	@touch $@

$(CUDA_BIN)/python:
	$(PYTHON) -m venv $(CUDA_VENV)

$(BIN)/python:
	@echo "--- making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "trace-replay needs Python 3.11 or later; name one: make PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

clean:
	rm -rf $(VENV) $(CUDA_VENV) .venv-torch-* out build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
