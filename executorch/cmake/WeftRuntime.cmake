# ExecuTorch: its headers, and for a shared delegate the runtime library, from the package in
# `executorch_DIR`, else from the wheel of the Python that builds. Sets EXECUTORCH_INCLUDE_DIRS,
# EXECUTORCH_COMPILE_DEFINITIONS and EXECUTORCH_RUNTIME.
#
# Compiled for another machine, a shared delegate needs that machine's runtime; a static one needs
# the headers alone, which are the same everywhere.
option(WEFT_EVENT_TRACER "A static delegate: the runtime is built with EXECUTORCH_ENABLE_EVENT_TRACER"
       OFF)
set(shared ON)
if(WEFT_EXECUTORCH_TYPE STREQUAL "STATIC")
  set(shared OFF)
endif()

if(NOT executorch_DIR)
  if(shared AND CMAKE_CROSSCOMPILING)
    message(FATAL_ERROR
            "The delegate is linked to ExecuTorch's runtime, and this Python's is not for "
            "${CMAKE_SYSTEM_PROCESSOR}: set executorch_DIR to .../executorch/share/cmake of an unpacked "
            "wheel for that machine, or build with -DWEFT_EXECUTORCH_TYPE=STATIC (docs/phone.md)")
  endif()
  # the environment that is installed into first, then the one of an isolated build
  foreach(isolated "-I" "-s")
    execute_process(
      COMMAND ${Python_EXECUTABLE} ${isolated} -c
              "import importlib.util as u; print(u.find_spec('executorch').submodule_search_locations[0])"
      OUTPUT_VARIABLE executorch_root OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    if(executorch_root)
      list(APPEND CMAKE_PREFIX_PATH ${executorch_root})
    endif()
  endforeach()
endif()
find_package(executorch CONFIG NO_CMAKE_FIND_ROOT_PATH)
if(NOT executorch_FOUND)
  message(FATAL_ERROR "ExecuTorch's wheel is missing: pip install executorch==1.5.1")
endif()
if(shared)
  find_library(EXECUTORCH_RUNTIME executorch REQUIRED NO_DEFAULT_PATH NO_CMAKE_FIND_ROOT_PATH
               PATHS ${EXECUTORCH_RUNTIME_LIBRARY_DIR})
else()  # how the wheel's runtime was built says nothing of the program's
  set(EXECUTORCH_RUNTIME "")
  set(EXECUTORCH_COMPILE_DEFINITIONS C10_USING_CUSTOM_GENERATED_MACROS)
  if(WEFT_EVENT_TRACER)
    list(APPEND EXECUTORCH_COMPILE_DEFINITIONS ET_EVENT_TRACER_ENABLED)
  endif()
endif()
