#pragma once

#include <memory>

namespace caravan {

struct RuntimeOptions {
  int intra_op_threads = 1;  ///< threads of one rank's arithmetic; inherited by rank threads that start later
  bool count_memory = true;  ///< install the allocator that counts bytes per rank and keeps freed memory
};

/// The process-wide settings of a program on Caravan, made once by main() before the first tensor and before rank
/// threads start; the library never makes one on its own. While it lives, torch's CPU memory comes from an allocator
/// that
///   - charges every block to MemoryCounter::current() (also for ranks that are threads),
///   - keeps freed blocks and hands them out again: giving them back to the kernel costs up to 20 % of a step in page
///   faults,
///   - aligns every block on 64 bytes.
/// Throws UsageError if another Runtime lives, or if intra_op_threads < 1.
class Runtime {
 public:
  explicit Runtime(const RuntimeOptions& options = {});
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;
};

}  // namespace caravan
