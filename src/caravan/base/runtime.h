#pragma once

#include <cstdint>
#include <functional>

namespace caravan {

struct RuntimeOptions {
  int intra_op_threads = 1;  ///< threads per rank for compute; inherited by rank threads that start later
  bool count_memory = true;  ///< install both allocators: for memory, and for the meta device
};

/// The process-wide settings of a program that uses Caravan. main() makes one before the first tensor and before rank
/// threads start; the library never makes one itself. During its lifetime torch's CPU memory comes from an allocator
/// that
///   - charges every block to MemoryCounter::current() (also for ranks that are threads),
///   - caches freed blocks: returning them to the system costs up to 20 % of a step in page faults,
///   - aligns every block to 64 bytes.
/// Tensors on the meta device are charged alike and have no memory, so a dry run counts what the run will take.
/// Throws UsageError if another Runtime exists, or if intra_op_threads < 1.
class Runtime {
 public:
  explicit Runtime(const RuntimeOptions& options = {});
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;
};

/// What `call` asks for at its n-th allocation of host memory on this thread, at which an exception ends it; 0 if it
/// ends before. Until then its memory is neither counted nor cached. Returns 0 without a call if no Runtime counts
/// memory.
int64_t bytes_of_allocation(int n, const std::function<void()>& call);

}  // namespace caravan
