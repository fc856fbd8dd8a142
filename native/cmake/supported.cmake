# Refuses processors that the native core would be wrong on.
if(CMAKE_SIZEOF_VOID_P AND NOT CMAKE_SIZEOF_VOID_P EQUAL 8)
  math(EXPR bits "8 * ${CMAKE_SIZEOF_VOID_P}")
  message(FATAL_ERROR "weft's native core is for 64-bit processors, and this compiler is for one of "
                      "${bits} bits: build with a 64-bit compiler and Python.")
endif()
set(order "${CMAKE_CXX_BYTE_ORDER}")
if(NOT order AND CMAKE_VERSION VERSION_LESS 3.20)
  include(TestBigEndian)
  test_big_endian(big)
  if(big)
    set(order BIG_ENDIAN)
  endif()
endif()
if(order STREQUAL "BIG_ENDIAN")
  message(FATAL_ERROR "weft's native core reads the little-endian blocks of model files in place, "
                      "and this compiler is for a big-endian processor (${CMAKE_SYSTEM_PROCESSOR}): "
                      "build for a little-endian one.")
endif()
