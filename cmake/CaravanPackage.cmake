# cpack -G "TGZ;DEB": an archive that works in any folder, and a package for the distribution of the build machine.
# Neither has libtorch: the programs use the one that they were built with, or that of the same version in LD_LIBRARY_PATH.
set(CPACK_PACKAGE_NAME caravan)
set(CPACK_PACKAGE_VENDOR "Caravan")
set(CPACK_PACKAGE_CONTACT "the developers of Caravan <caravan@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "trains large models over many processes, on libtorch ${Libtorch_VERSION}")
set(CPACK_PACKAGE_DESCRIPTION "A command and a C++20 library for training over processes and hosts: data, tensor,\n\
sequence, expert and pipeline parallelism that compose. libtorch ${Libtorch_VERSION} is not part of it: set\n\
LD_LIBRARY_PATH to its lib folder, unless it is where it was at build time.")
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "openmpi-bin, mpich")  # of the back-end mpi, which is loaded by name

# The packages of the shared libraries, by the files that were linked.
find_program(CARAVAN_DPKG_QUERY dpkg-query)
mark_as_advanced(CARAVAN_DPKG_QUERY)
set(depends libc6 libstdc++6 libgomp1)
foreach(library pcre2 utf8proc crypto zlib zstd uring)
  if(NOT TARGET Caravan::${library})
    continue()
  endif()
  get_target_property(location Caravan::${library} IMPORTED_LOCATION)
  get_filename_component(location ${location} REALPATH)
  set(owner "")
  if(CARAVAN_DPKG_QUERY)
    # dpkg may know the file by its name before /lib became a link into /usr.
    get_filename_component(name ${location} NAME)
    execute_process(COMMAND ${CARAVAN_DPKG_QUERY} -S "*/${name}" OUTPUT_VARIABLE owner ERROR_QUIET)
    string(REGEX MATCH "^[^:\n]+" owner "${owner}")
  endif()
  if(owner)
    list(APPEND depends ${owner})
  endif()
endforeach()
list(JOIN depends ", " CPACK_DEBIAN_PACKAGE_DEPENDS)
include(CPack)
