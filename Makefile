# `make serve` and `make test` do all their set-up in .venv; nothing is installed outside this folder and the model store.
# Stamps in .venv/ record what was set up, so a second run starts at once.

MODEL ?=
ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
CXX_FOUND := $(shell command -v $${CXX:-c++} || command -v g++ || command -v clang++)
NATIVE := CMakeLists.txt $(shell find csrc -type f)
BUILD_REQUIREMENTS := 'scikit-build-core>=0.11' 'nanobind>=2.4' 'cmake>=3.26' ninja

.PHONY: serve test build lint bench clean

serve: build
	$(BIN)/tailrace serve $(MODEL) $(ARGS)

test: build $(VENV)/.dev
	$(BIN)/tailrace pull smollm2:135m
	$(BIN)/python -m pytest --numprocesses=auto --maxprocesses=4 --dist=worksteal $(ARGS)

lint: build $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: build
	$(BIN)/python -m benchmarks.engine $(ARGS)

build: $(VENV)/.installed

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

# Editable: edits under src/ need no rebuild; a change in csrc/ compiles only what it touches.
$(VENV)/.installed: $(VENV)/.tools pyproject.toml $(NATIVE)
	@echo "Building tailrace (the first build compiles the kernels, about a minute) ..."
	@$(PIP) install --no-build-isolation --editable . || { \
		echo "The build failed. Its log is above; 'make clean' removes everything that was set up." >&2; exit 1; }
	@touch $@

$(VENV)/.dev: $(VENV)/.tools pyproject.toml
	@echo "Installing the tools of tests and lint ..."
	@$(PIP) install $$($(BIN)/python -c 'import tomllib; \
		print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["dev"])')
	@touch $@

$(VENV)/.tools: Makefile
ifeq ($(strip $(PYTHON)),)
	@echo "tailrace needs Python 3.11 or newer, and none was found." >&2
	@echo "Install one (apt-get install python3 python3-venv; dnf install python3.12; pacman -S python)" >&2
	@echo "or name it: make PYTHON=/path/to/python3.12" >&2; exit 1
endif
ifeq ($(strip $(CXX_FOUND)),)
	@echo "tailrace compiles its kernels and found no C++ compiler. Install one:" >&2
	@echo "  Debian, Ubuntu: apt-get install g++     Fedora, RHEL: dnf install gcc-c++     Arch: pacman -S gcc" >&2
	@exit 1
endif
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "$(PYTHON) is older than Python 3.11; name a newer one: make PYTHON=/path/to/python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "$(PYTHON) cannot make a virtual environment. Install its venv module:" >&2; \
		echo "  Debian, Ubuntu: apt-get install python3-venv     Fedora, RHEL: dnf install python3-pip" >&2; exit 1; }
	@$(PYTHON) -c 'import pathlib, sysconfig; pathlib.Path(sysconfig.get_paths()["include"], "Python.h").stat()' 2>/dev/null || { \
		echo "The C headers of $(PYTHON) are missing (Python.h). Install them:" >&2; \
		echo "  Debian, Ubuntu: apt-get install python3-dev     Fedora, RHEL: dnf install python3-devel" >&2; exit 1; }
	@echo "Setting up $(VENV) with $(PYTHON) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) install $(BUILD_REQUIREMENTS)
	@touch $@
