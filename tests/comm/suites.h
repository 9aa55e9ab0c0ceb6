#pragma once

#include "tests/ranks/rank_case.h"

namespace caravan::testing {

/// The suites for every back-end; each `instantiate_*.cpp` runs them for one.
class Reductions : public ::testing::TestWithParam<RankCase> {};
class Movement : public ::testing::TestWithParam<RankCase> {};
class LargeSizes : public ::testing::TestWithParam<RankCase> {};  ///< a few MiB: many chunks
class Asynchrony : public ::testing::TestWithParam<RankCase> {};
class Messages : public ::testing::TestWithParam<RankCase> {};
class Splits : public ::testing::TestWithParam<RankCase> {};
class Faults : public ::testing::TestWithParam<RankCase> {};
class Algorithms : public ::testing::TestWithParam<RankCase> {};
class TrafficCounts : public ::testing::TestWithParam<RankCase> {};

}  // namespace caravan::testing
