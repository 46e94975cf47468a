// SPDX-License-Identifier: Apache-2.0
#include "train/run_log.h"

#include <fcntl.h>

#include <stdexcept>
#include <string_view>

#include "fmmformer/core/atomic_file.h"

namespace fmmformer::train {
namespace {

using Json = nlohmann::ordered_json;

bool has_step(const Json& line) {
  return line.is_object() && line.contains("step") && line["step"].is_number_integer();
}

/// Calls visit(line, without its end) for every complete line; what follows the last is passed
/// over.
template <typename Visit>
void for_each_line(std::string_view text, const Visit& visit) {
  for (size_t end = text.find('\n'); end != std::string_view::npos; end = text.find('\n')) {
    visit(text.substr(0, end));
    text.remove_prefix(end + 1);
  }
}

void cut_back(const std::filesystem::path& path, int64_t step) {
  if (!std::filesystem::exists(path)) return;
  const std::string text = read_text(path);
  std::string kept;
  for_each_line(text, [&](std::string_view line) {
    const Json content = Json::parse(line, nullptr, false);
    if (!has_step(content) || content["step"].get<int64_t>() > step) return;
    kept.append(line).append("\n");
  });
  if (kept.size() != text.size()) write_file_atomically(path, kept);
}

}  // namespace

RunLog::RunLog(const std::filesystem::path& path, std::optional<int64_t> resume_step) {
  if (resume_step) cut_back(path, *resume_step);
  file_ = OpenFile(path, O_RDWR | O_CREAT | O_APPEND);
}

void RunLog::append(const Json& line) {
  if (!has_step(line)) {
    throw std::invalid_argument("RunLog: a line wants a whole-numbered \"step\", this is " +
                                line.dump());
  }
  file_.append(line.dump() + "\n");
}

std::vector<Json> read_run_log(const std::filesystem::path& path) {
  std::vector<Json> lines;
  if (!std::filesystem::exists(path)) return lines;
  for_each_line(read_text(path), [&](std::string_view text) {
    Json line = Json::parse(text, nullptr, false);
    if (!has_step(line)) {
      throw std::runtime_error("'" + path.string() + "', line " + std::to_string(lines.size() + 1) +
                               ": not a JSON object with a \"step\"; resume the run, which removes "
                               "such lines, or remove it by hand");
    }
    lines.push_back(std::move(line));
  });
  return lines;
}

}  // namespace fmmformer::train
