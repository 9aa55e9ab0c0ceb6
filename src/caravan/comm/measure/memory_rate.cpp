#include "caravan/comm/measure/memory_rate.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <vector>

#include "caravan/base/numeric/simd.h"
#include "caravan/comm/measure/sampling.h"

namespace caravan::measure {
namespace {

constexpr int64_t kMostBytes = int64_t{1} << 30;
constexpr int kRepeats = 7;
constexpr double kRepeat_s = 5e-3;

struct AddKernel {
  [[gnu::always_inline]] static void run(float* __restrict to, const float* __restrict from, int64_t count) {
    for (int64_t i = 0; i < count; ++i) to[i] += from[i];
  }
};

/// Keeps the compiler from removing a loop whose result is unused.
void is_read(const void* memory) { asm volatile("" : : "r"(memory) : "memory"); }

/// Seconds of one call of `work` on the slowest rank, with all ranks working at once; the best repeat.
double best_seconds(Communicator& world, const std::function<void()>& work) {
  work();
  double best = 0;
  int64_t num_calls = 1;
  for (int repeat = 0; repeat <= kRepeats; ++repeat) {
    double taken = time_block(world, work, 1, num_calls).front();
    take_slowest(world, {&taken, 1});
    const double one = std::max(taken, 1e-9) / static_cast<double>(num_calls);
    if (repeat == 0)
      num_calls =
          std::max<int64_t>(1, std::llround(kRepeat_s / one));  // the first repeat determines the number of calls
    if (repeat > 0) best = best == 0 ? one : std::min(best, one);
  }
  return best;
}

}  // namespace

MemoryRates measure_memory(Communicator& world, int64_t bytes) {
  const int64_t count = std::clamp(bytes, int64_t{64}, kMostBytes / (2 * world.size())) / 4;
  std::vector<float> from(static_cast<size_t>(count), 0.0F);
  std::vector<float> to(static_cast<size_t>(count), 0.0F);
  const double copy_s = best_seconds(world, [&] {
    std::memcpy(to.data(), from.data(), static_cast<size_t>(count * 4));
    is_read(to.data());
  });
  const double add_s = best_seconds(world, [&] {
    simd::dispatch<AddKernel>(to.data(), static_cast<const float*>(from.data()), count);
    is_read(to.data());
  });
  const double one_gb = static_cast<double>(count * 4) * world.size() / 1e9;
  return {2 * one_gb / copy_s, 3 * one_gb / add_s};
}

}  // namespace caravan::measure
