# Flags that make an error in memory hard to exploit, of those that the compiler has: a canary before
# the return address, checked copies, a touched stack guard, checked jump targets, and tables of
# addresses that are read-only once the library is loaded. docs/security.md says what has which.
include(CheckCXXCompilerFlag)

set(weft_hardening)
foreach(flag IN ITEMS -fstack-clash-protection -fcf-protection -mbranch-protection=standard)
  string(MAKE_C_IDENTIFIER "WEFT_HAS${flag}" known)
  check_cxx_compiler_flag(-Werror\ ${flag} ${known})
  if(${known})
    list(APPEND weft_hardening ${flag})
  endif()
endforeach()
if(NOT WEFT_SANITIZE)  # sanitizers check more, and replace the same functions
  list(APPEND weft_hardening -U_FORTIFY_SOURCE $<$<NOT:$<CONFIG:Debug>>:-D_FORTIFY_SOURCE=3>)
endif()
set(weft_canaries -fstack-protector-strong)
set(weft_link_hardening LINKER:-z,relro LINKER:-z,now LINKER:-z,noexecstack)

# For a library that Python or ExecuTorch loads, and what is linked into it.
function(weft_harden target)
  target_compile_options(${target} PRIVATE ${weft_hardening} ${weft_canaries})
  get_target_property(type ${target} TYPE)
  if(NOT type MATCHES "OBJECT|STATIC" AND UNIX AND NOT APPLE)
    target_link_options(${target} PRIVATE ${weft_link_hardening})
  endif()
endfunction()
