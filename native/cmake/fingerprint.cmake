# What a core was built from, as a hash over its sources: a delegate takes an installed core only if
# it is that of its own checkout.
function(weft_fingerprint out native)
  file(GLOB_RECURSE sources RELATIVE ${native} ${native}/include/*.h ${native}/src/*)
  list(SORT sources)
  set(lines "")
  foreach(source IN LISTS sources)
    file(SHA256 ${native}/${source} hash)
    string(APPEND lines "${hash} ${source}\n")
  endforeach()
  string(SHA256 hash "${lines}")
  set(${out} ${hash} PARENT_SCOPE)
endfunction()
