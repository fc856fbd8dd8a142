# The commands for users, developers and CI. Everything they need is set up in .venv on first use.
PYTHON ?= python3
VENV   ?= .venv
BIN    ?= $(VENV)/bin
BUILD  := build/dev
MODEL  ?= examples/weft-demo.gguf
WORKERS ?= 2
APT_GET = DEBIAN_FRONTEND=noninteractive apt-get -qq

# Where ccache is installed it keeps what was compiled, for all build folders and checkouts.
LAUNCHER := $(shell command -v ccache)
export CCACHE_BASEDIR ?= $(CURDIR)
export CCACHE_NOHASHDIR ?= 1

SOURCES := $(shell find native -name '*.cpp' -o -name '*.h') CMakeLists.txt native/CMakeLists.txt

DELEGATE := executorch/src/weft_executorch/libweft_executorch.so
DELEGATE_SOURCES := $(shell find executorch -name '*.cpp' -o -name '*.h' -o -name '*.cmake') \
                    executorch/CMakeLists.txt schema/program.fbs

.PHONY: demo test check bench native delegate suite schema sanitize stubs docs format clean

# ---- the main job ----
demo: $(VENV)/installed
	$(BIN)/weft run $(MODEL) -p "What is 17 + 25?" -n 160 --temp 0

# ---- the whole test suite ----
# WORKERS processes share it, a file each at a time; 2 GB of memory each.
# The opencl device is tested on PoCL where there is no other driver; root may install it.
test: $(VENV)/installed $(DELEGATE)
	@ls /etc/OpenCL/vendors/*.icd > /dev/null 2>&1 || \
	  { test "$$(id -u)" = 0 && $(APT_GET) update > /dev/null 2>&1 && \
	    $(APT_GET) install -y pocl-opencl-icd > /dev/null 2>&1; } || \
	  echo "no OpenCL driver (Debian: pocl-opencl-icd); tests of the opencl device are skipped"
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile

# ---- style, types, layers, formatting, the tiny tests ----
check: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/clang-format --dry-run --Werror $$(git ls-files '*.h' '*.cpp')
	$(BIN)/python -m pytest -q tests/test_tiny.py tests/test_exports.py

bench: $(VENV)/installed
	$(BIN)/weft bench $(MODEL)
	$(BIN)/python benchmarks/step_overhead.py

# ---- setting up ----
# The package is installed editable; the native module is rebuilt when its sources change.
$(VENV)/tools: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -U "pip>=25.1"
	$(BIN)/python -m pip install -q --disable-pip-version-check --group dev --group build
	touch $@

$(VENV)/installed: $(VENV)/tools $(SOURCES) pyproject.toml
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-build-isolation \
	  -C cmake.define.WEFT_WERROR=ON -C cmake.define.WEFT_TESTS=ON \
	  -C cmake.define.CMAKE_CXX_COMPILER_LAUNCHER=$(LAUNCHER) -e .
	touch $@

# ---- the ExecuTorch delegate ----
$(VENV)/flatbuffers: $(VENV)/tools
	test -e /usr/include/flatbuffers/flatbuffers.h -a -x /usr/bin/flatc || \
	  { test "$$(id -u)" = 0 && command -v apt-get > /dev/null && $(APT_GET) update && \
	    $(APT_GET) install -y flatbuffers-compiler libflatbuffers-dev; } || \
	  echo "no FlatBuffers here (apt-get install flatbuffers-compiler libflatbuffers-dev);" \
	       "the build will fetch them from the network"
	touch $@

# Its library lands beside its Python package, where tests find it.
define build_delegate
	$(BIN)/cmake -S executorch -B build/delegate -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja \
	  -DWEFT_WERROR=ON -DPython_EXECUTABLE=$(abspath $(BIN))/python -DWEFT_CORE=$(abspath $(CORE)) \
	  -DCMAKE_LIBRARY_OUTPUT_DIRECTORY=$(CURDIR)/$(dir $(DELEGATE)) > /dev/null
	$(BIN)/cmake --build build/delegate
	touch $(DELEGATE)
endef

$(DELEGATE): CORE = $(firstword $(wildcard build/cp3*/native/libweft_core.a))
$(DELEGATE): $(VENV)/installed $(VENV)/flatbuffers $(DELEGATE_SOURCES)
	$(build_delegate)

# For work on it: over the core that `make native` builds.
delegate: CORE = $(BUILD)/native/libweft_core.a
delegate: native
	$(build_delegate)

# ExecuTorch's operator suite: the table of docs/executorch.md. An hour on two cores.
suite: export PYTHONPATH := executorch/src
suite: $(VENV)/installed $(DELEGATE)
	$(BIN)/python -m weft_executorch.suite run build/suite.jsonl --flows weft,weft_q8_0,portable
	$(BIN)/python -m weft_executorch.suite table build/suite.jsonl \
	  --beside benchmarks/data/xnnpack_1.5.1_operators.csv --into docs/executorch.md

# The Python side of the blob; the C++ side is generated when it is built.
schema:
	/usr/bin/flatc --python --gen-object-api --gen-onefile -o executorch/src/weft_executorch \
	  schema/program.fbs

# ---- development ----
# A second, incremental build whose module lands in src/weft (it is found there first).
native:
	cmake -S . -B $(BUILD) -G Ninja -DCMAKE_CXX_COMPILER_LAUNCHER=$(LAUNCHER) \
	  -DWEFT_WERROR=ON -DWEFT_TESTS=ON -DPython_EXECUTABLE=$(BIN)/python \
	  -Dnanobind_DIR=$$($(BIN)/python -m nanobind --cmake_dir) \
	  -DCMAKE_LIBRARY_OUTPUT_DIRECTORY=$(CURDIR)/src/weft > /dev/null
	cmake --build $(BUILD)

# The native tests under ThreadSanitizer (AVX2 has all that kernels share between threads, the
# baseline no packed columns), then every kernel target under AddressSanitizer and
# UndefinedBehaviorSanitizer; each with the delegate's sources over that core (ExecuTorch's own
# library is the wheel's). They come with the compiler; the tools of $(VENV) are there after
# `make test`.
SANITIZE = cmake -G Ninja -S . -DCMAKE_BUILD_TYPE=None -DCMAKE_CXX_FLAGS=-O1 -DWEFT_PYTHON=OFF \
           -DWEFT_TESTS=ON

comma := ,
define sanitize_delegate
	$(BIN)/cmake -S executorch -B build/$(1)-delegate -G Ninja -DCMAKE_BUILD_TYPE=None \
	  -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja -DCMAKE_CXX_FLAGS=-O1 -DWEFT_TESTS=ON \
	  -DPython_EXECUTABLE=$(abspath $(BIN))/python -DWEFT_SANITIZE=$(2) \
	  -DWEFT_CORE=$(CURDIR)/build/$(1)/native/libweft_core.a > /dev/null
	$(BIN)/cmake --build build/$(1)-delegate --target weft_delegate_test
	ctest --test-dir build/$(1)-delegate --output-on-failure
endef

sanitize:
	$(SANITIZE) -B build/tsan -DWEFT_SANITIZE=thread -DWEFT_TARGETS=avx2 > /dev/null
	cmake --build build/tsan
	ctest --test-dir build/tsan --output-on-failure
	$(call sanitize_delegate,tsan,thread)
	$(SANITIZE) -B build/asan -DWEFT_SANITIZE=address,undefined > /dev/null
	cmake --build build/asan
	ctest --test-dir build/asan --output-on-failure
	$(call sanitize_delegate,asan,address$(comma)undefined)

stubs: $(VENV)/installed
	$(BIN)/python -m nanobind.stubgen -q -m weft._native -o src/weft/_native.pyi

# The generated pages; tests hold them to the code.
docs: $(VENV)/installed
	$(BIN)/weft devices --ops --markdown > docs/devices.md

format: $(VENV)/tools
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $$(git ls-files '*.h' '*.cpp')

clean:
	rm -rf build dist $(VENV)/installed src/weft/_native.*.so
