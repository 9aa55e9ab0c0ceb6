#include <caravan/base/memory/memory_counter.h>
#include <caravan/base/runtime.h>
#include <cstdio>

#include <ATen/ops/ones.h>

/// A tensor made under Caravan's allocator is charged to the counter of its thread.
int main() {
  const caravan::Runtime runtime({.intra_op_threads = 1});
  auto* counter = new caravan::MemoryCounter;
  const caravan::MemoryScope scope(*counter);
  const at::Tensor tensor = at::ones({3});
  std::printf("%lld bytes\n", static_cast<long long>(counter->live_bytes()));
}
