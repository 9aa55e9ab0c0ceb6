# Fails if PROGRAM has a case that is not among the CHOSEN ones of its tests.
cmake_minimum_required(VERSION 3.22)
execute_process(COMMAND ${PROGRAM} --gtest_list_tests OUTPUT_VARIABLE all COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${PROGRAM} --cases=${CHOSEN} --gtest_list_tests OUTPUT_VARIABLE chosen COMMAND_ERROR_IS_FATAL ANY)
# The comment behind a name can hold the address of a parameter.
string(REGEX REPLACE "  # [^\n]*" "" all "${all}")
string(REGEX REPLACE "  # [^\n]*" "" chosen "${chosen}")
if(NOT all STREQUAL chosen)
  string(REPLACE "\n" ";" all "${all}")
  string(REPLACE "\n" ";" chosen "${chosen}")
  list(REMOVE_ITEM all ${chosen})
  list(FILTER all EXCLUDE REGEX "^DISABLED_")  # instances that are products
  if(NOT all)
    return()
  endif()
  message(FATAL_ERROR "no test runs these cases; give their file or instance to caravan_test:\n${all}")
endif()
