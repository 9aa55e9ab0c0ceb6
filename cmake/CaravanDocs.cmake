# The target docs: the API reference of the installed headers, by Doxygen, if it is found. A warning is an error. It is
# installed if it has been built.
set(DOCS_OUTPUT ${PROJECT_BINARY_DIR}/docs)
find_program(CARAVAN_DOXYGEN doxygen)
mark_as_advanced(CARAVAN_DOXYGEN)
install(DIRECTORY ${DOCS_OUTPUT}/html DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/doc/caravan OPTIONAL)
if(NOT CARAVAN_DOXYGEN)
  return()
endif()
set(DOCS_HEADERS ${DOCS_OUTPUT}/include)
set(DOCS_INDEX ${PROJECT_SOURCE_DIR}/docs/reference/index.md)
set(DOCS_FILTER ${PROJECT_SOURCE_DIR}/docs/reference/filter.py)
configure_file(docs/reference/Doxyfile.in ${DOCS_OUTPUT}/Doxyfile @ONLY)
file(WRITE ${DOCS_OUTPUT}/headers.cmake "cmake_policy(VERSION 3.22)
file(REMOVE_RECURSE \"${DOCS_HEADERS}\")
include(\"${PROJECT_SOURCE_DIR}/cmake/CaravanPublicHeaders.cmake\")
caravan_install_headers(\"${PROJECT_SOURCE_DIR}/src/caravan\" \"${DOCS_HEADERS}\")
")
add_custom_target(docs
  COMMAND ${CMAKE_COMMAND} -P ${DOCS_OUTPUT}/headers.cmake >${DOCS_OUTPUT}/headers.log
  COMMAND ${CARAVAN_DOXYGEN} ${DOCS_OUTPUT}/Doxyfile
  VERBATIM COMMENT "API reference: ${DOCS_OUTPUT}/html/index.html")
