# make demo     a language model gets better on this machine: everything is installed, started, shown and ended
# make test     every test
# make check    style, types and import rules
# make bench    the tables in benchmarks/

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

# The CPU build of torch where there is no NVIDIA GPU: from PyTorch's own index, unless pip already finds one by itself.
TORCH  ?= torch==2.13.0

.PHONY: demo test check bench clean install

demo: $(READY)
	$(BIN)/slipstream demo

# SGLANG=1: those over a real SGLang too; its environment is made before the tests, which share it.
test: $(READY)
	[ "$$SGLANG" != 1 ] || PYTHON="$(PYTHON)" sh deploy/sglang_cpu/install.sh "$${SLIPSTREAM_SGLANG_VENV:-.slipstream/sglang}"
	$(BIN)/python -m pytest -n auto --dist loadfile

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(READY)
	$(BIN)/python -m benchmarks

install: $(READY)

$(READY): pyproject.toml deploy/install.sh deploy/install-torch.sh
	sh deploy/install.sh "$(PYTHON)" "$(VENV)" "$(TORCH)"
	touch $@

clean:
	rm -rf $(VENV) .slipstream
