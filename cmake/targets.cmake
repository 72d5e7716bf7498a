# trunkline_library(NAME SOURCES a.cc ... [PUBLIC dep ...] [PRIVATE dep ...])
#   One library per folder, called trunkline_<folder>. The link list is the folder's dependency
#   list: a folder that includes a header of a library it does not list fails tests/tidy.
function(trunkline_library folder)
  cmake_parse_arguments(ARG "" "" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  if(ARG_SOURCES)
    add_library(trunkline_${folder} STATIC ${ARG_SOURCES})
    target_include_directories(trunkline_${folder} PUBLIC ${CMAKE_SOURCE_DIR})
    target_link_libraries(trunkline_${folder} PUBLIC ${ARG_PUBLIC} PRIVATE ${ARG_PRIVATE})
  else()
    add_library(trunkline_${folder} INTERFACE)
    target_include_directories(trunkline_${folder} INTERFACE ${CMAKE_SOURCE_DIR})
    target_link_libraries(trunkline_${folder} INTERFACE ${ARG_PUBLIC})
  endif()
endfunction()

# trunkline_test(NAME SOURCES a_test.cc ... LINK lib ... [LABELS slow ...] [TIMEOUT seconds])
#   Tests read files by the paths compiled in here, so they run from any folder.
function(trunkline_test name)
  cmake_parse_arguments(ARG "SERIAL" "TIMEOUT" "SOURCES;LINK;LABELS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_LINK} GTest::gmock GTest::gtest_main)
  target_compile_definitions(${name} PRIVATE
    TRUNKLINE_SOURCE_DIR="${CMAKE_SOURCE_DIR}"
    TRUNKLINE_FIXTURES="${CMAKE_SOURCE_DIR}/tests/fixtures"
    TRUNKLINE_BINARY="$<TARGET_FILE_DIR:${name}>/trunkline")
  if("unit" IN_LIST ARG_LABELS)
    add_dependencies(unit_tests ${name})
  endif()
  set(limit ${ARG_TIMEOUT})
  if(TRUNKLINE_SANITIZE)  # several times slower, the emulated vector targets most of all
    math(EXPR limit "${ARG_TIMEOUT} * 4")
  endif()
  set(props LABELS "${ARG_LABELS}" TIMEOUT ${limit} ENVIRONMENT "${TRUNKLINE_TEST_ENVIRONMENT}")
  if(ARG_SERIAL)
    list(APPEND props RUN_SERIAL ON)
  endif()
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 120 PROPERTIES ${props})
endfunction()

# trunkline_fuzz(NAME SOURCE x_fuzz.cc LINK lib ...): a libFuzzer binary under the fuzz preset, and in
# every other build a plain driver that runs the target over its seed corpus, so it can not rot.
function(trunkline_fuzz name)
  cmake_parse_arguments(ARG "" "SOURCE" "LINK" ${ARGN})
  if(TRUNKLINE_FUZZ)
    add_executable(${name} ${ARG_SOURCE})
    target_compile_options(${name} PRIVATE -fsanitize=fuzzer)
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
    target_link_libraries(${name} PRIVATE ${ARG_LINK})
  else()
    add_executable(${name} ${ARG_SOURCE} ${CMAKE_SOURCE_DIR}/tests/fuzz/corpus_main.cc)
    target_link_libraries(${name} PRIVATE ${ARG_LINK})
    add_test(NAME fuzz.${name} COMMAND ${name} ${CMAKE_SOURCE_DIR}/tests/fuzz/corpus/${name})
    set_tests_properties(fuzz.${name} PROPERTIES LABELS fuzz TIMEOUT 120 ENVIRONMENT "${TRUNKLINE_TEST_ENVIRONMENT}")
  endif()
endfunction()

# What UCX and the sanitizers need of the environment besides stands in the test presets: a list would be
# torn apart on its way through gtest_discover_tests (docs/gotchas.md says why each is there).
set(TRUNKLINE_TEST_ENVIRONMENT "UCX_WARN_UNUSED_ENV_VARS=n")

# trunkline_proto_library(NAME a.proto ...): messages and services of one or more protos.
function(trunkline_proto_library target)
  add_library(${target} STATIC)
  set(gen ${CMAKE_CURRENT_BINARY_DIR}/gen)
  file(MAKE_DIRECTORY ${gen}/proto)
  foreach(p IN LISTS ARGN)
    get_filename_component(abs ${p} ABSOLUTE)
    get_filename_component(n ${abs} NAME_WE)
    set(out ${gen}/proto/${n}.pb.cc ${gen}/proto/${n}.pb.h ${gen}/proto/${n}.grpc.pb.cc ${gen}/proto/${n}.grpc.pb.h)
    add_custom_command(OUTPUT ${out}
      COMMAND protobuf::protoc -I ${CMAKE_SOURCE_DIR} --cpp_out=${gen} --grpc_out=${gen}
              --plugin=protoc-gen-grpc=$<TARGET_FILE:gRPC::grpc_cpp_plugin> ${abs}
      DEPENDS ${abs} protobuf::protoc gRPC::grpc_cpp_plugin VERBATIM)
    target_sources(${target} PRIVATE ${out})
  endforeach()
  target_include_directories(${target} SYSTEM PUBLIC ${gen})
  target_link_libraries(${target} PUBLIC gRPC::grpc++ protobuf::libprotobuf)
  # A unity build redefines symbols of generated protobuf code.
  set_target_properties(${target} PROPERTIES UNITY_BUILD OFF)
  target_compile_options(${target} PRIVATE -w -O1 -g0)
endfunction()
