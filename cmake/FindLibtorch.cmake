# Finds libtorch without torch's own CMake package, which requires nvcc and NVTX if torch was built for CUDA.
#
#   input    CARAVAN_TORCH (variable, then environment): a folder with include/ and lib/ of torch, or one that contains it:
#            site-packages, a Python prefix, an unpacked libtorch
#   output   Libtorch::Libtorch (imported), Libtorch_VERSION, LIBTORCH_ROOT, LIBTORCH_HAS_CUDA, LIBTORCH_HAS_OPENMP
#
# Nothing is cached: a new CARAVAN_TORCH takes effect at the next configuration.

set(_libtorch_hint "${CARAVAN_TORCH}")
if(NOT _libtorch_hint)
  set(_libtorch_hint "$ENV{CARAVAN_TORCH}")
endif()
file(GLOB _libtorch_in_prefix LIST_DIRECTORIES true
  "${_libtorch_hint}/lib/python3*/site-packages/torch" "${_libtorch_hint}/lib/python3*/dist-packages/torch")

unset(LIBTORCH_ROOT)
unset(Libtorch_VERSION)
foreach(_candidate "${_libtorch_hint}" "${_libtorch_hint}/torch" "${_libtorch_hint}/libtorch" ${_libtorch_in_prefix})
  if(_libtorch_hint AND NOT LIBTORCH_ROOT AND EXISTS "${_candidate}/include/torch/csrc/api/include/torch/types.h"
     AND EXISTS "${_candidate}/lib/libtorch_cpu.so" AND EXISTS "${_candidate}/lib/libc10.so")
    file(REAL_PATH "${_candidate}" LIBTORCH_ROOT)
  endif()
endforeach()

if(LIBTORCH_ROOT AND EXISTS "${LIBTORCH_ROOT}/include/torch/headeronly/version.h")
  file(STRINGS "${LIBTORCH_ROOT}/include/torch/headeronly/version.h" _lines REGEX "#define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
  if("${_lines}" MATCHES "MAJOR ([0-9]+).*MINOR ([0-9]+).*PATCH ([0-9]+)")
    set(Libtorch_VERSION ${CMAKE_MATCH_1}.${CMAKE_MATCH_2}.${CMAKE_MATCH_3})
  endif()
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Libtorch REQUIRED_VARS LIBTORCH_ROOT VERSION_VAR Libtorch_VERSION
  REASON_FAILURE_MESSAGE "set -DCARAVAN_TORCH=<folder with torch's include/ and lib/> (now \"${_libtorch_hint}\"), or run ./caravan, which finds or installs torch")

if(Libtorch_FOUND AND NOT TARGET Libtorch::Libtorch)
  add_library(Libtorch::c10 SHARED IMPORTED)
  set_target_properties(Libtorch::c10 PROPERTIES IMPORTED_LOCATION "${LIBTORCH_ROOT}/lib/libc10.so")
  add_library(Libtorch::torch_cpu SHARED IMPORTED)
  set_target_properties(Libtorch::torch_cpu PROPERTIES IMPORTED_LOCATION "${LIBTORCH_ROOT}/lib/libtorch_cpu.so")

  # torch's own OpenMP runtime, so that our loops run on the same threads. Its wheels ship it.
  if(CMAKE_READELF)
    execute_process(COMMAND ${CMAKE_READELF} -d "${LIBTORCH_ROOT}/lib/libtorch_cpu.so" OUTPUT_VARIABLE _libtorch_needed
      ERROR_QUIET)
  endif()
  string(REGEX MATCH "lib(gomp|omp|iomp5)[^] ]*" _libtorch_openmp "${_libtorch_needed}")
  unset(_libtorch_openmp_file)
  foreach(_folder "${LIBTORCH_ROOT}/lib" "${LIBTORCH_ROOT}/../torch.libs" "${LIBTORCH_ROOT}/../../..")
    if(_libtorch_openmp AND NOT _libtorch_openmp_file AND EXISTS "${_folder}/${_libtorch_openmp}")
      file(REAL_PATH "${_folder}" _folder)
      set(_libtorch_openmp_file "${_folder}/${_libtorch_openmp}")
    endif()
  endforeach()
  add_library(Libtorch::openmp INTERFACE IMPORTED)
  set(LIBTORCH_HAS_OPENMP ON)
  if(_libtorch_openmp_file)
    add_library(Libtorch::openmp_runtime SHARED IMPORTED)
    set_target_properties(Libtorch::openmp_runtime PROPERTIES IMPORTED_LOCATION "${_libtorch_openmp_file}")
    target_link_libraries(Libtorch::openmp INTERFACE Libtorch::openmp_runtime)
  elseif(_libtorch_openmp MATCHES "^libgomp")
    target_link_options(Libtorch::openmp INTERFACE -fopenmp)
  else()
    set(LIBTORCH_HAS_OPENMP OFF)
  endif()

  add_library(Libtorch::Libtorch INTERFACE IMPORTED)
  target_include_directories(Libtorch::Libtorch SYSTEM INTERFACE
    "${LIBTORCH_ROOT}/include" "${LIBTORCH_ROOT}/include/torch/csrc/api/include")
  # As in torch's own package: without these two the c10d headers are silently empty.
  target_compile_definitions(Libtorch::Libtorch INTERFACE USE_DISTRIBUTED USE_C10D_GLOO)
  target_link_libraries(Libtorch::Libtorch INTERFACE Libtorch::torch_cpu Libtorch::c10 Libtorch::openmp)
  set(LIBTORCH_HAS_CUDA OFF)
  if(EXISTS "${LIBTORCH_ROOT}/lib/libtorch_cuda.so")
    set(LIBTORCH_HAS_CUDA ON)
    # The CUDA library registers its kernels when it is loaded, so it is linked although we use no symbol of it. Its own
    # dependencies (libcudart and other nvidia packages) are found through its run path, which the linker does not
    # follow.
    target_link_options(Libtorch::Libtorch INTERFACE "LINKER:--allow-shlib-undefined"
      "LINKER:--push-state,--no-as-needed" "SHELL:\"${LIBTORCH_ROOT}/lib/libtorch_cuda.so\"" "LINKER:--pop-state")
  endif()
endif()
