#pragma once

#include <cstdint>

#include <ATen/Parallel.h>

namespace caravan {

/// Before the first loop of a thread, and before its number of threads is read for one. Each library that is compiled
/// with torch's headers sets that number once on each thread, to what any thread set last: this keeps the thread's own.
void keep_num_threads();

/// at::parallel_for on the threads of this thread: calls f(first, last) for at most at::get_num_threads() parts of
/// [begin, end), of at least `grain` each if there are several. f may throw.
template <class F>
void parallel_for(int64_t begin, int64_t end, int64_t grain, const F& f) {
  keep_num_threads();
  at::parallel_for(begin, end, grain, f);
}

/// Throws UsageError if OpenMP gives loops fewer threads than at::get_num_threads(): torch's products of bf16 are then
/// wrong.
void check_num_threads();

}  // namespace caravan
