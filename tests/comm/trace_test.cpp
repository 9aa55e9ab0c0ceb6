// Spans of operations, and clocks of hosts.
#include "caravan/base/trace/trace.h"

#include <cstdlib>
#include <gmock/gmock.h>
#include <map>
#include <thread>

#include "caravan/comm/backends/clock_offset.h"
#include "caravan/comm/backends/shared/thread_ranks.h"

namespace caravan::trace_test {
namespace {

const CommOptions kSoon{.timeout = std::chrono::seconds(10)};

int64_t arg(const TraceLog::Span& span, const std::string& name) {
  for (const auto& [key, value] : span.args) {
    if (key == name) return value;
  }
  return -1;
}

TEST(TraceOfOperations, GoesFromTheIssueToTheCompletion) {
  run_thread_ranks(
      2,
      [](const std::shared_ptr<Communicator>& world) {
        const int other = 1 - world->rank();
        std::vector<float> data(6), received(6);
        const Buffer buffer{data.data(), 6, Dtype::fp32};
        const auto log = std::make_shared<TraceLog>();
        Work late;
        int64_t between = 0;
        int64_t received_at = 0;
        {
          const TraceScope scope(log);
          world->all_reduce(buffer, buffer, ReduceOp::sum, "blocking");
          Work recv = world->recv_async({received.data(), 6, Dtype::fp32}, other, "message");
          between = TraceLog::now_ns();
          world->send(buffer, other, "message");
          recv.wait();
          received_at = TraceLog::now_ns();
          late = world->all_reduce_async(buffer, buffer, ReduceOp::sum, "late");
        }
        const int64_t left = TraceLog::now_ns();
        late.wait();
        world->barrier("not traced");
        std::map<std::string, TraceLog::Span> spans;
        for (const TraceLog::Span& span : log->spans()) {
          if (span.row == "world over thread") spans[span.name] = span;
        }
        ASSERT_EQ(spans.size(), 4U);
        EXPECT_EQ(arg(spans.at("all_reduce blocking"), "bytes"), 24);
        EXPECT_EQ(arg(spans.at("all_reduce blocking"), "sent_bytes"), 24);
        EXPECT_EQ(arg(spans.at("all_reduce blocking"), "peer"), -1);
        EXPECT_EQ(arg(spans.at("send message"), "sent_bytes"), 24);
        EXPECT_EQ(arg(spans.at("send message"), "peer"), other);
        EXPECT_EQ(arg(spans.at("recv message"), "bytes"), 24);
        EXPECT_EQ(arg(spans.at("recv message"), "sent_bytes"), 0);
        EXPECT_LE(spans.at("recv message").begin_ns, between);
        EXPECT_GE(spans.at("recv message").end_ns, spans.at("recv message").begin_ns);
        EXPECT_LE(spans.at("recv message").end_ns, received_at) << "not when the trace is read";
        EXPECT_LE(spans.at("all_reduce late").begin_ns, left);
      },
      kSoon);
}

/// Rank 1 sends only when rank 0 is seen to wait.
TEST(TraceOfOperations, ShowsWhatItWaitsFor) {
  const auto log = std::make_shared<TraceLog>();
  const auto waits = [&] {
    std::vector<TraceLog::Span> found;
    for (const TraceLog::Span& span : log->spans()) {
      if (span.row == TraceLog::kWait) found.push_back(span);
    }
    return found;
  };
  int64_t sent = 0;
  run_thread_ranks(
      2,
      [&](const std::shared_ptr<Communicator>& world) {
        int64_t value = 0;
        const Buffer message{&value, 1, Dtype::int64};
        if (world->rank() == 0) {
          const TraceScope scope(log);
          world->recv_async(message, 1, "message").wait();
          return;
        }
        const auto deadline = std::chrono::steady_clock::now() + kSoon.timeout;
        while (waits().empty() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
        sent = TraceLog::now_ns();
        world->send(message, 0, "message");
      },
      kSoon);
  ASSERT_EQ(waits().size(), 1U);
  EXPECT_EQ(waits().front().name, "recv message");
  EXPECT_LE(waits().front().begin_ns, sent);
  EXPECT_GE(waits().front().end_ns, sent);
}

/// Hosts a, b and c, whose clocks are seconds apart; ranks of one host have one clock.
TEST(ClockOffset, FindsTheOriginOnEveryClock) {
  const std::vector<std::string> hosts{"a", "a", "b", "c", "b"};
  const std::map<std::string, int64_t> shift{{"a", 0}, {"b", 5'000'000'000}, {"c", -7'000'000'000}};
  std::vector<ClockOffset> found(hosts.size());
  run_thread_ranks(
      static_cast<int>(hosts.size()),
      [&](const std::shared_ptr<Communicator>& world) {
        const auto rank = static_cast<size_t>(world->rank());
        found[rank] = clock_offset(*world, hosts[rank], [&] { return TraceLog::now_ns() + shift.at(hosts[rank]); });
      },
      kSoon);
  for (size_t rank = 0; rank < hosts.size(); ++rank) {
    const ClockOffset& own = found[rank];
    if (hosts[rank] == "a") {
      EXPECT_EQ(own.error_ns, 0);
    } else {
      EXPECT_GT(own.error_ns, 0);
    }
    EXPECT_LE(std::abs(own.zero_ns - shift.at(hosts[rank]) - found[0].zero_ns), own.error_ns) << "rank " << rank;
  }
  EXPECT_EQ(found[2].zero_ns, found[4].zero_ns);
}

TEST(ClockOffset, OfOneRankIsZero) {
  run_thread_ranks(1, [](const std::shared_ptr<Communicator>& world) {
    const ClockOffset own = clock_offset(*world, "a", [] { return 42; });
    EXPECT_EQ(own.zero_ns, 42);
    EXPECT_EQ(own.error_ns, 0);
  });
}

}  // namespace
}  // namespace caravan::trace_test
