// SPDX-License-Identifier: Apache-2.0
// Reads a safetensors file and writes it again: python/tests hold both ways against Python's own
// library.
#include <cstdio>
#include <exception>

#include "fmmformer/core/safetensors.h"

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: safetensors_copy FROM TO\n");
    return 2;
  }
  try {
    const fmmformer::SafeTensorsFile file = fmmformer::read_safetensors(argv[1]);
    std::vector<std::pair<std::string, fmmformer::SafeTensorView>> views;
    for (const auto& [name, tensor] : file.tensors) {
      views.emplace_back(
          name, fmmformer::SafeTensorView{tensor.dtype, tensor.shape, std::span(tensor.data)});
    }
    fmmformer::write_safetensors(argv[2], views, file.metadata);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "safetensors_copy: %s\n", error.what());
    return 1;
  }
  return 0;
}
