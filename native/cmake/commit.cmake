# The commit that a folder is checked out at, with + where its files differ from it; empty where the
# folder is not the top of a checkout, or git is missing.
function(weft_commit out folder)
  set(${out} "" PARENT_SCOPE)
  find_program(WEFT_GIT git)
  if(NOT WEFT_GIT OR NOT EXISTS ${folder}/.git)
    return()
  endif()
  execute_process(COMMAND ${WEFT_GIT} -C ${folder} rev-parse --short=12 HEAD
                  OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET
                  RESULT_VARIABLE failed)
  if(failed)
    return()
  endif()
  execute_process(COMMAND ${WEFT_GIT} -C ${folder} diff --quiet HEAD -- RESULT_VARIABLE changed
                  OUTPUT_QUIET ERROR_QUIET)
  if(changed)
    string(APPEND commit "+")
  endif()
  set(${out} ${commit} PARENT_SCOPE)
endfunction()
