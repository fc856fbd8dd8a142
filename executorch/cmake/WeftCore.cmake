# Target weft_core: the library WEFT_CORE, else that of the weft which is installed in the Python that
# builds, where it was made of the sources of this checkout, else compiled from them.
include(${root}/native/cmake/fingerprint.cmake)
find_package(Threads REQUIRED)

set(core ${WEFT_CORE})
# an installed core is for this machine, with the kernels that weft was built with
if(NOT core AND NOT WEFT_SANITIZE AND NOT CMAKE_CROSSCOMPILING AND NOT WEFT_KEEP
   AND NOT DEFINED WEFT_TARGETS)
  # -I: pip hides what is installed from the Python of an isolated build otherwise
  execute_process(
    COMMAND ${Python_EXECUTABLE} -I -c
            "import os, sys; print(';'.join(os.path.join(p, 'weft', '_core') for p in sys.path))"
    OUTPUT_VARIABLE folders OUTPUT_STRIP_TRAILING_WHITESPACE)
  weft_fingerprint(sources ${root}/native)
  foreach(folder IN LISTS folders)
    if(EXISTS ${folder}/libweft_core.a AND EXISTS ${folder}/sources.sha256)
      file(READ ${folder}/sources.sha256 hash)
      if(hash STREQUAL sources)
        set(core ${folder}/libweft_core.a)
        break()
      endif()
      message(STATUS "${folder} is of other sources; install the weft of this checkout to use its core")
    endif()
  endforeach()
endif()

if(core)
  message(STATUS "Linking to the core ${core}")
  add_library(weft_core STATIC IMPORTED)
  set_target_properties(weft_core PROPERTIES IMPORTED_LOCATION ${core})
  target_include_directories(weft_core INTERFACE ${root}/native/include ${root}/native/src)
  target_link_libraries(weft_core INTERFACE Threads::Threads)
else()
  message(STATUS "Compiling weft's core")
  set(WEFT_PYTHON OFF CACHE BOOL "" FORCE)
  add_subdirectory(${root}/native native EXCLUDE_FROM_ALL)
endif()
