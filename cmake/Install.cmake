# SPDX-License-Identifier: Apache-2.0
# What `cmake --install` and `pip install` put where.
if(SKBUILD)
  # A wheel: the library lies inside the package, torch's libraries beside the package.
  set_target_properties(fmmformer_ops PROPERTIES INSTALL_RPATH "$ORIGIN;$ORIGIN/../torch/lib")
  install(TARGETS fmmformer_ops LIBRARY DESTINATION fmmformer)
  get_target_property(_hwy_type hwy::hwy TYPE)
  if(_hwy_type STREQUAL "SHARED_LIBRARY")
    # Highway is no Python package and may be missing where the wheel goes: it travels along.
    install(CODE "file(COPY_FILE \"$<TARGET_FILE:hwy::hwy>\"
      \"\${CMAKE_INSTALL_PREFIX}/fmmformer/$<TARGET_SONAME_FILE_NAME:hwy::hwy>\")")
  endif()
  return()
endif()

include(CMakePackageConfigHelpers)
include(GNUInstallDirs)
set(_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/fmmformer)

# torch is nowhere the loader looks by itself. By hand, since INSTALL_RPATH_USE_LINK_PATH leaves out what lies inside
# the source tree, as .venv does.
cmake_path(GET LibTorch_torch_cpu_LIBRARY PARENT_PATH _torch_libraries)
set_target_properties(fmmformer_ops PROPERTIES EXPORT_NAME ops INSTALL_RPATH "${_torch_libraries}")
install(TARGETS fmmformer_ops EXPORT fmmformerTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
# Without the headers of core that serve the program only and have no part in the operator library.
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/fmmformer/core ${PROJECT_SOURCE_DIR}/include/fmmformer/attention
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/fmmformer
        PATTERN batch.h EXCLUDE PATTERN config.h EXCLUDE PATTERN fields.h EXCLUDE PATTERN random.h EXCLUDE)
install(EXPORT fmmformerTargets NAMESPACE fmmformer:: DESTINATION ${_package_dir})

configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/fmmformerConfig.cmake.in
  ${CMAKE_CURRENT_BINARY_DIR}/fmmformerConfig.cmake INSTALL_DESTINATION ${_package_dir})
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/fmmformerConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/fmmformerConfig.cmake
              ${CMAKE_CURRENT_BINARY_DIR}/fmmformerConfigVersion.cmake
              ${CMAKE_CURRENT_LIST_DIR}/FindLibTorch.cmake
        DESTINATION ${_package_dir})

if(TARGET fmmformer)
  set_target_properties(fmmformer PROPERTIES
    INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR};${_torch_libraries}")
  install(TARGETS fmmformer RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/configs DESTINATION ${CMAKE_INSTALL_DATADIR}/fmmformer)
endif()
