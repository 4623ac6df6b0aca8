# Each target makes its own environment; `make PYTHON=python3.12 test` picks another.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
QUIET = TF_CPP_MIN_LOG_LEVEL=2
# Programs that JAX compiled for the same half before; `make clean` removes them.
ON_JAX = KERAS_BACKEND=jax JAX_COMPILATION_CACHE_DIR=$(CURDIR)/.jax_cache/$@ \
  JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0.1
PYTHONS ?= 3.11 3.12 3.13
COLAB = benchmarks/colab
PEERS = keras-vit torch keras-hub flax vit-keras

.PHONY: demo quick test backends slow slow-one slow-other check format fuzz parity wheels matrix floor colab colab-tpu interop serve-test peers vit-keras-python bench docs clean

demo: $(VENV)/demo.done  ## Train, explain, export and serve a small ViT on real digits.
	$(BIN)/keras-vit demo --output demo

# Halves of about as many seconds each, for two cores.
SECOND_HALF = tests/training tests/serving tests/data tests/evaluation
SLOW_HALF = tests/training tests/evaluation
JAX_HALF = tests/models tests/layers tests/weights tests/inspection tests/test_conformance.py \
  tests/test_reference.py tests/test_self_supervision.py

quick: $(VENV)/dev.done  ## Lint, types, and the tests nearest to what changed.
	$(MAKE) --jobs=2 --no-print-directory check at-its-end-test-near

test-near:
	$(QUIET) KERAS_BACKEND=tensorflow $(BIN)/python benchmarks/near.py $(NEAR)

test: check  ## Lint, types, and the tests on TensorFlow, in two halves for two cores.
	$(MAKE) --jobs=2 --no-print-directory test-tensorflow at-its-end-test-training

backends: $(VENV)/dev.done  ## The tests on JAX and on torch, in two halves.
	$(MAKE) --jobs=2 --no-print-directory test-jax at-its-end-test-jax-and-torch

slow: $(VENV)/dev.done  ## The tests of half a minute and more, in two halves.
	$(MAKE) --jobs=2 --no-print-directory slow-one at-its-end-slow-other

at-its-end-%:  # Prints then, not between the lines of the other half.
	$(MAKE) --output-sync=target --no-print-directory $*

slow-one:
	$(QUIET) KERAS_BACKEND=tensorflow $(BIN)/pytest -q -m slow $(SLOW_HALF:%=--ignore=%)

slow-other:
	$(QUIET) KERAS_BACKEND=tensorflow $(BIN)/pytest -q -m slow $(SLOW_HALF)

check: $(VENV)/dev.done
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python benchmarks/prose.py

test-tensorflow: $(VENV)/dev.done
	$(QUIET) KERAS_BACKEND=tensorflow $(BIN)/pytest -q -m "not slow" --durations=12 \
	  $(SECOND_HALF:%=--ignore=%)

test-training: $(VENV)/dev.done
	$(QUIET) KERAS_BACKEND=tensorflow $(BIN)/pytest -q -m "not slow" --durations=12 \
	  $(SECOND_HALF)

test-jax: $(VENV)/dev.done
	$(QUIET) $(ON_JAX) $(BIN)/pytest -q -m "not slow and not tensorflow_only" \
	  $(JAX_HALF)

test-jax-and-torch: $(VENV)/dev.done
	$(QUIET) $(ON_JAX) $(BIN)/pytest -q -m "not slow and not tensorflow_only" \
	  $(JAX_HALF:%=--ignore=%)
	$(QUIET) KERAS_BACKEND=torch $(BIN)/pytest -q -m "not slow and not tensorflow_only" \
	  tests/layers tests/models tests/weights tests/evaluation tests/inspection \
	  tests/test_conformance.py tests/test_reference.py tests/test_self_supervision.py \
	  tests/test_backend_commands.py tests/training/test_train_step.py \
	  tests/training/test_features.py tests/training/test_optim.py \
	  tests/training/test_devices.py tests/training/test_resume.py tests/training/test_replaying.py \
	  tests/training/test_masked_patches.py

fuzz: $(VENV)/dev.done  ## 10,000 damaged copies of a checkpoint in every format.
	$(QUIET) KERAS_VIT_FUZZ=10000 $(BIN)/pytest -q --durations=0 -s tests/weights/test_fuzz.py

parity: $(VENV)/dev.done  ## The largest difference from every reference fixture.
	$(QUIET) $(BIN)/pytest -q -k "reference or preprocess or dialects or keras_applications or official_ones"

wheels: build/wheels.done  ## sdist and wheel in dist/, and what is in them.
	KERAS_VIT_DIST="$(CURDIR)/dist" .venv-build/bin/pytest -q --noconftest -k archive \
	  tests/test_packaging.py

matrix: $(PYTHONS:%=wheel-test-%)  ## The wheel under the tests, on each Python.

floor: wheel-test-floor  ## The same on the oldest supported Keras and TensorFlow.

# In a folder without the package: what is imported is what was installed.
wheel-test-%: .venv-wheel-%/dev.done
	folder=$$(mktemp --directory) && trap 'rm -rf "$$folder"' EXIT \
	  && mkdir "$$folder/keras-vit" \
	  && git ls-files -z . ':!keras_vit' ':!keras_vit_command.py' | tar --create --null --files-from=- \
	  | tar --extract --directory="$$folder/keras-vit" \
	  && KERAS_VIT_REAL="$${KERAS_VIT_REAL:-$(abspath ../shared/real)}" \
	  $(MAKE) --directory="$$folder/keras-vit" --jobs=2 --no-print-directory \
	  VENV="$(CURDIR)/.venv-wheel-$*" test-tensorflow at-its-end-test-training

# As docs/howto/colab.md installs it; fails if a package of Colab's changes its version.
# The exports of this TensorFlow are read by Colab's, which is TensorFlow Serving's.
colab: .venv-colab/colab.done $(VENV)/dev.done  ## Colab's default runtime, rebuilt: install, notebooks, exports.
	$(QUIET) .venv-colab/bin/python $(COLAB)/runtime.py install colab
	rm -rf build/colab
	$(QUIET) .venv-colab/bin/python $(COLAB)/exports.py all build/colab/every
	$(QUIET) $(BIN)/python $(COLAB)/exports.py write build/colab/newest
	$(QUIET) .venv-colab/bin/python $(COLAB)/exports.py read build/colab/newest
	$(call in-installed,.venv-colab,tensorflow,-m slow tests/test_notebooks.py)

colab-tpu: .venv-colab-tpu/colab-tpu.done  ## Colab's TPU runtime, rebuilt: JAX trains from the shell.
	$(QUIET) .venv-colab-tpu/bin/python $(COLAB)/runtime.py install colab-tpu
	$(call in-installed,.venv-colab-tpu,jax,tests/test_colab_tpu.py tests/test_jax_commands.py tests/test_without_tensorflow.py)
	$(call in-installed,.venv-colab-tpu,jax,-m slow tests/test_notebooks.py -k tpu)

# Tests in a folder without the package, by an environment that has it: $(1) is the
# environment, $(2) the backend, $(3) the tests.
define in-installed
	folder=$$(mktemp --directory) && trap 'rm -rf "$$folder"' EXIT \
	  && git ls-files -z . ':!keras_vit' ':!keras_vit_command.py' | tar --create --null --files-from=- \
	  | tar --extract --directory="$$folder" && cd "$$folder" \
	  && $(QUIET) KERAS_BACKEND=$(2) "$(CURDIR)/$(1)/bin/python" -m pytest -q $(3)
endef

interop: .venv-interop/interop.done  ## timm, transformers and keras-cv beside us.
	$(QUIET) KERAS_VIT_INTEROP=1 KERAS_BACKEND=torch .venv-interop/bin/pytest -q \
	  -m "not tensorflow_only" tests/interop
	$(QUIET) KERAS_VIT_INTEROP=1 KERAS_BACKEND=tensorflow .venv-interop/bin/pytest -q \
	  tests/interop/test_keras_cv.py

serve-test: .venv-serve/server.done  ## An export behind KServe and `keras-vit serve`, 10,000 requests.
	$(QUIET) KERAS_VIT_NO_SKIPS=1 KERAS_VIT_REQUESTS=10000 .venv-serve/bin/pytest -q -s -rs tests/serving/test_rest.py \
	  tests/serving/test_server.py tests/serving/test_kserve.py tests/serving/test_configs.py

peers: $(PEERS:%=.venv-peers/%.done)  ## The environments of the libraries that `make bench` has beside ours.

bench: $(VENV)/dev.done  ## ViT-B/16, BiT and a hybrid compared with the libraries that `make peers` installed.
	$(QUIET) $(BIN)/python benchmarks/peers.py --plot peers.png --json peers.json
	$(QUIET) $(BIN)/python benchmarks/peers.py --variant BiT-R50x1 --only timm timm-compiled
	$(QUIET) $(BIN)/python benchmarks/peers.py --variant R50+ViT-B/16 --only timm timm-compiled

docs: $(VENV)/dev.done  ## The documentation as a site, in site/.
	$(QUIET) NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

format: $(VENV)/dev.done
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

$(VENV)/%.done: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --editable ".[$*]"
	touch $@

# From the tracked files alone; the same bytes from the tree as from the sdist.
build/wheels.done: export SOURCE_DATE_EPOCH = $(shell git log -1 --format=%ct)
build/wheels.done: $(shell git ls-files keras_vit keras_vit_command.py 2> /dev/null) LICENSE MANIFEST.in README.md \
  pyproject.toml setup.py | .venv-build/build.done
	rm -rf build dist
	mkdir -p build/tree
	git ls-files -z | tar --create --null --files-from=- | tar --extract --directory=build/tree
	.venv-build/bin/python -m build --quiet --outdir dist build/tree
	.venv-build/bin/python -m build --quiet --wheel --outdir build/again build/tree
	cmp dist/*.whl build/again/*.whl
	.venv-build/bin/twine check --strict dist/*
	touch $@

.venv-build/build.done: Makefile
	$(PYTHON) -m venv .venv-build
	.venv-build/bin/pip install --quiet --upgrade pip
	.venv-build/bin/pip install --quiet build twine "pytest>=8" pyyaml
	touch $@

.PRECIOUS: .venv-wheel-%/dev.done

.venv-wheel-floor/dev.done: build/wheels.done
	$(PYTHON) -m venv --clear .venv-wheel-floor
	.venv-wheel-floor/bin/pip install --quiet --upgrade pip
	.venv-wheel-floor/bin/pip install --quiet "$$(echo dist/*.whl)[demo,server,tfds]" \
	  "keras==3.12.*" "tensorflow==2.20.*" "pytest>=8" "hypothesis>=6.100" nbclient nbformat ipykernel pyyaml \
	  "scikit-image>=0.22"
	touch $@

.venv-wheel-%/dev.done: build/wheels.done
	python$* -m venv --clear .venv-wheel-$*
	.venv-wheel-$*/bin/pip install --quiet --upgrade pip
	.venv-wheel-$*/bin/pip install --quiet "$$(echo dist/*.whl)[dev]"
	touch $@

.venv-colab/colab.done .venv-colab-tpu/colab-tpu.done: $(COLAB)/runtime.py pyproject.toml
	python3.13 -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet pip==24.1.2
	$(@D)/bin/python $(COLAB)/runtime.py build $(basename $(@F))
	touch $@

.venv-interop/interop.done: pyproject.toml
	$(PYTHON) -m venv .venv-interop
	.venv-interop/bin/pip install --quiet --upgrade pip
	.venv-interop/bin/pip install --quiet --editable ".[interop]"
	touch $@

.venv-serve/server.done: pyproject.toml
	$(PYTHON) -m venv .venv-serve
	.venv-serve/bin/pip install --quiet --upgrade pip
	.venv-serve/bin/pip install --quiet --editable ".[serve-test]"
	touch $@

# torch is pinned: a looser range pulls several GB of CUDA packages.
.venv-peers/torch.done: packages = "torch==2.13.0" "timm==1.0.*" "transformers==5.*"
.venv-peers/keras-hub.done: packages = "keras-hub==0.*" "tensorflow>=2.20"
.venv-peers/keras-vit.done: packages = --editable .
# Imports OpenCV without asking for it.
.venv-peers/vit-keras.done: packages = "vit-keras==0.2.*" "tensorflow>=2.20" opencv-python-headless
.venv-peers/flax.done: packages = flax jax optax einops ml_collections

.venv-peers/vit-keras.done: | vit-keras-python

vit-keras-python:
	@$(PYTHON) -c "import sys; sys.exit(sys.version_info[:2] not in ((3, 10), (3, 11)) and \
	  'vit-keras is for Python 3.10 and 3.11: make PYTHON=python3.11 peers')"

.venv-peers/%.done: Makefile
	$(PYTHON) -m venv .venv-peers/$*
	.venv-peers/$*/bin/pip install --quiet --upgrade pip
	.venv-peers/$*/bin/pip install --quiet $(packages)
	touch $@

clean:
	rm -rf .venv .venv-build .venv-wheel-* .venv-colab .venv-colab-tpu .venv-interop .venv-serve .venv-peers .jax_cache demo runs site build dist *.egg-info
