#pragma once

#include <cstdint>

#include <ATen/Parallel.h>

namespace caravan {

/// The number of threads that a loop of the calling thread is divided over: at::get_num_threads(), or 1 inside a loop.
/// Each library that is compiled with torch's headers initialises the thread's number once, to what any thread set
/// last. The first call keeps the thread's own number.
int num_loop_threads();

/// at::parallel_for on num_loop_threads() threads at most: calls f(first, last) for parts of [begin, end), of at least
/// `grain` each if there are several. f may throw.
template <class F>
void parallel_for(int64_t begin, int64_t end, int64_t grain, const F& f) {
  num_loop_threads();
  at::parallel_for(begin, end, grain, f);
}

/// Throws UsageError if OpenMP gives loops fewer threads than num_loop_threads(): torch's bf16 products are then wrong.
void check_num_threads();

}  // namespace caravan
