// SPDX-License-Identifier: Apache-2.0
#include "tasks/pathfinder.h"

#include <sstream>

#include "tasks/data/byte_source.h"
#include "tasks/data/columns.h"
#include "tasks/data/folder.h"
#include "tasks/data/grey_image.h"

namespace fmmformer::tasks {
namespace {

constexpr std::array<std::string_view, 2> kPathfinderLabels = {"apart", "joined"};

void read_picture(const std::filesystem::path& folder, const LineReader& lines,
                  std::string_view line, CacheWriter& out) {
  std::string subfolder, file, number, label;
  if (!(std::istringstream(std::string(line)) >> subfolder >> file >> number >> label)) {
    lines.fail(
        "has fewer than 4 columns, wanted is `FOLDER FILE NUMBER LABEL ...` with spaces in "
        "between; get the file again");
  }
  const auto known = label_of(label, kPathfinderLabels.size());
  if (!known) lines.fail(wrong_label(label, kPathfinderLabels.size()));
  const std::filesystem::path path = folder / subfolder / file;
  std::error_code error;
  const bool empty = std::filesystem::file_size(path, error) == 0 && !error;
  try {
    if (!empty) out.add(read_png(path), *known);
  } catch (const DataError& problem) {
    lines.fail(problem.what());
  }
}

void read_drawings(const std::filesystem::path& folder, CacheWriter& out) {
  const auto lists = files_in(folder / "metadata", ".npy");
  if (lists.empty()) {
    throw DataError("'" + (folder / "metadata").string() +
                    "' has no .npy files; wanted is a folder such as "
                    "pathfinder32/curv_contour_length_14, with metadata and imgs in it");
  }
  for (const auto& list : lists) {
    LineReader lines(list);
    while (const auto line = lines.next()) read_picture(folder, lines, *line, out);
  }
}

void read_pathfinder(const Source& source, CacheWriter& out) {
  std::filesystem::is_directory(source.path)
      ? read_drawings(source.path, out)
      : read_grey_records(read_whole(source.path), kPathfinderLabels.size(), source.path, out);
}

}  // namespace

constinit const DataSet kPathfinderData = {
    .task = TaskName::kPathfinder,
    .about = "does a dashed path join the two dots",
    .sources =
        "LRA's pathfinder32/curv_contour_length_14 with metadata and PNGs, or packed "
        "{train,val,test}.bin: a label and 1024 bytes each",
    .labels = kPathfinderLabels,
    .picture = true,
    .read = read_pathfinder};

PathfinderTask::PathfinderTask(const PixelsConfig& config, uint64_t seed)
    : DataTask(kPathfinderData, pixel_tokens(config), config.data, seed) {}

}  // namespace fmmformer::tasks
