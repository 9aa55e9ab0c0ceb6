# Unity builds compile a few large files, each of which includes the sources of one or more folders. A small source
# spends most of its compile time on headers, so this takes a third of the time. Names in anonymous namespaces must be
# unique within a unit. A missing #include shows only without unity: scripts/check_alone.py finds it in sources that do
# not use torch.

# caravan_units(target [unit..]): groups the target's sources for CMAKE_UNITY_BUILD. A unit is a string of folders below
# the current one, "base mesh optim"; a folder that no unit names is in that of the folder above it, and the topmost is a
# unit by itself. Sources with their own flags are compiled separately.
function(caravan_units target)
  get_target_property(sources ${target} SOURCES)
  foreach(source IN LISTS sources)
    get_source_file_property(flags ${source} TARGET_DIRECTORY ${target} COMPILE_OPTIONS)
    get_source_file_property(definitions ${source} TARGET_DIRECTORY ${target} COMPILE_DEFINITIONS)
    get_source_file_property(includes ${source} TARGET_DIRECTORY ${target} INCLUDE_DIRECTORIES)
    if(flags OR definitions OR includes)
      continue()
    endif()
    get_filename_component(folder ${source} DIRECTORY)
    file(RELATIVE_PATH folder ${CMAKE_CURRENT_SOURCE_DIR} ${folder})
    set(group "")
    while(folder AND NOT group)
      set(group "${folder}")
      get_filename_component(above "${folder}" DIRECTORY)
      if(above)
        set(group "")
      endif()
      foreach(unit IN LISTS ARGN)
        if(" ${unit} " MATCHES " ${folder} ")
          set(group "${unit}")
        endif()
      endforeach()
      set(folder "${above}")
    endwhile()
    string(MAKE_C_IDENTIFIER "${group}" group)
    set_source_files_properties(${source} TARGET_DIRECTORY ${target} PROPERTIES UNITY_GROUP "${group}")
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD_MODE GROUP)
endfunction()
