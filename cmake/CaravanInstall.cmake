# cmake --install: headers, both libraries, the programs and a package for find_package(Caravan).
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/Caravan)

set_target_properties(caravan_core PROPERTIES EXPORT_NAME core)
install(TARGETS caravan_core caravan EXPORT CaravanExports ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
  INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT CaravanExports NAMESPACE Caravan:: DESTINATION ${package_dir})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/src/caravan DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  FILES_MATCHING PATTERN "*.h" PATTERN gloo_stubs EXCLUDE)

get_property(programs GLOBAL PROPERTY CARAVAN_PROGRAMS)
if(programs)
  install(TARGETS ${programs} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()

string(REGEX MATCH "^([0-9]+)\\.([0-9]+)" matched ${Libtorch_VERSION})
set(Libtorch_VERSION_MAJOR ${CMAKE_MATCH_1})
set(Libtorch_VERSION_MINOR ${CMAKE_MATCH_2})
configure_package_config_file(cmake/CaravanConfig.cmake.in ${PROJECT_BINARY_DIR}/CaravanConfig.cmake
  INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/CaravanConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/CaravanConfig.cmake ${PROJECT_BINARY_DIR}/CaravanConfigVersion.cmake
  cmake/CaravanDependencies.cmake cmake/FindLibtorch.cmake DESTINATION ${package_dir})
