#include "caravan/schedule/draw_pipeline.h"

#include <fstream>
#include <gmock/gmock.h>
#include <sstream>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "caravan/registry/registry.h"
#include "tests/schedule/pipeline_order.h"

namespace caravan::testing::draw_pipeline_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Timeline of_even_stages(const PipelineOrder& order) {
  return simulate(order, std::vector<StageCost>(static_cast<size_t>(order.num_stages())));
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

int count(const std::string& text, const std::string& part) {
  int number = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++number;
  return number;
}

TEST(PipelineText, IsARowForEachRank) {
  EXPECT_EQ(to_text(of_even_stages(order_of("1f1b", 2, 3)), 160),
            "rank 0 F0 F1 ......B0    F2 B1    ...B2    \n"
            "rank 1 ...F0 B0    F1 B1    F2 B2    ......\n");
  EXPECT_EQ(to_text(of_even_stages(with_recompute(order_of("gpipe", 2, 2))), 160),
            "rank 0 F0 F1 C0 .........B0    C1 B1    \n"
            "rank 1 ...F0 F1 C0 B0    C1 B1    ......\n");
}

/// The letter of a cell outlives its number, and rows end together.
TEST(PipelineText, FitsItsWidth) {
  for (const int width : {40, 80, 160}) {
    const std::vector<std::string> rows = lines_of(to_text(of_even_stages(order_of("zb-h2", 8, 32)), width));
    ASSERT_EQ(rows.size(), 8U);
    for (const std::string& row : rows) {
      EXPECT_LE(row.size(), static_cast<size_t>(width));
      EXPECT_EQ(row.size(), rows.front().size());
    }
  }
  const std::string narrow = to_text(of_even_stages(order_of("1f1b", 2, 3)), 22);
  EXPECT_THAT(narrow, HasSubstr("F"));
  EXPECT_THAT(narrow, Not(HasSubstr("F0 ")));
}

/// Reads the drawing as XML: every element is closed by its own name, attributes are quoted, and no text has a bare
/// character of the markup.
void expect_well_formed(const std::string& xml) {
  std::vector<std::string> open;
  for (size_t at = xml.find('<'); at != std::string::npos; at = xml.find('<', at + 1)) {
    const size_t end = xml.find('>', at);
    ASSERT_NE(end, std::string::npos);
    const std::string tag = xml.substr(at + 1, end - at - 1);
    ASSERT_EQ(count(tag, "<"), 0) << tag;
    ASSERT_EQ(count(tag, "\"") % 2, 0) << tag;
    ASSERT_EQ(count(tag, "=\""), count(tag, "\"") / 2) << tag;
    const std::string name = tag.substr(0, tag.find(' '));
    if (tag.front() == '/') {
      ASSERT_FALSE(open.empty());
      ASSERT_EQ(open.back(), tag.substr(1));
      open.pop_back();
    } else if (tag.back() != '/') {
      open.push_back(name);
    }
    const std::string text = xml.substr(end + 1, xml.find('<', end) - end - 1);
    ASSERT_EQ(count(text, ">"), 0) << text;
    ASSERT_EQ(count(text, "&"), count(text, "&lt;") + count(text, "&gt;") + count(text, "&amp;")) << text;
  }
  EXPECT_TRUE(open.empty());
}

TEST(PipelineDrawing, HasEveryPassAndMessage) {
  for (const PipelineOrder& order :
       {order_of("gpipe", 1, 1), order_of("1f1b", 3, 4), order_of("interleaved", 2, 4, 3), order_of("zb-v", 4, 9),
        with_recompute(order_of("1f1b", 4, 8)), order_of("pipedream", 3, 5)}) {
    const Timeline timeline = of_even_stages(order);
    const std::string svg = to_svg(timeline, order.rank_of_stage, "a < b & c > d");
    expect_well_formed(svg);
    EXPECT_THAT(svg, HasSubstr(">a &lt; b &amp; c &gt; d</text>"));
    int passes = 0;
    int messages = 0;
    for (const Timeline::Rank& rank : timeline.ranks) {
      passes += static_cast<int>(rank.spans.size());
      messages += static_cast<int>(rank.num_sent);
    }
    const int in_legend = 9;  // two of each kind of pass, and the bubble
    EXPECT_EQ(count(svg, "<rect"), passes + static_cast<int>(timeline.ranks.size()) + in_legend);
    EXPECT_EQ(count(svg, "<line"), messages + 1);
  }
}

/// docs/pipeline_schedules.md shows each schedule as it is.
TEST(PipelineText, MatchesTheDocuments) {
  std::ostringstream page;
  page << std::ifstream(CARAVAN_SOURCE_DIR "/docs/pipeline_schedules.md").rdbuf();
  for (const std::string& schedule : names_of("pipeline")) {
    const bool has_chunks = schedule == "interleaved" || schedule == "zb-v";
    const PipelineOrder order =
        pipeline_order(pipeline_of(schedule, 4, has_chunks ? 2 : 1, 4), schedule == "naive" ? 2 : 8);
    EXPECT_THAT(page.str(), HasSubstr("```text\n" + to_text(of_even_stages(order), 180) + "```"))
        << schedule << ": bubble " << 100 * of_even_stages(order).bubble();
  }
}

}  // namespace
}  // namespace caravan::testing::draw_pipeline_test
