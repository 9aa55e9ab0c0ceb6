# Compile flags of all our targets, and helpers that create targets.

add_library(caravan_flags INTERFACE)
target_compile_features(caravan_flags INTERFACE cxx_std_20)
# No -march: the binary runs on any x86-64; hot loops dispatch at run time.
# -ffp-contract=off: with a fused multiply-add in one clone of a loop but not in the other, results would depend on the
# machine.
# -fopenmp: without it at::parallel_for, a template of torch's headers, is a plain loop. clang needs another runtime.
set(loops -fopenmp)
if(NOT LIBTORCH_HAS_OPENMP OR NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  message(WARNING "the library's own loops run on one thread: g++ and a libtorch with OpenMP divide them")
  set(loops -Wno-unknown-pragmas)
endif()
target_compile_options(caravan_flags INTERFACE -Wall -Wextra -Wpedantic ${loops} -ffp-contract=off)
if(CARAVAN_PYTHON)
  # The extension is a shared object made of the static libraries. All targets get the flags: they share a precompiled
  # header.
  target_compile_options(caravan_flags INTERFACE -fPIC -fno-semantic-interposition)
endif()
if(CMAKE_UNITY_BUILD)
  # GCC treats every source of a unit except the unit itself as a header.
  target_compile_options(caravan_flags INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
endif()
# GCC collects its garbage from 512 MiB on, not from 128 MiB: 3 to 7 % less time for at most as much more memory.
target_compile_options(caravan_flags INTERFACE $<$<CXX_COMPILER_ID:GNU>:SHELL:--param ggc-min-heapsize=524288>)
if(CARAVAN_WERROR)
  target_compile_options(caravan_flags INTERFACE -Werror)
endif()
if(CARAVAN_SANITIZE)
  target_compile_options(caravan_flags INTERFACE -fsanitize=${CARAVAN_SANITIZE} -fno-omit-frame-pointer -g1)
  target_link_options(caravan_flags INTERFACE -fsanitize=${CARAVAN_SANITIZE})
  if(CARAVAN_SANITIZE MATCHES undefined)
    # Without the checks of each pointer that is used, which take a third of the build. Most of what they are for is an
    # access that AddressSanitizer reports; misaligned accesses and casts to another class are not.
    target_compile_options(caravan_flags INTERFACE -fno-sanitize-recover=undefined
      -fno-sanitize=null,alignment,object-size,vptr,pointer-overflow,nonnull-attribute,returns-nonnull-attribute)
  endif()
endif()

find_program(CCACHE ccache)
mark_as_advanced(CCACHE)
if(CCACHE AND NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
  # Without pch_defines,time_macros ccache skips every file that uses a precompiled header. With base_dir and nohashdir,
  # clones in other folders share the cache.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros
      CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${CCACHE})
  target_compile_options(caravan_flags INTERFACE $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
endif()

# Installed programs find the libraries they were linked with.
set(CMAKE_INSTALL_RPATH_USE_LINK_PATH ON)

# caravan_executable(name torch|core SOURCES...): a program that links the whole library, or only its torch-free half.
function(caravan_executable name kind)
  add_executable(${name} ${ARGN})
  if(kind STREQUAL torch)
    target_link_libraries(${name} PRIVATE caravan caravan_flags nlohmann_json::nlohmann_json)
    target_precompile_headers(${name} REUSE_FROM caravan)
  else()
    target_link_libraries(${name} PRIVATE caravan_core caravan_flags nlohmann_json::nlohmann_json)
  endif()
  target_compile_definitions(${name} PRIVATE FMT_HEADER_ONLY)
endfunction()

# caravan_program(target output torch|core SOURCES...): a program for users, build/<preset>/bin/<output>, which is
# installed. The target has another name because `caravan` is the library. ./caravan builds caravan_app and
# caravan_rank.
function(caravan_program target output kind)
  caravan_executable(${target} ${kind} ${ARGN})
  set_target_properties(${target} PROPERTIES OUTPUT_NAME ${output} RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
  set_property(GLOBAL APPEND PROPERTY CARAVAN_PROGRAMS ${target})
endfunction()
