// SPDX-License-Identifier: Apache-2.0
#include "tasks/data/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

namespace fmmformer::tasks {

MappedFile::MappedFile(const std::filesystem::path& path, const std::string& how_to_make) {
  const auto fail = [&] {
    throw DataError("cannot read '" + path.string() +
                    "': " + std::generic_category().message(errno));
  };
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0 && errno == ENOENT) {
    throw DataError("there is no '" + path.string() + "'; " + how_to_make);
  }
  if (descriptor < 0) fail();
  struct stat status {};
  void* mapped = MAP_FAILED;
  if (fstat(descriptor, &status) == 0 && status.st_size > 0) {
    mapped =
        mmap(nullptr, static_cast<size_t>(status.st_size), PROT_READ, MAP_SHARED, descriptor, 0);
  }
  close(descriptor);
  if (status.st_size == 0) throw DataError("'" + path.string() + "' is empty; import it again");
  if (mapped == MAP_FAILED) fail();
  bytes_ = {static_cast<const std::byte*>(mapped), static_cast<size_t>(status.st_size)};
}

MappedFile::~MappedFile() { munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size()); }

}  // namespace fmmformer::tasks
