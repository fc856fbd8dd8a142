# The commands for users, developers and CI. Everything is set up on first use in .venv.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
BUILD  := build/dev

.PHONY: native
# Incremental native build for development; the module lands in src/weft.
native:
	cmake -S . -B $(BUILD) -G Ninja -DWEFT_WERROR=ON -DPython_EXECUTABLE=$(BIN)/python \
	  -Dnanobind_DIR=$$($(BIN)/python -m nanobind --cmake_dir) \
	  -DCMAKE_LIBRARY_OUTPUT_DIRECTORY=$(CURDIR)/src/weft > /dev/null
	cmake --build $(BUILD)
