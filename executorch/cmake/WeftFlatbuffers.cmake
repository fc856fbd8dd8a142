# The reader of the blob: FlatBuffers' C++ headers, and code for them that their own release of
# flatc generates. Sets WEFT_FLATBUFFERS_INCLUDE and WEFT_BLOB_HEADER.
#
# From Debian (libflatbuffers-dev and flatbuffers-compiler) or another installation of both; else
# from the network.
set(schema ${CMAKE_CURRENT_SOURCE_DIR}/../schema/program.fbs)
set(WEFT_BLOB_HEADER ${CMAKE_CURRENT_BINARY_DIR}/generated/program_generated.h)

# headers that know no machine: those of the machine that builds are taken for another one, too
find_path(FLATBUFFERS_INCLUDE_DIR flatbuffers/flatbuffers.h NO_CMAKE_FIND_ROOT_PATH
          PATHS /usr/local/include /usr/include)
set(found "")
if(FLATBUFFERS_INCLUDE_DIR)
  set(numbers "")
  file(STRINGS ${FLATBUFFERS_INCLUDE_DIR}/flatbuffers/base.h lines
       REGEX "define FLATBUFFERS_VERSION_(MAJOR|MINOR|REVISION) ")
  foreach(line IN LISTS lines)
    string(REGEX MATCH "[0-9]+$" number "${line}")
    list(APPEND numbers ${number})
  endforeach()
  list(JOIN numbers "." headers_version)
  # a virtual environment may have another flatc first in the path: ask every one
  cmake_path(GET FLATBUFFERS_INCLUDE_DIR PARENT_PATH prefix)
  foreach(candidate "${FLATC}" ${prefix}/bin/flatc /usr/bin/flatc)
    if(NOT EXISTS "${candidate}")
      continue()
    endif()
    execute_process(COMMAND ${candidate} --version OUTPUT_VARIABLE version)
    if(version MATCHES "version ${headers_version}[^0-9]")
      set(found ${candidate})
      break()
    endif()
  endforeach()
endif()

if(NOT found AND CMAKE_CROSSCOMPILING)
  message(FATAL_ERROR "Compiling for another machine needs FlatBuffers of this one: apt-get install "
                      "flatbuffers-compiler libflatbuffers-dev, or set FLATC to a flatc and "
                      "FLATBUFFERS_INCLUDE_DIR to the headers of the same release")
endif()
if(NOT found)
  message(STATUS "No flatc of the release of FlatBuffers' headers (${headers_version}); fetching both")
  include(FetchContent)
  set(FLATBUFFERS_BUILD_TESTS OFF CACHE BOOL "" FORCE)
  set(FLATBUFFERS_INSTALL OFF CACHE BOOL "" FORCE)
  FetchContent_Declare(flatbuffers
    URL https://github.com/google/flatbuffers/archive/refs/tags/v25.12.19.tar.gz)
  FetchContent_GetProperties(flatbuffers)
  if(NOT flatbuffers_POPULATED)
    message(STATUS "Where there is no network: apt-get install flatbuffers-compiler libflatbuffers-dev")
  endif()
  FetchContent_MakeAvailable(flatbuffers)
  set(FLATBUFFERS_INCLUDE_DIR ${flatbuffers_SOURCE_DIR}/include CACHE PATH "" FORCE)
  set(found $<TARGET_FILE:flatc>)
endif()

if(CMAKE_CROSSCOMPILING)  # without the other headers beside them, which are this machine's
  set(alone ${CMAKE_CURRENT_BINARY_DIR}/flatbuffers_alone)
  file(MAKE_DIRECTORY ${alone})
  file(CREATE_LINK ${FLATBUFFERS_INCLUDE_DIR}/flatbuffers ${alone}/flatbuffers SYMBOLIC)
  set(WEFT_FLATBUFFERS_INCLUDE ${alone})
else()
  set(WEFT_FLATBUFFERS_INCLUDE ${FLATBUFFERS_INCLUDE_DIR})
endif()

add_custom_command(
  OUTPUT ${WEFT_BLOB_HEADER}
  COMMAND ${found} --cpp --scoped-enums -o ${CMAKE_CURRENT_BINARY_DIR}/generated ${schema}
  DEPENDS ${schema} VERBATIM)
