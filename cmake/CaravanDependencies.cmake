# Libraries we link besides torch. Included by the build and by the installed package.
find_package(Threads REQUIRED)

# CARAVAN_DEPS: a prefix (include/, lib/) or a flat folder, searched before the system's folders.
if(NOT CARAVAN_DEPS AND DEFINED ENV{CARAVAN_DEPS})
  set(CARAVAN_DEPS "$ENV{CARAVAN_DEPS}")
endif()
if(CARAVAN_DEPS)
  list(PREPEND CMAKE_PREFIX_PATH "${CARAVAN_DEPS}")
  list(PREPEND CMAKE_INCLUDE_PATH "${CARAVAN_DEPS}")
  list(PREPEND CMAKE_LIBRARY_PATH "${CARAVAN_DEPS}")
endif()

# caravan_c_library(name header library [OPTIONAL]): imports Caravan::<name>, a C library that Debian and Ubuntu package
# without CMake files. Searched on each machine, so that the installed package contains no path of the build machine.
function(caravan_c_library name header library)
  if(TARGET Caravan::${name})
    return()
  endif()
  set(required REQUIRED)
  if("OPTIONAL" IN_LIST ARGN)
    set(required "")
  endif()
  find_path(CARAVAN_${name}_INCLUDE_DIR ${header} ${required})
  find_library(CARAVAN_${name}_LIBRARY ${library} ${required})
  mark_as_advanced(CARAVAN_${name}_INCLUDE_DIR CARAVAN_${name}_LIBRARY)
  if(NOT CARAVAN_${name}_INCLUDE_DIR OR NOT CARAVAN_${name}_LIBRARY)
    return()
  endif()
  add_library(Caravan::${name} UNKNOWN IMPORTED GLOBAL)
  set_target_properties(Caravan::${name} PROPERTIES IMPORTED_LOCATION "${CARAVAN_${name}_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${CARAVAN_${name}_INCLUDE_DIR}")
endfunction()

caravan_c_library(pcre2 pcre2.h pcre2-8)
caravan_c_library(utf8proc utf8proc.h utf8proc)
caravan_c_library(crypto openssl/hmac.h crypto)
caravan_c_library(zlib zlib.h z)
caravan_c_library(zstd zstd.h zstd)
# A library built with liburing needs it wherever a program is linked with it; one built without does not.
if(NOT DEFINED CARAVAN_URING)
  caravan_c_library(uring liburing.h uring OPTIONAL)
elseif(CARAVAN_URING)
  caravan_c_library(uring liburing.h uring)
endif()
