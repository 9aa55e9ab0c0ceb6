#pragma once

#include <array>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "caravan/base/memory/memory_counter.h"
#include "caravan/base/trace/kernel_log.h"
#include "caravan/base/trace/path_log.h"
#include "caravan/cost/torch_kernels.h"

namespace caravan::testing {

/// What some work computed.
struct Computed {
  std::map<std::array<int64_t, 5>, int64_t> products{};  ///< by kind, batch, m, n, k: how many
  double flops = 0;                                      ///< of these
  std::map<std::string, int64_t> bytes{};                ///< of other kernels, by name
  double total_bytes() const {
    double sum = 0;
    for (const auto& [name, count] : bytes) sum += static_cast<double>(count);
    return sum;
  }
};

class ComputedLog final : public KernelLog {
 public:
  void add(KernelWork work) override {
    if (work.kind == KernelWork::Kind::memory) {
      computed_.bytes[work.what] += work.bytes;
    } else {
      computed_.flops += work.flops();
      computed_.products[{static_cast<int64_t>(work.kind), work.batch, work.m, work.n, work.k}] += work.products;
    }
  }
  const Computed& computed() const noexcept { return computed_; }

 private:
  Computed computed_;
};

/// The memory that some work used, by MemoryKind: the peak, and what it holds after each part.
struct Taken {
  std::vector<std::array<int64_t, kNumMemoryKinds>> held{};
  int64_t peak = 0;
  PathCounts paths{};
  Computed computed{};
};

/// Counts from its construction on, beyond the memory at that time.
class TakenCounter {
 public:
  TakenCounter()
      : counter_(MemoryCounter::current()),
        before_(now()),
        live_(counter_.live_bytes()),
        scope_(&log_),
        computes_(&computed_) {
    counter_.reset_peak();
  }
  void hold() {
    taken_.held.push_back(now());
    for (size_t i = 0; i < kNumMemoryKinds; ++i) taken_.held.back()[i] -= before_[i];
  }
  Taken finish() {
    taken_.peak = counter_.peak_bytes() - live_;
    taken_.paths = log_.counts();
    taken_.computed = computed_.computed();
    return taken_;
  }

 private:
  std::array<int64_t, kNumMemoryKinds> now() const {
    std::array<int64_t, kNumMemoryKinds> all{};
    for (size_t i = 0; i < kNumMemoryKinds; ++i) all[i] = counter_.live_bytes(static_cast<MemoryKind>(i));
    return all;
  }

  MemoryCounter& counter_;
  std::array<int64_t, kNumMemoryKinds> before_;
  int64_t live_;
  PathLog log_;
  PathScope scope_;
  ComputedLog computed_;
  KernelLogScope computes_;
  TorchKernelScope operators_;
  Taken taken_{};
};

/// How far the dry run may be from the run: nothing unless a reason is given.
struct Slack {
  int64_t above = 0;    ///< the peak
  int64_t below = 0;    ///< the peak
  int64_t unknown = 0;  ///< what the run may use less, since it depends on the tokens of the rank
  /// How many fewer or more bytes of buffers the run may hold: their number, and which pooled buffer fits when, depend
  /// on the speed of messages. A dry run assumes the slowest.
  int64_t buffers = 0;
};

inline void expect_same(const Taken& real, const Taken& meta, const std::string& what, Slack slack = {}) {
  EXPECT_GT(real.peak, 0) << what;
  constexpr auto kOther = static_cast<size_t>(MemoryKind::other), kBuffers = static_cast<size_t>(MemoryKind::buffers);
  ASSERT_EQ(meta.held.size(), real.held.size());
  for (size_t i = 0; i < real.held.size(); ++i) {
    auto expected = real.held[i];
    const int64_t more = meta.held[i][kBuffers] - expected[kBuffers];
    EXPECT_LE(std::abs(more), slack.buffers) << what << ", part " << i;
    const int64_t unknown = meta.held[i][kOther] - expected[kOther];
    EXPECT_GE(unknown, 0) << what << ", part " << i;
    EXPECT_LE(unknown, slack.unknown) << what << ", part " << i;
    expected[kBuffers] += more;
    expected[kOther] += unknown;
    EXPECT_EQ(meta.held[i], expected) << what << ", part " << i << ": other, parameters, gradients, optimizer, buffers";
  }
  EXPECT_GE(meta.peak, real.peak - slack.below - slack.buffers) << what;
  EXPECT_LE(meta.peak, real.peak + slack.above + slack.unknown + slack.buffers) << what;
  EXPECT_EQ(meta.paths, real.paths) << what;
  // What depends on the tokens of the rank is assumed to be the most.
  if (slack.unknown == 0) {
    EXPECT_EQ(meta.computed.products, real.computed.products) << what;
  }
  EXPECT_GE(meta.computed.flops, real.computed.flops) << what;
  EXPECT_LE(meta.computed.flops, 1.1 * real.computed.flops) << what;
  // Without data torch does not fill, nor choose by values; sums of two dtypes convert one more operand.
  const double bytes = real.computed.total_bytes();
  EXPECT_NEAR(meta.computed.total_bytes(), bytes, (slack.unknown > 0 ? 0.13 : 0.03) * bytes + 1e5)
      << what << ": " << ::testing::PrintToString(meta.computed.bytes) << ", real "
      << ::testing::PrintToString(real.computed.bytes);
}

}  // namespace caravan::testing
