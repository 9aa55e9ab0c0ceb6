#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "caravan/base/memory/memory_counter.h"
#include "caravan/base/memory/page_loan.h"

namespace caravan {

struct HeldBlocks;

/// During its lifetime the meta tensors of this thread take blocks as tensors with memory do, which shows how much a
/// process holds for them: blocks are larger than requested, and cached when they are free. If it `ignores` them, the
/// memory of meta tensors and of libraries is not counted.
class HeldBlocksScope {
 public:
  explicit HeldBlocksScope(bool ignores = false);
  ~HeldBlocksScope();
  HeldBlocksScope(const HeldBlocksScope&) = delete;
  HeldBlocksScope& operator=(const HeldBlocksScope&) = delete;

  /// In the innermost scope of this thread, if any: holds `bytes` permanently, once for each key.
  static void hold_once(size_t key, int64_t bytes);
  /// In the innermost scope: holds `bytes` from here on, or releases them if negative.
  static void hold(int64_t bytes);
  int64_t peak_bytes() const;
  static bool is_ignored() noexcept;

 private:
  std::shared_ptr<HeldBlocks> blocks_, outer_;
};

/// A block without memory that is charged to the counter and the innermost HeldBlocksScope of the thread that makes it,
/// including its `header_bytes`.
class DryBlock {
 public:
  DryBlock(size_t bytes, size_t header_bytes);
  ~DryBlock();
  DryBlock(const DryBlock&) = delete;
  DryBlock& operator=(const DryBlock&) = delete;

  /// Of `bytes` from `offset` on, behind the header.
  PageLoan loan(size_t offset, size_t bytes) const;

 private:
  MemoryCharge charge_;
  std::shared_ptr<HeldBlocks> held_;  ///< null: not counted
  size_t header_bytes_ = 0;
  size_t rounded_bytes_ = 0;
  void* block_ = nullptr;
};

}  // namespace caravan
