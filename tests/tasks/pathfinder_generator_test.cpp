// SPDX-License-Identifier: Apache-2.0
#include "tasks/pathfinder_generator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fmmformer/core/random.h"
#include "tasks/generator_reference.h"
#include "tasks/generator_statistics.h"
#include "tasks/recorded_dice.h"

namespace fmmformer::tasks {
namespace {

using pathfinder::Contour;
using pathfinder::kWindow;
using pathfinder::Paddle;
using pathfinder::Point;
using pathfinder::Scene;
using pathfinder::Stamp;

Scene scene_of(uint64_t seed, int64_t index) {
  SeededDice dice(derive_seed(seed, "pathfinder", index));
  return pathfinder::draw_scene({}, dice);
}

std::vector<Scene> some_scenes() {
  std::vector<Scene> scenes;
  for (int64_t i = 0; i < 300; ++i) scenes.push_back(scene_of(1, i));
  return scenes;
}

int grey(const PathfinderExample& example, Point point) { return example.pixels[index_of(point)]; }

TEST(PathfinderGenerator, AnExampleIsAFunctionOfSeedAndIndexAlone) {
  const auto fifth = make_pathfinder_example({}, 7, 5);
  make_pathfinder_example({}, 7, 6);
  EXPECT_EQ(make_pathfinder_example({}, 7, 5), fifth);
  EXPECT_NE(make_pathfinder_example({}, 7, 6), fifth);
  EXPECT_NE(make_pathfinder_example({}, 8, 5), fifth);
}

TEST(PathfinderGenerator, ManyThreadsGiveWhatOneGivesInTheSameOrder) {
  const auto all = [](int threads) {
    std::vector<PathfinderExample> examples;
    generate_pathfinder({.count = 700, .seed = 4, .threads = threads}, {},
                        [&](const PathfinderExample& example) { examples.push_back(example); });
    return examples;
  };
  const auto expected = all(1);
  ASSERT_EQ(expected.size(), 700u);
  EXPECT_EQ(expected[555], make_pathfinder_example({}, 4, 555));
  EXPECT_EQ(all(3), expected);
  EXPECT_EQ(all(8), expected);
}

void expect_inside(const Contour& contour) {
  for (const Paddle& paddle : contour) {
    EXPECT_TRUE(is_inside(paddle.at));
    const Point end{2 * paddle.at.y + paddle.reach.y, 2 * paddle.at.x + paddle.reach.x};
    EXPECT_TRUE(end.y >= 0 && end.y < 2 * kWindow && end.x >= 0 && end.x < 2 * kWindow);
  }
}

TEST(PathfinderGenerator, ContoursHaveTheirLengthsAndStayInThePicture) {
  for (const Scene& scene : some_scenes()) {
    for (const Contour& target : scene.targets) {
      EXPECT_EQ(target.size(), 14u);
      expect_inside(target);
    }
    EXPECT_LE(scene.distractors.size(), 5u);
    for (const Contour& distractor : scene.distractors) {
      EXPECT_EQ(distractor.size(), 4u);
      expect_inside(distractor);
    }
  }
}

TEST(PathfinderGenerator, OptionsMakeItEasier) {
  SeededDice dice(1);
  const Scene scene =
      pathfinder::draw_scene({.contour_length = 6, .distractor_length = 2, .distractors = 1}, dice);
  EXPECT_EQ(scene.targets[0].size(), 6u);
  EXPECT_EQ(scene.targets[1].size(), 6u);
  ASSERT_EQ(scene.distractors.size(), 1u);
  EXPECT_EQ(scene.distractors[0].size(), 2u);
}

TEST(PathfinderGenerator, TheLabelSaysWhetherTheMarkersEndOneContour) {
  int same = 0;
  for (int64_t i = 0; i < 300; ++i) {
    const Scene scene = scene_of(1, i);
    std::vector<int> labels;  // every way to read the markers; ends of two contours may coincide
    for (size_t from = 0; from < 2; ++from) {
      for (size_t to = 0; to < 2; ++to) {
        if (scene.targets[from].front().at == scene.origin_marker &&
            scene.targets[to].back().at == scene.terminal_marker) {
          labels.push_back(from == to);
        }
      }
    }
    EXPECT_THAT(labels, ::testing::Contains(scene.label)) << "example " << i;
    EXPECT_EQ(make_pathfinder_example({}, 1, i).label, scene.label);
    same += scene.label;
  }
  EXPECT_NEAR(same, 150, 35);  // four standard deviations
}

TEST(PathfinderGenerator, TheContoursBeginSevenPixelsApartNearTheCentre) {
  for (const Scene& scene : some_scenes()) {
    const Point first = scene.targets[0].front().at, second = scene.targets[1].front().at;
    EXPECT_NEAR(std::hypot(first.y - second.y, first.x - second.x), 7, 0.75);
    EXPECT_LE(std::max(std::abs(first.y - 15), std::abs(first.x - 15)), 3);
  }
}

TEST(PathfinderGenerator, TheFirstContourAndDistractorsBeginUpAndLeftAsPublished) {
  for (const Scene& scene : some_scenes()) {
    std::vector<Contour> searched = scene.distractors;
    searched.push_back(scene.targets[0]);
    for (const Contour& contour : searched) {
      EXPECT_LT(contour.front().reach.y, 0);
      EXPECT_LT(contour.front().reach.x, 0);
    }
  }
}

TEST(PathfinderGenerator, AContourGoesOnFromPaddleToPaddle) {
  for (const Scene& scene : some_scenes()) {
    for (const Contour& target : scene.targets) {
      for (size_t i = 1; i < target.size(); ++i) {
        const Point a = target[i - 1].at, b = target[i].at;
        const double step = std::hypot(a.y - b.y, a.x - b.x);
        // From one far end to the next: a paddle and two margins, and a pixel of rounding. The
        // first is known by its near end, from which it is a paddle more.
        EXPECT_GE(step, 1.0);
        EXPECT_LE(step, i == 1 ? 8.5 : 6.5);
      }
    }
  }
}

// What is covered at the moment when a paddle is placed, pixel by pixel.
class Covered {
 public:
  Covered() {
    for (int i = 0; i < kWindow; ++i) {
      for (int* pixel : {&at({0, i}), &at({kWindow - 1, i}), &at({i, 0}), &at({i, kWindow - 1})}) {
        *pixel = 255;
      }
    }
  }

  int most_with(const Paddle& paddle) {
    int most = 0;
    for_each_guard(paddle, [&](int& pixel, int guard) { most = std::max(most, pixel + guard); });
    return most;
  }

  void add(const Paddle& paddle) {
    for_each_guard(paddle, [](int& pixel, int guard) { pixel = std::max(pixel, guard); });
  }

 private:
  int& at(Point point) { return pixels_[index_of(point)]; }

  void for_each_guard(const Paddle& paddle, const auto& visit) {
    for (int y = 0; y < Stamp::kSide; ++y) {
      for (int x = 0; x < Stamp::kSide; ++x) {
        const Point point = paddle.at + Point{y - Stamp::kRadius, x - Stamp::kRadius};
        if (is_inside(point)) visit(at(point), stamp_of(paddle).guard[y][x]);
      }
    }
  }

  std::array<int, pathfinder::kPixels> pixels_ = {};
};

TEST(PathfinderGenerator, PaddlesOverlapOthersByLessThanTheRuleAllows) {
  constexpr int kLimit = 459;  // 1.8 pixels
  for (const Scene& scene : some_scenes()) {
    Covered covered;
    for (size_t i = 1; i < 14; ++i) {  // both grow in turns; the last paddle of each counts later
      for (const Contour& target : scene.targets) {
        EXPECT_LT(covered.most_with(target[i]), kLimit);
        covered.add(target[i - 1]);
      }
    }
    covered.add(scene.targets[1].back());
    for (const Contour& distractor : scene.distractors) {
      for (size_t i = 1; i < distractor.size(); ++i) {
        EXPECT_LT(covered.most_with(distractor[i]), kLimit);
        covered.add(distractor[i - 1]);
      }
      covered.add(distractor.back());
    }
  }
}

TEST(PathfinderGenerator, ThePictureShowsContoursAndMarkers) {
  for (int64_t i = 0; i < 100; ++i) {
    const Scene scene = scene_of(1, i);
    const auto example = make_pathfinder_example({}, 1, i);
    EXPECT_EQ(std::ranges::max(example.pixels), 255);
    EXPECT_EQ(std::ranges::min(example.pixels), 0);
    for (const Contour& target : scene.targets) {
      for (const Paddle& paddle : target) EXPECT_GT(grey(example, paddle.at), 20);
    }
    for (const Point marker : {scene.origin_marker, scene.terminal_marker}) {
      for (const Point offset : {Point{0, 0}, Point{-1, 0}, Point{0, -1}, Point{-1, -1}}) {
        if (!is_inside(marker + offset)) continue;
        EXPECT_GT(grey(example, marker + offset), 60);
      }
    }
  }
}

TEST(PathfinderGenerator, OptionsWithoutAPictureAreAnError) {
  EXPECT_THROW(make_pathfinder_example({.contour_length = 1}, 1, 0), std::invalid_argument);
  EXPECT_THROW(make_pathfinder_example({.contour_length = 40}, 1, 0), std::invalid_argument);
  EXPECT_THROW(make_pathfinder_example({.distractor_length = 0}, 1, 0), std::invalid_argument);
  EXPECT_THROW(make_pathfinder_example({.distractors = -1}, 1, 0), std::invalid_argument);
}

TEST(PathfinderGenerator, WithNumpysRandomNumbersItPaintsThePicturesOfThePublishedGenerator) {
  testing::NumpyDice dice(testing::kPathfinderSeed);
  std::string records;
  for (int i = 0; i < testing::kPathfinderPictures; ++i) {
    const auto example = make_pathfinder_example({}, dice);
    records += static_cast<char>(example.label);
    records.append(example.pixels.begin(), example.pixels.end());
  }
  EXPECT_EQ(name_hash(records), testing::kPathfinderHash);
}

class PathfinderDistribution : public ::testing::Test {
 protected:
  static constexpr int kCount = 10000;

  static const testing::Histograms<testing::PathfinderPicture>& ours() {
    static const auto kOurs = [] {
      testing::Histograms<testing::PathfinderPicture> histograms(testing::pathfinder_statistics());
      for (int64_t i = 0; i < kCount; ++i) {
        testing::PathfinderPicture picture{.scene = scene_of(1, i), .pixels = {}};
        picture.pixels = paint(picture.scene);
        histograms.add(picture);
      }
      return histograms;
    }();
    return kOurs;
  }
};

TEST_F(PathfinderDistribution, IsThatOfThePublishedPictures) {
  const auto& statistics = testing::pathfinder_statistics();
  ASSERT_EQ(testing::kPathfinderReference.size(), statistics.size());
  for (size_t i = 0; i < statistics.size(); ++i) {
    EXPECT_LT(testing::surprise(ours()[i], testing::kPathfinderReference[i]), 3.5)
        << statistics[i].name;
  }
}

TEST_F(PathfinderDistribution, TheComparisonNoticesAnotherDistribution) {
  const auto& statistics = testing::pathfinder_statistics();
  testing::Histograms<testing::PathfinderPicture> shorter(statistics);
  for (uint64_t i = 0; i < 2000; ++i) {
    SeededDice dice(i);
    testing::PathfinderPicture picture{
        .scene = pathfinder::draw_scene({.contour_length = 13}, dice), .pixels = {}};
    picture.pixels = paint(picture.scene);
    shorter.add(picture);
  }
  EXPECT_GT(testing::surprise(shorter[1], testing::kPathfinderReference[1]), 10) << "ink";
}

// Only the distance of the markers tells a little, in the published pictures as in ours: the ends
// of two contours are farther apart than those of one.
TEST_F(PathfinderDistribution, TheLabelCannotBeGuessedWithoutFollowingAContour) {
  const auto& statistics = testing::pathfinder_statistics();
  for (size_t i = statistics.size() - 3; i < statistics.size(); ++i) {
    const double published = testing::best_guess(testing::kPathfinderReference[i]);
    EXPECT_LT(published, 0.55) << statistics[i].name;
    EXPECT_NEAR(testing::best_guess(ours()[i]), published, 4 * 0.5 / std::sqrt(kCount))
        << statistics[i].name;
  }
}

}  // namespace
}  // namespace fmmformer::tasks
