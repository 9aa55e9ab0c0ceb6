#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "caravan/base/memory/memory_counter.h"

namespace caravan {

struct HeldBlocks;

/// During its lifetime the meta tensors of this thread take blocks as tensors with memory do, which tells how much a
/// process holds for them: blocks are larger than what is asked for, and kept when they are free. If it `ignores` them,
/// nobody asks for their memory, nor libraries for theirs.
class HeldBlocksScope {
 public:
  explicit HeldBlocksScope(bool ignores = false);
  ~HeldBlocksScope();
  HeldBlocksScope(const HeldBlocksScope&) = delete;
  HeldBlocksScope& operator=(const HeldBlocksScope&) = delete;

  /// In the innermost scope of this thread, if there is one: so much is held for good for what has this key.
  static void hold_once(size_t key, int64_t bytes);
  /// In the innermost scope: so much is held from here on, or no longer if it is negative.
  static void hold(int64_t bytes);
  int64_t peak_bytes() const;
  static bool is_ignored() noexcept;

 private:
  std::shared_ptr<HeldBlocks> blocks_, outer_;
};

/// A block that is charged, without memory, to the counter and the innermost HeldBlocksScope of the thread that makes
/// it: `header_bytes` are in the block too.
class DryBlock {
 public:
  DryBlock(size_t bytes, size_t header_bytes);
  ~DryBlock();
  DryBlock(const DryBlock&) = delete;
  DryBlock& operator=(const DryBlock&) = delete;

 private:
  MemoryCharge charge_;
  std::shared_ptr<HeldBlocks> held_;  ///< null: nobody asks
  size_t rounded_bytes_ = 0;
  void* block_ = nullptr;
};

}  // namespace caravan
