// A drawn timeline has what its spans say, at the places that they say.
#include "caravan/report/draw_timeline.h"

#include <algorithm>
#include <gmock/gmock.h>
#include <regex>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace caravan::testing::draw_timeline_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

struct Drawn {
  double x, y, width;
  std::string color;
};

std::vector<Drawn> boxes_of(const std::string& svg) {
  const std::regex box(R"re(<rect x="([0-9.]+)" y="([0-9.]+)" width="([0-9.]+)" height="[0-9.]+" fill="([^"]+)")re");
  std::vector<Drawn> all;
  for (std::sregex_iterator one(svg.begin(), svg.end(), box), end; one != end; ++one) {
    all.push_back({std::stod((*one)[1]), std::stod((*one)[2]), std::stod((*one)[3]), (*one)[4]});
  }
  return all;
}

TEST(DrawTimeline, SpansAreBoxesInProportion) {
  const std::vector<DrawnSpan> spans{{0, "compute", "forward blocks.0 of micro-batch 0", 0, 0.5},
                                     {0, "wait", "dp", 0.5, 0.75},
                                     {0, "compute", "backward blocks.0 of micro-batch 0", 0.75, 1},
                                     {0, "dp", "all_gather blocks.0", 0.25, 0.75},
                                     {4, "compute", "forward <b> & c", 0.5, 1}};
  const std::string svg = draw_timeline(spans, "title <of> it");
  EXPECT_THAT(svg, HasSubstr("title &lt;of&gt; it"));
  EXPECT_THAT(svg, HasSubstr(">rank 0<"));
  EXPECT_THAT(svg, HasSubstr(">rank 4<"));
  EXPECT_THAT(svg, HasSubstr("forward &lt;b&gt; &amp; c"));
  EXPECT_THAT(svg, HasSubstr(">0.5 s<"));
  const std::vector<Drawn> all = boxes_of(svg);
  // Idle, what it computes, idle, calls; rank 4 likewise without calls.
  ASSERT_GE(all.size(), 8U);
  const Drawn& row = all[0];
  const auto expect = [&](const Drawn& box, double begin, double end, const Drawn& in) {
    EXPECT_NEAR(box.x, row.x + begin * row.width, 0.02);
    EXPECT_NEAR(box.width, (end - begin) * row.width, 0.02);
    EXPECT_EQ(box.y, in.y);
  };
  expect(all[1], 0, 0.5, row);
  expect(all[2], 0.5, 0.75, row);
  expect(all[3], 0.75, 1, row);
  expect(all[5], 0.25, 0.75, all[4]);
  expect(all[7], 0.5, 1, all[6]);
  EXPECT_GT(all[4].y, row.y);
  EXPECT_GT(all[6].y, all[4].y);
  EXPECT_EQ(all[1].color, all[7].color) << "both forward";
  EXPECT_NE(all[1].color, all[3].color);
  EXPECT_NE(all[1].color, all[2].color);
}

TEST(DrawTimeline, WhatIsTooNarrowIsDrawnTogether) {
  std::vector<DrawnSpan> spans;
  for (int i = 0; i < 100'000; ++i) spans.push_back({0, "compute", "forward", i * 1e-5, (i + 1) * 1e-5});
  spans.push_back({0, "compute", "backward", 1, 2});
  const std::string svg = draw_timeline(spans, "many");
  EXPECT_LT(svg.size(), 100'000U);
  const std::vector<Drawn> all = boxes_of(svg);
  double forward = 0;
  for (const Drawn& box : all) forward += box.color == all[1].color && box.y == all[0].y ? box.width : 0;
  EXPECT_NEAR(forward, all[0].width / 2, 1) << "nothing is lost";
}

TEST(DrawTimeline, NestedSpansAreLowerAndRanksHaveNames) {
  const std::vector<DrawnSpan> spans{{0, "compute", "step 3", 0, 1},
                                     {0, "compute", "forward a", 0.25, 0.5},
                                     {0, "compute", "backward a", 0.5, 1},
                                     {0, "wait", "dp", 0.75, 1}};
  const std::string svg = draw_timeline(spans, "nested", {{0, "rank 0 (dp=0)"}});
  EXPECT_THAT(svg, HasSubstr(">rank 0 (dp=0)<"));
  EXPECT_THAT(svg, HasSubstr("<title>forward a: 250000 us</title>"));
  const std::vector<Drawn> all = boxes_of(svg);  // idle, step, forward, backward, wait
  ASSERT_GE(all.size(), 5U);
  EXPECT_EQ(all[1].y, all[0].y);
  EXPECT_GT(all[2].y, all[1].y);
  EXPECT_EQ(all[3].y, all[2].y);
  EXPECT_GT(all[4].y, all[3].y);
}

TEST(DrawTimeline, OfNothingIsEmpty) { EXPECT_THAT(draw_timeline({}, "none"), Not(HasSubstr("nan"))); }

}  // namespace
}  // namespace caravan::testing::draw_timeline_test
