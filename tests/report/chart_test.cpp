#include "caravan/report/chart.h"

#include <cmath>
#include <gmock/gmock.h>
#include <limits>

#include <gtest/gtest.h>

#include "caravan/report/report_page.h"
#include "tests/data/support.h"

namespace caravan::chart_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(AxisTicks, AreRoundNumbersInside) {
  EXPECT_THAT(axis_ticks(0, 10, 5), ElementsAre(0, 2, 4, 6, 8, 10));
  EXPECT_THAT(axis_ticks(1, 40, 6), ElementsAre(10, 20, 30, 40));
  EXPECT_THAT(axis_ticks(-1, 1, 4), ElementsAre(-1, -0.5, 0, 0.5, 1));
  EXPECT_EQ(axis_ticks(3, 3, 4).size(), 1U);
  for (const double low : {-3e9, 0.0, 1e-7, 17.0}) {
    for (const double range : {1e-6, 3.0, 7e12}) {
      const std::vector<double> ticks = axis_ticks(low, low + range, 5);
      EXPECT_LE(ticks.size(), 7U);
      for (const double tick : ticks) EXPECT_TRUE(tick >= low - range * 1e-6 && tick <= low + range * (1 + 1e-6));
    }
  }
}

TEST(ShortNumber, HasThreeOrFourDigits) {
  EXPECT_EQ(short_number(0), "0");
  EXPECT_EQ(short_number(-0.000125), "-0.000125");
  EXPECT_EQ(short_number(3.14159), "3.142");
  EXPECT_EQ(short_number(9999), "9999");
  EXPECT_EQ(short_number(12'345), "12.3 k");
  EXPECT_EQ(short_number(-2.5e9), "-2.5 G");
}

Chart chart_of(std::vector<double> x, std::vector<double> y) {
  return {.title = "t", .x_name = "step", .curves = {{"a", {std::move(x), std::move(y)}}}};
}

/// A straight line from the lower left to the upper right.
TEST(ChartText, DrawsDots) {
  EXPECT_EQ(to_text(chart_of({0, 1}, {0, 1}), 15, 2),
            "t\n"
            "1 |     ⢀⣀⠤⠔⠒⠉\n"
            "0 |⣀⠤⠔⠒⠉⠁     \n"
            "   0  step   1\n");
}

TEST(ChartText, LettersDistinguishCurves) {
  Chart chart = chart_of({0, 9}, {1, 1});
  chart.curves.push_back({"b run", {{0, 9}, {0, 0}}});
  const std::string text = to_text(chart, 14, 3);
  EXPECT_THAT(text, AllOf(HasSubstr("1 |aaaaaaaaaa"), HasSubstr("0 |bbbbbbbbbb"), HasSubstr("b b run")));
}

TEST(ChartText, OfNothingAndOfWhatIsNotFinite) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(to_text(chart_of({}, {}), 40, 4), HasSubstr("step"));
  EXPECT_EQ(to_text(chart_of({0, 1, 2}, {0, nan, 2}), 40, 4), to_text(chart_of({0, 2}, {0, 2}), 40, 4));
  EXPECT_THAT(to_text(chart_of({5}, {7}), 40, 4), HasSubstr("\xe2")) << "one point is a dot";
}

TEST(ChartSvg, HasEachCurveAndOnlyFiniteNumbers) {
  Chart chart = chart_of({1, 2, 3}, {4, std::numeric_limits<double>::infinity(), 6});
  chart.title = "a < b & c";
  chart.curves.push_back({"b", {{2}, {5}}});
  const std::string svg = to_svg({chart, chart});
  EXPECT_THAT(svg, AllOf(HasSubstr("a &lt; b &amp; c"), HasSubstr("translate(0 320)"), HasSubstr("<circle ")));
  EXPECT_THAT(svg, AllOf(Not(HasSubstr("inf")), Not(HasSubstr("nan"))));
}

TEST(ReportPage, HasFactsCurvesAndRecipe) {
  const TemporaryFolder run;
  write_file(run / "train.log",
             "{\"step\":1,\"loss\":3,\"lr\":0.1,\"bubble\":[0.5,0.25]}\n{\"step\":2,\"loss\":2,\"lr\":0.2,\"val_loss\":"
             "2.5}\n");
  const RunLog log = RunLog::read(run.path());
  const std::string page =
      report_page(log, {.facts = {{"ranks", "2 <&>"}}, .recipe = "a = \"b\"", .schedule = "<svg/>"});
  EXPECT_THAT(page, AllOf(HasSubstr("2 &lt;&amp;&gt;"), HasSubstr("a = &quot;b&quot;"), HasSubstr("<svg/>")));
  EXPECT_THAT(page,
              AllOf(HasSubstr("loss, nats"), HasSubstr("bubble.1"), HasSubstr("val_loss"), HasSubstr("learning rate")));
  EXPECT_THAT(page, AllOf(Not(HasSubstr("norm of")), Not(HasSubstr("<script")), Not(HasSubstr("https:"))));
}

/// Ranges that overflow, are too small to divide, or are not numbers.
TEST(Chart, DrawsAnyNumbers) {
  constexpr double kMost = std::numeric_limits<double>::max();
  constexpr double kLeast = std::numeric_limits<double>::denorm_min();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const std::vector<double>& values : {std::vector<double>{-kMost, kMost},
                                            {0, kLeast},
                                            {kMost},
                                            {nan, 1},
                                            {nan},
                                            {1, std::nextafter(1, 2)},
                                            {-1e300, 1e300},
                                            {9e18, -9e18, 0}}) {
    std::vector<double> x(values.size());
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<double>(i);
    for (const Series& points : {Series{x, values}, Series{values, x}}) {
      const Chart chart{.title = "any", .x_name = "step", .curves = {{"a", points}}};
      EXPECT_EQ(to_text(chart, 60, 6).find("nan"), std::string::npos);
      EXPECT_EQ(to_svg({chart}).find("nan"), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace caravan::chart_test
