// SPDX-License-Identifier: Apache-2.0
// What the published generators made, counted by the statistics of generator_statistics.h, in that
// order. How the examples came about:
//
// ListOps: 98,000 lines, the training and validation files of google-research/long-range-arena,
// lra_benchmarks/data/listops.py at cd31e5c6, run with its defaults and Python's
// random.seed(20211). Our generator, given the same random numbers, makes every one of these lines.
//
// Pathfinder: 18,000 pictures of drewlinsley/pathfinder at ab9c130c, snakes2.py with the parameters
// of Long Range Arena's Pathfinder32, contour length 14: 500 for each of the numpy seeds 1 .. 36.
// Their scenes are those of our generator, which makes the same 18,000 pictures byte for byte when
// given the same random numbers and numpy's sines. (numpy's vectorised sines may be off in the last
// digits, which for a few headings decides how a coordinate is rounded. With the C library's the
// pictures are the same up to the first such heading: all 500 of seed 19, for instance.)
#pragma once

#include <cstdint>
#include <vector>

#include "tasks/generator_statistics.h"

namespace fmmformer::tasks::testing {

// clang-format off
inline const std::vector<Histogram> kListOpsReference = {
    // tokens: mean 1037, standard deviation 395
    {12627, 11523, 10518, 9448, 8536, 7492, 6599, 5992, 5196, 4598, 3966, 3467, 3103, 2653, 2282},
    // depth of a digit: mean 7.476, standard deviation 0.265
    {0, 1, 1, 2, 2, 5, 16, 30, 57, 100, 239, 421, 759, 1331, 2107, 3573, 5411, 8034, 11256, 14487, 16198, 14612, 10821, 5711, 2173, 561, 86, 6, 0, 0},
    // operators: mean 147.5, standard deviation 55.9
    {7267, 16646, 14512, 12636, 10560, 8965, 7616, 6229, 5138, 4286, 3359, 783, 3},
    // arguments an operator: mean 6.019, standard deviation 0.22
    {88, 253, 728, 1806, 4094, 8153, 12875, 18093, 17493, 14980, 10007, 5261, 2556, 1014, 409, 130, 60},
    // share of MIN: mean 0.2501, standard deviation 0.0383
    {51, 170, 670, 2217, 5297, 12066, 18703, 20904, 17454, 11460, 5262, 2429, 877, 297, 143},
    // share of MAX: mean 0.25, standard deviation 0.0383
    {56, 186, 718, 2216, 5251, 12090, 18564, 21167, 17594, 11201, 5232, 2326, 936, 324, 139},
    // share of MED: mean 0.2499, standard deviation 0.0383
    {58, 196, 697, 2275, 5350, 11977, 18648, 21003, 17596, 11348, 5266, 2262, 863, 336, 125},
    // share of SM: mean 0.25, standard deviation 0.0383
    {53, 189, 676, 2220, 5376, 11904, 18706, 20975, 17595, 11327, 5249, 2437, 847, 336, 110},
    // mean digit: mean 4.5, standard deviation 0.113
    {19, 44, 152, 350, 949, 2299, 4727, 8694, 14064, 17566, 17564, 14020, 8891, 4777, 2351, 945, 365, 139, 58, 26},
    // outermost operator and answer: mean 19.45, standard deviation 12.4
    {13855, 5331, 2594, 1392, 670, 339, 185, 113, 63, 28, 23, 71, 103, 197, 416, 731, 1392, 2482, 5268, 13737, 253, 1037, 2442, 4150, 5216, 4824, 3570, 2013, 816, 162, 2453, 2450, 2464, 2512, 2439, 2415, 2430, 2431, 2401, 2532},
};

inline const std::vector<Histogram> kPathfinderReference = {
    // label: mean 0.4999, standard deviation 0.5
    {9001, 8999},
    // pixels with ink: mean 128.6, standard deviation 12.7
    {2, 4, 37, 111, 402, 1564, 2679, 2789, 2949, 2085, 1842, 1500, 820, 529, 376, 172, 78, 45, 16},
    // mean grey: mean 20.16, standard deviation 1.98
    {4, 7, 40, 127, 601, 3704, 2745, 1981, 2767, 2078, 891, 1303, 896, 278, 204, 264, 63, 47},
    // grey 1..15: mean 187.9, standard deviation 23.9
    {17, 83, 233, 584, 1244, 1888, 2575, 2966, 2867, 2239, 1567, 959, 461, 213, 77, 27},
    // grey 64..127: mean 41.41, standard deviation 9.58
    {7, 61, 307, 1124, 2405, 3081, 3085, 2355, 1827, 1504, 1061, 671, 311, 136, 53, 12},
    // grey 128..191: mean 67.6, standard deviation 6.17
    {3, 10, 57, 288, 1029, 2596, 3263, 3055, 2941, 2278, 1352, 677, 313, 95, 39, 4},
    // grey 192..255: mean 19.53, standard deviation 4.74
    {16, 760, 1898, 2071, 3474, 3009, 2520, 1612, 1076, 749, 398, 206, 120, 55, 24, 12},
    // connected regions: mean 13.76, standard deviation 3.22
    {30, 44, 89, 160, 280, 402, 648, 1052, 1446, 1855, 2132, 2287, 2166, 1973, 1370, 906, 593, 306, 165, 57, 28, 5, 6},
    // distractors: mean 1.148, standard deviation 0.916
    {4684, 7520, 4414, 1216, 162, 4},
    // distance between markers: mean 12.96, standard deviation 5.15
    {35, 627, 1153, 1379, 1915, 2172, 2927, 2672, 2045, 1450, 860, 482, 252, 31},
    // contour's end to end: mean 12.23, standard deviation 4.43
    {35, 765, 1211, 1361, 1935, 2098, 3167, 3432, 2690, 1239, 67},
    // contour's mean turn: mean 30.15, standard deviation 5.43
    {71, 277, 898, 1917, 2785, 3214, 3075, 2400, 1650, 958, 462, 177, 73, 43},
    // contour's mean row: mean 12.57, standard deviation 4.93
    {12, 400, 1427, 1664, 1564, 1411, 1541, 1737, 1889, 990, 542, 355, 379, 410, 586, 694, 802, 788, 540, 269},
    // contour's mean column: mean 12.65, standard deviation 4.62
    {1, 191, 982, 1523, 1536, 1614, 1820, 1900, 2298, 992, 586, 270, 291, 360, 590, 813, 1047, 738, 336, 112},
    // gap between the contours: mean 2.19, standard deviation 1.23
    {1165, 0, 4909, 0, 6757, 1008, 2083, 499, 800, 0, 370, 81, 150, 178},
    // label and ink: mean 17.81, standard deviation 9.84
    {0, 1, 17, 59, 199, 794, 1344, 1376, 1461, 1035, 957, 753, 395, 264, 194, 82, 36, 25, 9, 2, 3, 20, 52, 203, 770, 1335, 1413, 1488, 1050, 885, 747, 425, 265, 182, 90, 42, 20, 7},
    // label and grey: mean 16.71, standard deviation 9.37
    {1, 2, 13, 66, 301, 1854, 1344, 993, 1396, 1076, 417, 662, 445, 131, 110, 136, 30, 24, 3, 5, 27, 61, 300, 1850, 1401, 988, 1371, 1002, 474, 641, 451, 147, 94, 128, 33, 23},
    // label and distance: mean 13.03, standard deviation 7.58
    {19, 302, 591, 725, 1026, 1152, 1644, 1282, 939, 586, 348, 239, 134, 14, 16, 325, 562, 654, 889, 1020, 1283, 1390, 1106, 864, 512, 243, 118, 17},
};
// clang-format on

/// Seed 19's 500 pictures, each a label byte and 1,024 grey bytes: their FNV-1a hash.
constexpr uint32_t kPathfinderSeed = 19;
constexpr int kPathfinderPictures = 500;
constexpr uint64_t kPathfinderHash = 0x7643538425b085d6;

/// The first 100 accepted trees after random.seed(20211), in the order drawn (the files hold them
/// in another): the FNV-1a hash of their TSV lines.
constexpr uint32_t kListOpsSeed = 20211;
constexpr int kListOpsLines = 100;
constexpr uint64_t kListOpsHash = 0x5caef9850e4560a2;

}  // namespace fmmformer::tasks::testing
