# Finds libtorch without torch's own CMake package, which demands nvcc and NVTX as soon as torch was built for CUDA.
#
#   input    CARAVAN_TORCH   the folder that holds include/ and lib/ of torch (site-packages/torch of a wheel, or libtorch/)
#   output   Libtorch::Libtorch (imported), LIBTORCH_VERSION, LIBTORCH_HAS_CUDA
#
# Only torch_cpu and c10 are linked: nothing else of torch is needed by a CPU program. The CUDA libraries register their
# kernels when they are loaded, so they are linked even though no symbol of theirs is named.

find_path(LIBTORCH_INCLUDE_DIR torch/types.h PATHS ${CARAVAN_TORCH}/include/torch/csrc/api/include NO_DEFAULT_PATH)
find_library(LIBTORCH_CPU_LIBRARY torch_cpu PATHS ${CARAVAN_TORCH}/lib NO_DEFAULT_PATH)
find_library(LIBTORCH_C10_LIBRARY c10 PATHS ${CARAVAN_TORCH}/lib NO_DEFAULT_PATH)
find_library(LIBTORCH_CUDA_LIBRARY torch_cuda PATHS ${CARAVAN_TORCH}/lib NO_DEFAULT_PATH)
find_library(LIBTORCH_C10_CUDA_LIBRARY c10_cuda PATHS ${CARAVAN_TORCH}/lib NO_DEFAULT_PATH)

foreach(header torch/headeronly/version.h torch/csrc/api/include/torch/version.h)
  if(NOT LIBTORCH_VERSION AND EXISTS ${CARAVAN_TORCH}/include/${header})
    file(STRINGS ${CARAVAN_TORCH}/include/${header} lines REGEX "#define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
    if(lines MATCHES "MAJOR ([0-9]+).*MINOR ([0-9]+).*PATCH ([0-9]+)")
      set(LIBTORCH_VERSION ${CMAKE_MATCH_1}.${CMAKE_MATCH_2}.${CMAKE_MATCH_3})
    endif()
  endif()
endforeach()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Libtorch
  REQUIRED_VARS LIBTORCH_CPU_LIBRARY LIBTORCH_C10_LIBRARY LIBTORCH_INCLUDE_DIR VERSION_VAR LIBTORCH_VERSION
  REASON_FAILURE_MESSAGE "set -DCARAVAN_TORCH=<folder with torch's include/ and lib/>, or run ./caravan, which finds or installs one")

if(Libtorch_FOUND AND NOT TARGET Libtorch::Libtorch)
  add_library(Libtorch::Libtorch INTERFACE IMPORTED)
  target_include_directories(Libtorch::Libtorch SYSTEM INTERFACE
    ${CARAVAN_TORCH}/include ${CARAVAN_TORCH}/include/torch/csrc/api/include)
  # What torch's own package puts on torch_cpu; without the first two the c10d headers are silently empty.
  target_compile_definitions(Libtorch::Libtorch INTERFACE USE_DISTRIBUTED USE_C10D_GLOO)
  target_link_libraries(Libtorch::Libtorch INTERFACE ${LIBTORCH_CPU_LIBRARY} ${LIBTORCH_C10_LIBRARY})
  set(LIBTORCH_HAS_CUDA OFF)
  if(LIBTORCH_CUDA_LIBRARY AND LIBTORCH_C10_CUDA_LIBRARY)
    set(LIBTORCH_HAS_CUDA ON)
    target_link_libraries(Libtorch::Libtorch INTERFACE
      "-Wl,--no-as-needed" ${LIBTORCH_CUDA_LIBRARY} ${LIBTORCH_C10_CUDA_LIBRARY} "-Wl,--as-needed")
  endif()
  target_link_options(Libtorch::Libtorch INTERFACE "LINKER:-rpath,${CARAVAN_TORCH}/lib")
endif()
mark_as_advanced(LIBTORCH_INCLUDE_DIR LIBTORCH_CPU_LIBRARY LIBTORCH_C10_LIBRARY LIBTORCH_CUDA_LIBRARY LIBTORCH_C10_CUDA_LIBRARY)
