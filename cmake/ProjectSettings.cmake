# SPDX-License-Identifier: Apache-2.0
# Flags that every target of ours shares. No fast-math anywhere: masks are -inf, and fast-math assumes infinities away.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
# -O3, CMake's choice, is for what computes: kernels ask for it. All else compiles an eighth faster without it.
string(REPLACE "-O3" "-O2" CMAKE_CXX_FLAGS_RELEASE "${CMAKE_CXX_FLAGS_RELEASE}")

# The sources of a target are compiled together, sixteen at a time: what a file costs is nearly all torch's headers and
# the templates that its neighbours instantiate too (docs/adr/0021-compiled-together.md). Kernels say OFF, as each is a
# minute's work on its own.
if(NOT DEFINED CMAKE_UNITY_BUILD)
  set(CMAKE_UNITY_BUILD ON)
endif()
set(CMAKE_UNITY_BUILD_BATCH_SIZE 16)

# Folder by folder, for a target of several: what is built alike has parts of the same name.
function(fmmformer_compile_by_folder target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD_MODE GROUP)
  get_target_property(sources ${target} SOURCES)
  list(FILTER sources INCLUDE REGEX "\\.cpp$")
  foreach(source ${sources})
    cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR} OUTPUT_VARIABLE path)
    cmake_path(RELATIVE_PATH path BASE_DIRECTORY ${PROJECT_SOURCE_DIR})
    cmake_path(GET path PARENT_PATH folder)
    string(MAKE_C_IDENTIFIER "${folder}" group)
    set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${group})
  endforeach()
endfunction()

find_program(CCACHE ccache)
if(CCACHE)
  # A precompiled header defeats ccache unless it may overlook the header's own time stamps. Paths count from the build
  # folder: what build-scalar/ and build-wheel/ compile like build/ is compiled once.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1
    CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime ${CCACHE})
endif()

# fmmformer_settings is for src/, fmmformer_plain_settings for what a sanitizer need not look into: tests are compiled
# as ever and meet an instrumented library. (The thread sanitizer must see every lock, those of the tests too.)
add_library(fmmformer_plain_settings INTERFACE)
target_compile_options(fmmformer_plain_settings INTERFACE -Wall -Wextra -Wno-missing-field-initializers)  # designated initialisers leave defaults out on purpose
add_library(fmmformer_settings INTERFACE)
target_link_libraries(fmmformer_settings INTERFACE fmmformer_plain_settings)
if(FMMFORMER_SANITIZER STREQUAL "asan-ubsan")
  target_compile_options(fmmformer_settings INTERFACE
    -O1 -g1 -UNDEBUG -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
  target_link_options(fmmformer_plain_settings INTERFACE -fsanitize=address,undefined)
elseif(FMMFORMER_SANITIZER STREQUAL "tsan")
  # The sanitizer cannot see libgomp's barriers and would report races that are none: segments run on std::thread.
  target_compile_options(fmmformer_plain_settings INTERFACE
    -O1 -g1 -UNDEBUG -fsanitize=thread -fno-omit-frame-pointer)
  target_compile_definitions(fmmformer_plain_settings INTERFACE FMMFORMER_STD_THREADS)
  target_link_options(fmmformer_plain_settings INTERFACE -fsanitize=thread)
elseif(FMMFORMER_SANITIZER)
  message(FATAL_ERROR "FMMFORMER_SANITIZER is '${FMMFORMER_SANITIZER}'; allowed: asan-ubsan, tsan, or empty")
endif()

# CUDA: on where nvcc is found, and said aloud either way.
if(FMMFORMER_CUDA STREQUAL "AUTO")
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    set(FMMFORMER_WITH_CUDA ON)
  else()
    set(FMMFORMER_WITH_CUDA OFF)
  endif()
else()
  set(FMMFORMER_WITH_CUDA ${FMMFORMER_CUDA})
endif()
if(FMMFORMER_WITH_CUDA)
  # The GPU of this machine, or Hopper where there is none; a plain number also puts in PTX, which newer GPUs compile. The
  # preset all-gpus is for a library that others are to use.
  set(architectures 90)
  find_program(NVIDIA_SMI nvidia-smi)
  if(NVIDIA_SMI)
    execute_process(COMMAND ${NVIDIA_SMI} --query-gpu=compute_cap --format=csv,noheader
                    OUTPUT_VARIABLE capabilities ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
    string(REGEX MATCHALL "[0-9]+\\.[0-9]+" capabilities "${capabilities}")
    list(TRANSFORM capabilities REPLACE "\\." "")
    list(REMOVE_DUPLICATES capabilities)
    if(capabilities)
      set(architectures ${capabilities})
    endif()
  endif()
  set(CMAKE_CUDA_ARCHITECTURES "${architectures}" CACHE STRING "GPU architectures, 80 and up")
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
  set(FMMFORMER_LINE_INFO $<$<BOOL:${FMMFORMER_LINE_NUMBERS}>:-lineinfo>)
  enable_language(CUDA)
  set(CMAKE_CUDA_STANDARD 20)
  if(NOT FMMFORMER_CUDA_OPTIMIZE AND CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 13.0)
    message(STATUS "CUDA: FMMFORMER_CUDA_OPTIMIZE=OFF needs nvcc 13; the kernels are optimised all the same")
  elseif(NOT FMMFORMER_CUDA_OPTIMIZE)
    set(FMMFORMER_UNOPTIMIZED_CUDA FMMFORMER_UNOPTIMIZED_CUDA)  # the operators warn of it
    # Compiled to PTX, not assembled: assembling takes longer than all the rest. A GPU's driver would do it.
    set(CMAKE_CUDA_ARCHITECTURES 90-virtual)
  endif()
  message(STATUS "CUDA: on (nvcc ${CMAKE_CUDA_COMPILER_VERSION})")
else()
  message(STATUS "CUDA: off (no nvcc, or FMMFORMER_CUDA=OFF): building the CPU part only")
endif()
