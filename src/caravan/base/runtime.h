#pragma once

#include <cstdint>
#include <functional>

namespace caravan {

struct RuntimeOptions {
  int intra_op_threads = 1;  ///< threads per rank for compute; inherited by rank threads that start later
  bool count_memory = true;  ///< install both allocators: for memory, and for the meta device
};

/// Process-wide settings of a program that uses Caravan. main() creates one before the first tensor and before rank
/// threads start; the library never creates one. During its lifetime torch's CPU memory comes from an allocator that
///   - charges every block to MemoryCounter::current() (also for ranks that are threads),
///   - caches freed blocks: returning them to the system costs up to 20 % of a step in page faults,
///   - aligns every block to 64 bytes.
/// Meta tensors are charged in the same way without memory, so a dry run counts what the run will use. Throws
/// UsageError if another Runtime exists, or if intra_op_threads < 1.
class Runtime {
 public:
  explicit Runtime(const RuntimeOptions& options = {});
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;
};

/// The size of the n-th allocation of host memory that `call` makes on this thread; an exception ends `call` there.
/// Returns 0 if it makes fewer allocations. Its memory is neither counted nor cached. Returns 0 without calling it if
/// no Runtime counts memory.
int64_t bytes_of_allocation(int n, const std::function<void()>& call);

}  // namespace caravan
