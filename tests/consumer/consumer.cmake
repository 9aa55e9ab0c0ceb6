# Installs BUILD, then moves the tree, configures project/ against it, builds it and runs it.
cmake_minimum_required(VERSION 3.22)

function(run)
  execute_process(COMMAND ${ARGV} RESULT_VARIABLE code OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(code)
    message(FATAL_ERROR "${ARGV}\nended with ${code}:\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

file(REMOVE_RECURSE ${WORK}/installed ${WORK}/moved ${WORK}/project)
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${WORK}/installed)
# Moved, so that a path of the install tree that was written into the package shows.
file(RENAME ${WORK}/installed ${WORK}/moved)
file(GLOB_RECURSE exports ${WORK}/moved/*/cmake/Caravan/CaravanExports*.cmake)
foreach(file ${exports})
  file(STRINGS ${file} named REGEX "${WORK}/installed|${BUILD}")
  if(named)
    message(FATAL_ERROR "${file} names a path of the build: ${named}")
  endif()
endforeach()

file(GLOB_RECURSE internal ${WORK}/moved/include/caravan/comm/backends/messages/* ${WORK}/moved/include/*/stubs/*)
if(internal)
  message(FATAL_ERROR "internal headers are installed: ${internal}")
endif()

foreach(file man/man1/caravan.1 bash-completion/completions/caravan fish/vendor_completions.d/caravan.fish)
  file(READ ${WORK}/moved/share/${file} text)
  if(NOT text MATCHES "resume.*evaluate")
    message(FATAL_ERROR "${file} does not know the commands: ${text}")
  endif()
endforeach()

run(${CMAKE_COMMAND} -G Ninja -S ${CMAKE_CURRENT_LIST_DIR}/project -B ${WORK}/project
  -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_COMPILER=${CXX} -DCMAKE_PREFIX_PATH=${WORK}/moved -DCARAVAN_TORCH=${TORCH}
  -DSOURCES=${CMAKE_CURRENT_LIST_DIR}/../../src)
run(${CMAKE_COMMAND} --build ${WORK}/project)
run(${WORK}/project/core_only)
if(EXISTS ${WORK}/moved/lib/caravan)
  run(readelf -d ${WORK}/project/core_only)
  if(NOT output MATCHES "${WORK}/moved/lib/caravan")
    message(FATAL_ERROR "the consumer has no run path to the MPI objects: ${output}")
  endif()
endif()
run(${WORK}/project/whole)
if(NOT output MATCHES "12 bytes")
  message(FATAL_ERROR "the consumer printed: ${output}")
endif()

# A project that `caravan new` writes builds against this installation, and trains.
file(REMOVE_RECURSE ${WORK}/mine)
run(${WORK}/moved/bin/caravan new ${WORK}/mine)
if(NOT output MATCHES "cmake -S . -B build -DCMAKE_PREFIX_PATH=${WORK}/moved\n" OR output MATCHES "--install")
  message(FATAL_ERROR "caravan new does not say how to build here: ${output}")
endif()
run(${CMAKE_COMMAND} -G Ninja -S ${WORK}/mine -B ${WORK}/mine/build -DCMAKE_CXX_COMPILER=${CXX}
  -DCMAKE_PREFIX_PATH=${WORK}/moved -DCARAVAN_TORCH=${TORCH})
run(${CMAKE_COMMAND} --build ${WORK}/mine/build)
run(${CMAKE_COMMAND} -E chdir ${WORK}/mine ${WORK}/moved/bin/caravan run build/mine runs/mine 50 --ranks 2)
if(NOT output MATCHES "step 50: loss" OR NOT EXISTS ${WORK}/mine/runs/mine/step_000050/manifest.json)
  message(FATAL_ERROR "the new project printed: ${output}")
endif()
run(${CMAKE_COMMAND} -E chdir ${WORK}/mine ${WORK}/moved/bin/caravan run build/mine runs/mine 100 --ranks 1)
if(NOT output MATCHES "^from step 50 on 1 ranks\nstep 100: loss")
  message(FATAL_ERROR "the new project did not resume: ${output}")
endif()

# The wrong torch is refused by name instead of a crash at run time.
execute_process(COMMAND ${CMAKE_COMMAND} -G Ninja -S ${CMAKE_CURRENT_LIST_DIR}/project -B ${WORK}/project/refused
  -DCMAKE_CXX_COMPILER=${CXX} -DCMAKE_PREFIX_PATH=${WORK}/moved -DCARAVAN_TORCH=${WORK} RESULT_VARIABLE code
  OUTPUT_QUIET ERROR_VARIABLE error)
if(code EQUAL 0 OR NOT error MATCHES "CARAVAN_TORCH")
  message(FATAL_ERROR "a folder without torch was accepted, or the message does not name CARAVAN_TORCH: ${error}")
endif()
