# SPDX-License-Identifier: Apache-2.0
# Finds LibTorch's headers and libraries and offers them as LibTorch::LibTorch.
#
# torch ships a CMake package of its own, but that one insists on the CUDA toolkit torch was built with; a machine
# without nvcc could then not build our CPU part. Looked at, in order: CMAKE_PREFIX_PATH (and LibTorch_ROOT), the
# Python environment that runs a `pip install`, the project's .venv.
set(_places ${CMAKE_PREFIX_PATH} ${LibTorch_ROOT})
if(SKBUILD)
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
  # An isolated build cannot import the torch it will run beside, but can see where it lies.
  execute_process(COMMAND ${Python3_EXECUTABLE} -c "import sysconfig; print(sysconfig.get_paths()['purelib'])"
                  OUTPUT_VARIABLE _site OUTPUT_STRIP_TRAILING_WHITESPACE)
  list(APPEND _places ${_site}/torch)
endif()
file(GLOB _venv ${CMAKE_CURRENT_LIST_DIR}/../.venv/lib/python3*/site-packages/torch)
list(APPEND _places ${_venv})
# A prefix may be the torch folder itself or its share/cmake, as torch.utils.cmake_prefix_path gives it.
list(TRANSFORM _places REPLACE "/share/cmake.*$" "" OUTPUT_VARIABLE _places)

find_path(LibTorch_INCLUDE_DIR ATen/ATen.h HINTS ${_places} PATH_SUFFIXES include NO_CMAKE_SYSTEM_PATH)
foreach(_library torch torch_cpu c10)
  find_library(LibTorch_${_library}_LIBRARY ${_library} HINTS ${_places} PATH_SUFFIXES lib NO_CMAKE_SYSTEM_PATH)
endforeach()

# The numbers moved to headeronly/ in torch 2.9; before, the header of the C++ API had them.
foreach(_header torch/headeronly/version.h torch/csrc/api/include/torch/version.h)
  if(LibTorch_INCLUDE_DIR AND NOT LibTorch_VERSION AND EXISTS ${LibTorch_INCLUDE_DIR}/${_header})
    set(_numbers)
    foreach(_part MAJOR MINOR PATCH)
      file(STRINGS ${LibTorch_INCLUDE_DIR}/${_header} _line REGEX "#define TORCH_VERSION_${_part} ")
      if(_line MATCHES "([0-9]+)[ \t]*$")
        list(APPEND _numbers ${CMAKE_MATCH_1})
      endif()
    endforeach()
    list(JOIN _numbers "." LibTorch_VERSION)
    list(GET _numbers 0 _major)
    list(GET _numbers 1 _minor)
    math(EXPR _next "${_minor} + 1")
    set(LibTorch_VERSION_RANGE ${_major}.${_minor}...<${_major}.${_next})  # what this one's binaries fit
  endif()
endforeach()

set(_way_out "point CMAKE_PREFIX_PATH at a LibTorch (in Python: torch.utils.cmake_prefix_path)")
if(EXISTS ${CMAKE_CURRENT_LIST_DIR}/../scripts/setup.sh)
  string(PREPEND _way_out "run scripts/setup.sh, which makes .venv with torch, or ")
endif()
if(SKBUILD)
  set(_way_out "install it first, in the environment that pip runs in: pip install 'torch==2.11.*'")
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LibTorch
  REQUIRED_VARS LibTorch_torch_cpu_LIBRARY LibTorch_torch_LIBRARY LibTorch_c10_LIBRARY LibTorch_INCLUDE_DIR
  VERSION_VAR LibTorch_VERSION
  HANDLE_VERSION_RANGE
  REASON_FAILURE_MESSAGE "${_way_out}")

if(LibTorch_FOUND AND NOT TARGET LibTorch::LibTorch)
  add_library(LibTorch::LibTorch INTERFACE IMPORTED)
  target_include_directories(LibTorch::LibTorch SYSTEM INTERFACE
    ${LibTorch_INCLUDE_DIR} ${LibTorch_INCLUDE_DIR}/torch/csrc/api/include)
  # libstdc++ first: libtorch.so exports an incomplete std::filesystem of its own, and whichever library comes first
  # serves the whole program (remove_all then jumps to address 0).
  # no-as-needed: torch.so only pulls in the others; the linker would drop it, and with it torch's CUDA part.
  target_link_libraries(LibTorch::LibTorch INTERFACE
    -Wl,--no-as-needed -lstdc++ ${LibTorch_torch_LIBRARY} -Wl,--as-needed
    ${LibTorch_torch_cpu_LIBRARY} ${LibTorch_c10_LIBRARY})
endif()

# The GPU half, where this torch has one and CUDA's own headers are there: LibTorch::Cuda.
foreach(_library c10_cuda torch_cuda)
  find_library(LibTorch_${_library}_LIBRARY ${_library} HINTS ${_places} PATH_SUFFIXES lib NO_CMAKE_SYSTEM_PATH)
endforeach()
if(LibTorch_FOUND AND LibTorch_c10_cuda_LIBRARY AND CMAKE_CUDA_COMPILER AND NOT TARGET LibTorch::Cuda)
  find_package(CUDAToolkit REQUIRED)
  add_library(LibTorch::Cuda INTERFACE IMPORTED)
  # The runtime statically: torch brings a shared one of its own, in a place that only torch knows.
  target_link_libraries(LibTorch::Cuda INTERFACE
    LibTorch::LibTorch ${LibTorch_torch_cuda_LIBRARY} ${LibTorch_c10_cuda_LIBRARY} CUDA::cudart_static)
endif()
