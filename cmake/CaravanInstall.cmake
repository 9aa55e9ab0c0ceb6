# cmake --install: public headers, both libraries, the programs and a package for find_package(Caravan).
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/Caravan)

set_target_properties(caravan_core PROPERTIES EXPORT_NAME core)
add_library(Caravan::core ALIAS caravan_core)
add_library(Caravan::caravan ALIAS caravan)
install(TARGETS caravan_core caravan EXPORT CaravanExports ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
  INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT CaravanExports NAMESPACE Caravan:: DESTINATION ${package_dir})
install(CODE "include(\"${CMAKE_CURRENT_LIST_DIR}/CaravanPublicHeaders.cmake\")
  caravan_install_headers(\"${PROJECT_SOURCE_DIR}/src/caravan\" \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_INCLUDEDIR}\")")

# A program that links an installed Caravan loads the MPI objects by name, through its own run path.
get_property(mpis GLOBAL PROPERTY CARAVAN_MPI_BUILT)
if(mpis)
  target_link_options(caravan_core INTERFACE "$<INSTALL_INTERFACE:LINKER:-rpath,$<INSTALL_PREFIX>/lib/caravan>")
endif()

# CMAKE_INSTALL_RPATH_USE_LINK_PATH leaves out folders below the source tree, where ./caravan puts its
# own libtorch.
set(run_path ${LIBTORCH_ROOT}/lib)
foreach(library pcre2 utf8proc crypto zlib zstd uring)
  if(NOT TARGET Caravan::${library})
    continue()
  endif()
  get_target_property(location Caravan::${library} IMPORTED_LOCATION)
  get_filename_component(folder ${location} DIRECTORY)
  if(folder MATCHES "^${PROJECT_SOURCE_DIR}/")
    list(APPEND run_path ${folder})
  endif()
endforeach()
if(TARGET Libtorch::openmp_runtime)
  get_target_property(location Libtorch::openmp_runtime IMPORTED_LOCATION)
  get_filename_component(folder ${location} DIRECTORY)
  list(APPEND run_path ${folder})
  list(REMOVE_DUPLICATES run_path)
endif()
get_property(programs GLOBAL PROPERTY CARAVAN_PROGRAMS)
set_target_properties(${programs} PROPERTIES INSTALL_RPATH "${run_path}")
install(TARGETS ${programs} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})

install(DIRECTORY recipes DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/caravan FILES_MATCHING PATTERN "*.toml")
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/doc/caravan)
install(FILES third_party/minja/LICENSE DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/doc/caravan RENAME LICENSE.minja)

# The manual page and the completions, printed by the program itself.
install(CODE "
  set(share \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_DATAROOTDIR}\")
  foreach(output \"man/man1/caravan.1;manual\" \"bash-completion/completions/caravan;completion;bash\"
                 \"fish/vendor_completions.d/caravan.fish;completion;fish\")
    list(POP_FRONT output file)
    get_filename_component(folder \"\${share}/\${file}\" DIRECTORY)
    file(MAKE_DIRECTORY \"\${folder}\")
    execute_process(COMMAND \"$<TARGET_FILE:caravan_app>\" \${output} OUTPUT_FILE \"\${share}/\${file}\"
      RESULT_VARIABLE code)
    if(code)
      message(FATAL_ERROR \"caravan \${output} ended with \${code}\")
    endif()
    message(STATUS \"Installing: \${share}/\${file}\")
  endforeach()")

string(REGEX MATCH "^([0-9]+)\\.([0-9]+)" matched ${Libtorch_VERSION})
set(Libtorch_VERSION_MAJOR ${CMAKE_MATCH_1})
set(Libtorch_VERSION_MINOR ${CMAKE_MATCH_2})
set(uring_was_found OFF)
if(TARGET Caravan::uring)
  set(uring_was_found ON)
endif()
configure_package_config_file(cmake/CaravanConfig.cmake.in ${PROJECT_BINARY_DIR}/CaravanConfig.cmake
  INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/CaravanConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/CaravanConfig.cmake ${PROJECT_BINARY_DIR}/CaravanConfigVersion.cmake
  cmake/CaravanDependencies.cmake cmake/FindLibtorch.cmake DESTINATION ${package_dir})
