# caravan-template: runs chat templates in a separate process (caravan/data/chat/template_process.h). minja, one header, is
# vendored: no distribution has it. Only this program includes it. It has no sanitizers: they would replace its limits of
# stack and memory by their own reports.
add_executable(caravan_template chat/template_program.cpp chat/template_channel.cpp)
target_include_directories(caravan_template PRIVATE ${PROJECT_SOURCE_DIR}/src)
target_include_directories(caravan_template SYSTEM PRIVATE ${PROJECT_SOURCE_DIR}/third_party/minja)
target_compile_features(caravan_template PRIVATE cxx_std_20)
target_compile_options(caravan_template PRIVATE -Wall -Wextra $<$<BOOL:${CARAVAN_WERROR}>:-Werror>)
target_link_libraries(caravan_template PRIVATE nlohmann_json::nlohmann_json)
set_target_properties(caravan_template PROPERTIES OUTPUT_NAME caravan-template UNITY_BUILD OFF
  RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib/caravan)
add_dependencies(caravan_core caravan_template)
install(TARGETS caravan_template RUNTIME DESTINATION lib/caravan)
