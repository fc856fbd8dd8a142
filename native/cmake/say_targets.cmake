# Prints a line with the kernel targets of this build, how to get others, and the time that compiling takes.
function(weft_say_targets chosen)
  list(JOIN ARGN ", " names)
  if(NOT names)
    set(names "none")
  endif()
  if(chosen STREQUAL "native")
    message(STATUS "weft: kernels of this processor alone (${names}), 3 minutes of processor time; for every "
                   "processor: pip install . -C cmake.define.WEFT_TARGETS=all, 13 minutes")
  elseif(chosen STREQUAL "all")
    message(STATUS "weft: kernels of every target (${names}), 13 minutes of processor time; for this processor "
                   "alone: WEFT_TARGETS=native, 3 minutes")
  else()
    message(STATUS "weft: kernels of the targets ${names}; WEFT_TARGETS=native builds those of this "
                   "processor (3 minutes of processor time), WEFT_TARGETS=all every target (13 minutes)")
  endif()
endfunction()
