# kvasir_room(): one static library per room under src/.
# kvasir_room_test(): one test binary per room.

add_library(kvasir_flags INTERFACE)
target_compile_options(kvasir_flags INTERFACE -Wall -Wextra -Wshadow -Wnon-virtual-dtor
                                              -fno-math-errno)
# Float results must not depend on the compiler's choice to fuse a*b+c; kernels that want an FMA
# say so.
target_compile_options(kvasir_flags INTERFACE -ffp-contract=off)
if(KVASIR_WERROR)
  target_compile_options(kvasir_flags INTERFACE -Werror)
endif()
if(KVASIR_SANITIZE)
  target_compile_definitions(kvasir_flags INTERFACE KVASIR_FEW_TARGETS)
  target_compile_options(kvasir_flags INTERFACE -fsanitize=${KVASIR_SANITIZE}
                                                -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(kvasir_flags INTERFACE -fsanitize=${KVASIR_SANITIZE})
endif()

function(kvasir_room name)
  cmake_parse_arguments(ARG "" "" "DEPS" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${name}/*.cc)
  if(KVASIR_SANITIZE)
    # UBSan and variable tracking turn fully unrolled kernels into half an hour of compiling; ASan
    # and TSan stay on.
    set(kernels ${sources})
    list(FILTER kernels INCLUDE REGEX "/(kernel|matmul_[a-z0-9]+)\\.cc$")
    set_source_files_properties(${kernels} PROPERTIES
      COMPILE_OPTIONS "-fno-sanitize=undefined;-g0")
  endif()
  if(sources)
    add_library(kvasir_${name} STATIC ${sources})
    target_include_directories(kvasir_${name} PUBLIC ${PROJECT_SOURCE_DIR}/src
                                                     ${PROJECT_SOURCE_DIR}/include)
    target_link_libraries(kvasir_${name} PUBLIC kvasir_flags ${ARG_DEPS})
  else()
    add_library(kvasir_${name} INTERFACE)
    target_include_directories(kvasir_${name} INTERFACE ${PROJECT_SOURCE_DIR}/src
                                                        ${PROJECT_SOURCE_DIR}/include)
    target_link_libraries(kvasir_${name} INTERFACE kvasir_flags ${ARG_DEPS})
  endif()
endfunction()

# kvasir_room_test(NAME [DEPS targets] [LABELS labels]): all tests/NAME/*_test.cc in one binary.
function(kvasir_room_test name)
  cmake_parse_arguments(ARG "" "" "DEPS;LABELS" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/${name}/*_test.cc)
  if(NOT sources)
    return()
  endif()
  add_executable(${name}_test ${sources})
  target_include_directories(${name}_test PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  target_link_libraries(${name}_test PRIVATE kvasir_${name} ${ARG_DEPS} GTest::gtest
                                             GTest::gtest_main)
  target_compile_definitions(${name}_test PRIVATE
    KVASIR_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  gtest_discover_tests(${name}_test DISCOVERY_TIMEOUT 120
                       WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
                       PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT 900)
endfunction()
