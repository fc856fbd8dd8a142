# The commands for users, developers and CI. Everything they need is set up in .venv on first use.
PYTHON ?= python3
VENV   ?= .venv
BIN    ?= $(VENV)/bin
BUILD  := build/dev
MODEL  ?= examples/weft-demo.gguf

SOURCES := $(shell find native -name '*.cpp' -o -name '*.h') CMakeLists.txt native/CMakeLists.txt

.PHONY: demo test check bench native sanitize stubs docs format clean

# ---- the main job ----
demo: $(VENV)/installed
	$(BIN)/weft run $(MODEL) -p "What is 17 + 25?" -n 160 --temp 0

# ---- the whole test suite ----
# The opencl device is tested on PoCL where there is no other driver; root may install it.
test: $(VENV)/installed
	@ls /etc/OpenCL/vendors/*.icd > /dev/null 2>&1 || \
	  { test "$$(id -u)" = 0 && apt-get install -y -q pocl-opencl-icd > /dev/null 2>&1; } || \
	  echo "no OpenCL driver (Debian: pocl-opencl-icd); tests of the opencl device are skipped"
	$(BIN)/python -m pytest -q

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
	  -C cmake.define.WEFT_WERROR=ON -C cmake.define.WEFT_TESTS=ON -e .
	touch $@

# ---- development ----
# A second, incremental build whose module lands in src/weft (it is found there first).
native:
	cmake -S . -B $(BUILD) -G Ninja -DWEFT_WERROR=ON -DWEFT_TESTS=ON -DPython_EXECUTABLE=$(BIN)/python \
	  -Dnanobind_DIR=$$($(BIN)/python -m nanobind --cmake_dir) \
	  -DCMAKE_LIBRARY_OUTPUT_DIRECTORY=$(CURDIR)/src/weft > /dev/null
	cmake --build $(BUILD)

# The native tests under ThreadSanitizer (AVX2 has all that kernels share between threads, the
# baseline no packed columns), then every kernel target under AddressSanitizer and UndefinedBehaviorSanitizer. They come
# with the compiler.
SANITIZE = cmake -G Ninja -S . -DCMAKE_BUILD_TYPE=None -DCMAKE_CXX_FLAGS=-O1 -DWEFT_PYTHON=OFF \
           -DWEFT_TESTS=ON

sanitize:
	$(SANITIZE) -B build/tsan -DWEFT_SANITIZE=thread -DWEFT_TARGETS=avx2 > /dev/null
	cmake --build build/tsan
	ctest --test-dir build/tsan --output-on-failure
	$(SANITIZE) -B build/asan -DWEFT_SANITIZE=address,undefined > /dev/null
	cmake --build build/asan
	ctest --test-dir build/asan --output-on-failure

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
