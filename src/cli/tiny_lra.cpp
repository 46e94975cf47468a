// SPDX-License-Identifier: Apache-2.0
#include "cli/tiny_lra.h"

#include <algorithm>
#include <array>
#include <stdexcept>

#include "fmmformer/core/random.h"
#include "tasks/data/cache.h"
#include "tasks/listops_generator.h"

namespace fmmformer::cli {
namespace {

using tasks::CacheWriter;
using tasks::Split;
using tasks::TaskName;

constexpr int64_t kTrainExamples = 2000, kOtherExamples = 100;
constexpr size_t kTextLength = 128;
constexpr int kSide = 32;  // of a picture
constexpr uint16_t kTones = 10;

template <size_t N>
std::string_view one_of(const std::array<std::string_view, N>& words, Random& random) {
  return words[random.below(N)];
}

std::string made_of_words(Random& random, auto&& next_word) {
  std::string text;
  while (text.size() < kTextLength) text.append(next_word(random)).append(" ");
  return text.substr(0, kTextLength);
}

void add_listops(Random& random, CacheWriter& out) {
  const tasks::ListOpsOptions options{.min_length = 4, .max_length = 31, .max_depth = 4};
  const tasks::ListOpsExample made = tasks::make_listops_example(options, random.next(), 0);
  out.add({reinterpret_cast<const char*>(made.tokens.data()), made.tokens.size()},
          static_cast<uint16_t>(made.label));
}

void add_review(Random& random, CacheWriter& out) {
  constexpr std::array<std::string_view, 4> kAgainst = {"awful", "boring", "poor", "waste"};
  constexpr std::array<std::string_view, 4> kFor = {"superb", "lovely", "great", "moving"};
  constexpr std::array<std::string_view, 6> kNeither = {"the", "film", "was", "and", "it", "actor"};
  const auto label = static_cast<uint16_t>(random.below(2));
  out.add(made_of_words(random,
                        [&](Random& dice) {
                          if (dice.below(3) > 0) return one_of(kNeither, dice);
                          return one_of(label == 1 ? kFor : kAgainst, dice);
                        }),
          label);
}

void add_pair(Random& random, CacheWriter& out) {
  constexpr std::array<std::array<std::string_view, 3>, 3> kSubjects = {
      {{"parsing", "syntax", "tree"}, {"zebra", "quagga", "fauna"}, {"moon", "orbit", "comet"}}};
  const auto text_about = [&](size_t subject) {
    return made_of_words(random, [&](Random& dice) { return one_of(kSubjects[subject], dice); });
  };
  const auto label = static_cast<uint16_t>(random.below(2));
  const size_t first = random.below(kSubjects.size());
  const size_t second =
      label == 1 ? first : (first + 1 + random.below(kSubjects.size() - 1)) % kSubjects.size();
  const uint32_t a = out.add_document(text_about(first)), b = out.add_document(text_about(second));
  out.add_example({.label = label, .first = a, .second = b});
}

void add_tones(Random& random, CacheWriter& out) {
  constexpr int kStep = 24, kNoise = 40;  // grey values from one class to the next; beyond its own
  const auto label = static_cast<uint16_t>(random.below(kTones));
  std::string pixels;
  for (int i = 0; i < kSide * kSide; ++i) {
    const auto noise = static_cast<int>(random.below(kNoise));
    pixels += static_cast<char>(std::min(1 + kStep * label + noise, 255));
  }
  out.add(pixels, label);
}

void add_path(Random& random, CacheWriter& out) {
  constexpr int kDash = 2, kPeriod = 3;  // pixels of ink, and from one dash to the next
  const auto label = static_cast<uint16_t>(random.below(2));
  const auto row = static_cast<size_t>(random.between(2, kSide - 3));
  std::string pixels(kSide * kSide, '\0');
  const auto ink = [&](size_t y, size_t x) -> char& { return pixels[y * kSide + x]; };
  const size_t end = label == 1 ? kSide - 4 : kSide / 2;
  for (size_t x = 4; x < end; ++x) {
    if (x % kPeriod < kDash) ink(row, x) = static_cast<char>(150);
  }
  for (const size_t dot : {size_t{1}, size_t{kSide - 3}}) {
    for (const size_t dx : {0, 1}) {
      ink(row, dot + dx) = ink(row + 1, dot + dx) = static_cast<char>(255);
    }
  }
  out.add(pixels, label);
}

using AddExample = void (*)(Random&, CacheWriter&);

struct TinyTask {
  TaskName task;
  AddExample add;
  int64_t length;             // 0: that of the pictures
  int64_t steps, batch_size;  // some ten seconds of two cores
};
constexpr TinyTask kTasks[] = {{TaskName::kListops, add_listops, 32, 800, 32},
                               {TaskName::kText, add_review, kTextLength, 160, 16},
                               {TaskName::kRetrieval, add_pair, kTextLength, 160, 16},
                               {TaskName::kImage, add_tones, 0, 80, 4},
                               {TaskName::kPathfinder, add_path, 0, 80, 4}};

const TinyTask& tiny_task(TaskName task) {
  for (const TinyTask& one : kTasks) {
    if (one.task == task) return one;
  }
  throw std::logic_error("a task of Long Range Arena without a small variant");
}

}  // namespace

void make_tiny_data(TaskName task, const std::filesystem::path& folder) {
  for (const Split split : tasks::kSplits) {
    if (std::filesystem::exists(tasks::cache_path(folder, split))) continue;
    Random random(derive_seed(1, enum_name(task), enum_name(split)));
    CacheWriter out;
    const int64_t count = split == Split::kTrain ? kTrainExamples : kOtherExamples;
    for (int64_t i = 0; i < count; ++i) tiny_task(task).add(random, out);
    out.write(folder, task, split);
  }
}

std::vector<std::string> tiny_overrides(TaskName task, const std::filesystem::path& folder) {
  const TinyTask& small = tiny_task(task);
  const std::string table = "task." + std::string(enum_name(task));
  const auto set = [](const std::string& key, int64_t value) {
    return key + "=" + std::to_string(value);
  };
  std::vector<std::string> overrides = {table + ".data=" + folder.string(),
                                        "train.precision=fp32",
                                        "schedule.learning_rate=3e-3",
                                        set("train.steps", small.steps),
                                        set("train.batch_size", small.batch_size),
                                        set("train.evaluate_every", small.steps / 4),
                                        set("train.checkpoint_every", small.steps / 2),
                                        set("schedule.warmup", small.steps / 5)};
  if (small.length > 0) {
    overrides.push_back(set(table + ".length", small.length));
    overrides.push_back(set("model.max_length", small.length));
    if (task != TaskName::kListops) overrides.push_back(set(table + ".bytes", small.length));
  }
  return overrides;
}

}  // namespace fmmformer::cli
