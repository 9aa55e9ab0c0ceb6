#include "caravan/base/trace/trace.h"

#include <gmock/gmock.h>
#include <thread>

#include <nlohmann/json.hpp>

#include "caravan/base/trace/trace_events.h"

namespace caravan::trace_test {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

TEST(TraceLog, RecordsOnlyInItsScope) {
  const auto outer = std::make_shared<TraceLog>();
  const auto inner = std::make_shared<TraceLog>();
  { const TraceSpan nowhere("row", "before"); }
  {
    const TraceScope scope(outer);
    const TraceSpan first("row", "first", "a", {{"bytes", 8}});
    {
      const TraceScope inner_scope(inner);
      const TraceSpan second("row", "second");
      const TraceScope off(nullptr);
      const TraceSpan nowhere("row", "off");
    }
    std::thread([] { const TraceSpan nowhere("row", "of another thread"); }).join();
  }
  EXPECT_EQ(TraceLog::current(), nullptr);
  ASSERT_EQ(outer->spans().size(), 1U);
  ASSERT_EQ(inner->spans().size(), 1U);
  const TraceLog::Span span = outer->spans().front();
  EXPECT_EQ(span.row, "row");
  EXPECT_EQ(span.name, "first a");
  EXPECT_THAT(span.args, ElementsAre(Pair(::testing::StrEq("bytes"), 8)));
  EXPECT_EQ(inner->spans().front().name, "second");
  EXPECT_LE(span.begin_ns, inner->spans().front().begin_ns);
  EXPECT_GE(span.end_ns, inner->spans().front().end_ns);
}

TEST(TraceLog, ASpanEndsOnceAndOnAnyThread) {
  TraceLog log;
  const size_t number = log.begin("row", "span");
  const size_t open = log.begin("row", "open");
  std::thread([&] { log.end(number); }).join();
  const int64_t end = log.spans()[number].end_ns;
  EXPECT_GE(end, log.spans()[number].begin_ns);
  while (TraceLog::now_ns() == end) continue;
  log.end(number);
  EXPECT_EQ(log.spans()[number].end_ns, end);
  EXPECT_GT(log.spans()[open].end_ns, end) << "what has not ended ends now";
}

TEST(TraceLog, ALapEndsWhenTheNextBegins) {
  TraceLog::begin_lap("row", "no trace", "", {});
  const auto log = std::make_shared<TraceLog>();
  const TraceScope scope(log);
  TraceLog::end_lap();
  TraceLog::begin_lap("row", "lap", "1", {{"micro_batch", 4}});
  { const TraceSpan inside("row", "inside"); }
  TraceLog::begin_lap("row", "lap", "2", {});
  TraceLog::end_lap();
  const int64_t end = TraceLog::now_ns();
  TraceLog::end_lap();
  const std::vector<TraceLog::Span> spans = log->spans();
  ASSERT_EQ(spans.size(), 3U);
  EXPECT_EQ(spans[0].name, "lap 1");
  EXPECT_GE(spans[0].end_ns, spans[1].end_ns);
  EXPECT_LE(spans[0].end_ns, spans[2].end_ns);
  EXPECT_EQ(spans[2].name, "lap 2");
  EXPECT_LE(spans[2].end_ns, end);
}

nlohmann::json events_of(const TraceProcess& process, const std::vector<TraceLog::Span>& spans) {
  return nlohmann::json::parse(std::string(kTraceBegin) + trace_events(process, spans) + std::string(kTraceEnd))
      .at("traceEvents");
}

/// {name of the row, name of the span} of the spans, in the order of the file.
std::vector<std::pair<std::string, std::string>> places(const nlohmann::json& events) {
  std::map<int, std::string> rows;
  std::vector<std::pair<std::string, std::string>> all;
  for (const auto& event : events) {
    if (event.at("name") == "thread_name") rows[event.at("tid")] = event.at("args").at("name");
    if (event.at("ph") == "X") all.emplace_back(rows.at(event.at("tid")), event.at("name"));
  }
  return all;
}

TEST(TraceEvents, OverlappingSpansUseSeveralRows) {
  const std::vector<TraceLog::Span> spans = {{"dp", "a", {}, 0, 10},        {"dp", "in a", {}, 2, 10},
                                             {"dp", "b", {}, 5, 15},        {"dp", "after a", {}, 10, 20},
                                             {"dp", "over all", {}, 0, 20}, {"compute", "unit", {}, 0, 20}};
  EXPECT_THAT(places(events_of({}, spans)),
              ElementsAre(Pair("compute", "unit"), Pair("dp", "over all"), Pair("dp", "a"), Pair("dp", "in a"),
                          Pair("dp (2)", "b"), Pair("dp", "after a")));
}

TEST(TraceEvents, AreRelativeToTheOriginInMicroseconds) {
  const TraceProcess process{.rank = 3, .name = "rank 3 (dp=3)", .origin_ns = 1'000'000'000, .origin_error_ns = 1500};
  const auto events = events_of(process, {{"dp", "all_reduce \"\xff\"", {{"bytes", 8}}, 1'000'002'001, 1'000'002'004}});
  std::map<std::string, nlohmann::json> by_name;
  for (const auto& event : events) by_name[event.at("ph") == "X" ? "span" : event.at("name")] = event;
  EXPECT_EQ(by_name.at("process_name").at("args").at("name"), "rank 3 (dp=3)");
  EXPECT_EQ(by_name.at("process_labels").at("args").at("labels"), "clock within 1.5 us");
  const auto& span = by_name.at("span");
  EXPECT_EQ(span.at("pid"), 3);
  EXPECT_EQ(span.at("ts"), 2.001);
  EXPECT_EQ(span.at("dur"), 0.003);
  EXPECT_EQ(span.at("name"), "all_reduce \"\xef\xbf\xbd\"");
  EXPECT_EQ(span.at("args"), nlohmann::json({{"bytes", 8}}));
}

}  // namespace
}  // namespace caravan::trace_test
