// SPDX-License-Identifier: Apache-2.0
// Prints as JSON how fast the generators are on one core, their histograms beside the recorded
// ones, and a few pictures of both. Reads nothing; scripts/draw_generators.py makes a figure of it.
#include <algorithm>
#include <array>
#include <chrono>
#include <iostream>
#include <string>

#include "tasks/generator_reference.h"
#include "tasks/generator_statistics.h"
#include "tasks/pathfinder_generator.h"
#include "tasks/recorded_dice.h"

namespace fmmformer::tasks::testing {
namespace {

constexpr int64_t kListOpsCount = 20000, kPathfinderCount = 18000;
constexpr int kPictures = 5;

std::string json_list(const auto& numbers) {
  std::string text = "[";
  for (const auto number : numbers) {
    if (text.size() > 1) text += ",";
    text += std::to_string(static_cast<int>(number));
  }
  return text + "]";
}

// Examples a second, the median of five turns.
double speed(int64_t count, const auto& make) {
  std::array<double, 5> turns;
  int64_t index = 0;
  for (double& turn : turns) {
    const auto start = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < count; ++i) make(index++);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    turn = static_cast<double>(count) / seconds.count();
  }
  std::ranges::sort(turns);
  return turns[2];
}

template <typename Example>
void print_histograms(const std::vector<Statistic<Example>>& statistics,
                      const Histograms<Example>& ours, const std::vector<Histogram>& published) {
  for (size_t i = 0; i < statistics.size(); ++i) {
    const auto& [name, bins, of] = statistics[i];
    std::cout << (i == 0 ? "" : ",\n") << "  {\"name\": \"" << name
              << "\", \"first\": " << bins.first << ", \"width\": " << bins.width
              << ", \"surprise\": " << surprise(ours[i], published[i])
              << ",\n   \"ours\": " << json_list(ours[i])
              << ",\n   \"published\": " << json_list(published[i]) << "}";
  }
}

void print_pictures(const auto& next) {
  for (int i = 0; i < kPictures; ++i) {
    const PathfinderExample example = next(i);
    std::cout << (i == 0 ? "" : ",\n") << "  {\"label\": " << example.label
              << ", \"pixels\": " << json_list(example.pixels) << "}";
  }
}

PathfinderPicture picture_of(int64_t index) {
  SeededDice dice(derive_seed(1, "pathfinder", index));
  PathfinderPicture picture{.scene = pathfinder::draw_scene({}, dice), .pixels = {}};
  picture.pixels = pathfinder::paint(picture.scene);
  return picture;
}

void print_report() {
  Histograms<ListOpsExample> listops(listops_statistics());
  for (int64_t i = 0; i < kListOpsCount; ++i) listops.add(make_listops_example({}, 1, i));
  Histograms<PathfinderPicture> pathfinder(pathfinder_statistics());
  for (int64_t i = 0; i < kPathfinderCount; ++i) pathfinder.add(picture_of(i));

  std::cout << "{\"listops_per_second\": "
            << speed(4000, [](int64_t i) { make_listops_example({}, 1, i); })
            << ",\n \"pathfinder_per_second\": "
            << speed(2000, [](int64_t i) { make_pathfinder_example({}, 1, i); })
            << ",\n \"listops\": [\n";
  print_histograms(listops_statistics(), listops, kListOpsReference);
  std::cout << "],\n \"pathfinder\": [\n";
  print_histograms(pathfinder_statistics(), pathfinder, kPathfinderReference);
  std::cout << "],\n \"our_pictures\": [\n";
  print_pictures([](int i) { return make_pathfinder_example({}, 1, i); });
  std::cout << "],\n \"published_pictures\": [\n";
  NumpyDice dice(kPathfinderSeed);
  print_pictures([&](int) { return make_pathfinder_example({}, dice); });
  std::cout << "]}\n";
}

}  // namespace
}  // namespace fmmformer::tasks::testing

int main() { fmmformer::tasks::testing::print_report(); }
