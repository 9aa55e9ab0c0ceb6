#include "caravan/memory/chunks/chunk_optimum.h"

#include <cstdio>
#include <map>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "caravan/base/error.h"
#include "caravan/memory/chunks/chunk_flow.h"
#include "tests/memory/chunks/gpt2_chunks.h"
#include "tests/memory/chunks/random_trace.h"

namespace caravan::testing::chunk_optimum_test {
namespace {

// Where the contents of a chunk are. `gone`: nowhere.
enum Place : uint8_t { host, both, device, gone };
using Places = std::vector<uint8_t>;

// The least bytes over all sequences of moves: every place of every chunk at every moment, nothing left out.
class AllMoves {
 public:
  explicit AllMoves(const ChunkTrace& trace) : trace_(trace) {}

  int64_t least() {
    std::map<Places, int64_t> costs = {{Places(trace_.chunk_bytes.size(), host), 0}};
    size_t next = 0;
    for (int moment = 0; moment < trace_.num_moments(); ++moment) {
      std::vector<ChunkUse> uses;
      while (next < trace_.uses.size() && trace_.uses[next].moment == moment) uses.push_back(trace_.uses[next++]);
      now_.clear();
      for (const auto& [places, cost] : costs) choose(places, 0, cost, uses, moment);
      costs = now_;
    }
    int64_t best = -1;
    for (const auto& [places, cost] : costs) {
      int64_t total = cost;
      bool is_lost = false;
      for (size_t c = 0; c < places.size(); ++c) {
        if (places[c] == device) total += trace_.chunk_bytes[c];
        is_lost = is_lost || (places[c] == gone && !is_consumed(c));
      }
      if (!is_lost && (best < 0 || total < best)) best = total;
    }
    return best;
  }

 private:
  bool is_consumed(size_t chunk) const {
    ChunkAccess last = ChunkAccess::read;
    for (const ChunkUse& use : trace_.uses)
      if (use.chunk == static_cast<int>(chunk)) last = use.access;
    return last == ChunkAccess::consume;
  }

  // Chunk by chunk, every place that it can have before the uses of the moment.
  void choose(Places places, size_t chunk, int64_t cost, const std::vector<ChunkUse>& uses, int moment) {
    if (chunk == places.size()) return use(std::move(places), cost, uses, moment);
    const int64_t bytes = trace_.chunk_bytes[chunk];
    const auto go = [&](Place to, int64_t more) {
      places[chunk] = to;
      choose(places, chunk + 1, cost + more, uses, moment);
    };
    switch (places[chunk]) {
      case host:
        go(host, 0);
        go(both, bytes);
        break;
      case both:
        go(both, 0);
        go(host, 0);
        break;
      case device:
        go(device, 0);
        go(both, bytes);
        go(host, bytes);
        go(gone, 0);
        break;
      default: go(gone, 0);
    }
  }

  void use(Places places, int64_t cost, const std::vector<ChunkUse>& uses, int moment) {
    int64_t on_device = 0;
    for (size_t c = 0; c < places.size(); ++c) {
      bool takes = places[c] == both || places[c] == device;
      for (const ChunkUse& use : uses) takes = takes || (use.chunk == static_cast<int>(c) && !use.is_on_host);
      if (takes) on_device += trace_.chunk_bytes[c];
    }
    if (on_device > trace_.budget_bytes[static_cast<size_t>(moment)]) return;
    for (const ChunkUse& use : uses) {
      uint8_t& place = places[static_cast<size_t>(use.chunk)];
      const Place here = use.is_on_host ? host : device;
      if (use.access != ChunkAccess::overwrite && place != here && place != both) return;
      if (use.access == ChunkAccess::modify || use.access == ChunkAccess::overwrite) place = here;
      if (use.access == ChunkAccess::consume) place = gone;
    }
    const auto [entry, is_new] = now_.emplace(std::move(places), cost);
    if (!is_new) entry->second = std::min(entry->second, cost);
  }

  const ChunkTrace& trace_;
  std::map<Places, int64_t> now_;
};

RC_GTEST_PROP(ChunkOptimum, IsThatOfAllSequencesOfMoves, ()) {
  const ChunkTrace trace = random_trace(*rc::gen::inRange(1, 5), *rc::gen::inRange(1, 14));
  const ChunkOptimum optimum = optimal_moves(trace);
  check_moves(optimum.plan, trace);
  RC_ASSERT(optimum.is_exact());
  RC_ASSERT(optimum.lower_bytes == AllMoves(trace).least());
  RC_ASSERT(optimum.plan.moved_bytes() == optimum.lower_bytes);
}

RC_GTEST_PROP(ChunkOptimum, ABoundIsNotAboveTheOptimum, ()) {
  const ChunkTrace trace = random_trace(*rc::gen::inRange(2, 5), *rc::gen::inRange(5, 14));
  const ChunkOptimum bound = optimal_moves(trace, 1);
  check_moves(bound.plan, trace);
  RC_ASSERT(bound.num_nodes <= 1);
  const int64_t least = AllMoves(trace).least();
  RC_ASSERT(bound.lower_bytes <= least);
  RC_ASSERT(bound.plan.moved_bytes() >= least);
}

RC_GTEST_PROP(ChunkFlow, KeepsWhatBringsMost, ()) {
  const int moments = *rc::gen::inRange(1, 6);
  std::vector<int64_t> room;
  for (int m = 0; m < moments; ++m) room.push_back(*rc::gen::inRange<int64_t>(0, 4));
  std::vector<RoomInterval> intervals;
  const int count = *rc::gen::inRange(0, 9);
  for (int i = 0; i < count; ++i) {
    const int first = *rc::gen::inRange(0, moments);
    intervals.push_back({first, *rc::gen::inRange(first, moments), 1, *rc::gen::inRange<int64_t>(0, 20)});
  }
  int64_t best = 0;
  for (int subset = 0; subset < 1 << count; ++subset) {
    std::vector<int64_t> left = room;
    int64_t profit = 0;
    bool fits = true;
    for (int i = 0; i < count; ++i) {
      if ((subset >> i & 1) == 0) continue;
      profit += intervals[i].profit;
      for (int m = intervals[i].first; m <= intervals[i].last; ++m) fits = --left[m] >= 0 && fits;
    }
    if (fits) best = std::max(best, profit);
  }
  RC_ASSERT(keep_intervals(intervals, room).profit == static_cast<double>(best));
}

/// What a trace moves under each policy, beside the least that it could. Three repetitions, so
/// that what happens once (the first fetches, the last write-backs) weighs little; bytes of one of them.
struct ChunkBytes {
  int64_t recorded = 0;
  int64_t latest = 0;
  int64_t lru = 0;
  int64_t least = 0;      ///< no plan moves less
  bool is_least = false;  ///< whether a plan moves just that
};
ChunkBytes compare_policies(const ChunkTrace& step) {
  constexpr int kSteps = 3;
  const ChunkTrace trace = repeat(step, kSteps);
  const ChunkOptimum optimum = optimal_moves(trace, 1);
  return {.recorded = plan_moves(trace, ChunkPolicy::recorded).moved_bytes() / kSteps,
          .latest = plan_moves(trace, ChunkPolicy::latest).moved_bytes() / kSteps,
          .lru = plan_moves(trace, ChunkPolicy::lru).moved_bytes() / kSteps,
          .least = optimum.lower_bytes / kSteps,
          .is_least = optimum.is_exact()};
}

struct StepCase {
  const char* name;
  int layers;
  int64_t width;
  bool reuses_chunks;
  bool is_updated_on_device;
  int recompute;
};

// A tenth above the optimum is allowed. Budgets are parts of what the chunks of parameters take.
TEST(ChunkOptimum, RecordedMovesAtMostATenthMoreOnStepsOfGpt2) {
  const StepCase cases[] = {{"124M, 2 micro-batches", 12, 768, false, false, 0},
                            {"355M", 24, 1024, true, false, 0},
                            {"355M, states on the device", 24, 1024, true, true, 0},
                            {"355M, 2 micro-batches, recompute 4", 24, 1024, false, false, 4},
                            {"1.5B, recompute 4", 48, 1600, true, false, 4},
                            {"1.5B, 2 micro-batches, recompute 4", 48, 1600, false, false, 4}};
  for (const StepCase& c : cases) {
    ChunkStep step = gpt2_step(c.layers, c.width);
    step.reuses_chunks = c.reuses_chunks;
    step.num_micro_batches = c.reuses_chunks ? 1 : 2;
    step.recompute = c.recompute;
    if (c.is_updated_on_device) step.updated_on_device = step.num_chunks;
    for (const double part : {0.5, 0.75, 1.5}) {
      StepBudget budget;
      budget.device_bytes =
          std::max(c.is_updated_on_device ? 8 : 6, static_cast<int>(part * step.num_chunks)) * step.chunk_bytes;
      // Activations grow through the forward and shrink through the backward, by a third of the chunks in all.
      const auto units = static_cast<int64_t>(step.units.size());
      for (int64_t u = 0; u < units; ++u)
        budget.forward_bytes.push_back(
            std::max(4 * step.chunk_bytes, budget.device_bytes * (3 * units - u) / (3 * units)));
      budget.backward_bytes = budget.forward_bytes;
      const ChunkTrace trace = trace_of(step, budget);
      const ChunkBytes bytes = compare_policies(trace);
      const auto beside = [&](int64_t b) { return static_cast<double>(b) / static_cast<double>(bytes.least); };
      std::printf("%s, %d chunks, budget %.2f: %.0f MB, %s; recorded %.4f, latest %.4f, LRU %.4f\n", c.name,
                  step.num_chunks, part, static_cast<double>(bytes.least) / 1e6,
                  bytes.is_least ? "the optimum" : "no plan moves less", beside(bytes.recorded), beside(bytes.latest),
                  beside(bytes.lru));
      EXPECT_LE(beside(bytes.recorded), 1.10) << c.name << " " << part;
      EXPECT_GE(bytes.recorded, bytes.least);
    }
  }
}

// How far the policy is from the optimum where nothing is known of the trace: on average, since single traces of a few
// bytes may be at any distance.
TEST(ChunkOptimum, RecordedIsNearItOnRandomTracesToo) {
  int64_t recorded = 0;
  int64_t least = 0;
  int64_t lru = 0;
  EXPECT_TRUE(rc::check([&] {
    const ChunkTrace trace = random_trace(8, 40);
    recorded += plan_moves(trace, ChunkPolicy::recorded).moved_bytes();
    lru += plan_moves(trace, ChunkPolicy::lru).moved_bytes();
    least += optimal_moves(trace, 1).lower_bytes;
  }));
  std::printf("random traces: recorded %.4f, LRU %.4f of a lower bound\n",
              static_cast<double>(recorded) / static_cast<double>(least),
              static_cast<double>(lru) / static_cast<double>(least));
  EXPECT_LE(recorded * 10, least * 11);
}

TEST(ChunkOptimum, RefusesAnInvalidTrace) {
  const ChunkTrace trace{.chunk_bytes = {10}, .budget_bytes = {5}, .uses = {{.moment = 0, .chunk = 0}}};
  EXPECT_THROW(optimal_moves(trace), UsageError);
}

}  // namespace
}  // namespace caravan::testing::chunk_optimum_test
