#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "caravan/comm/descriptor.h"

namespace caravan::shared {

/// What one rank was last doing: written by it at each call, read by others when they report that it did not come. In
/// shared memory, zeroed at the start. A sequence lock: a reader that met a writer sees nothing rather than a mixture.
class Activity {
 public:
  void record(const Descriptor& call, std::string_view communicator) noexcept;
  void set_outstanding(uint32_t operations) noexcept { outstanding_.store(operations, std::memory_order_relaxed); }

  /// `rank 2 was last in all_reduce sum fp32 [10] "x" at a/b.cpp:12, operation 7 of "dp", not complete`.
  std::string text(int rank) const;

 private:
  struct Entry {
    Descriptor call;
    std::array<char, 32> communicator{};
  };
  static constexpr size_t kWords = sizeof(Entry) / sizeof(uint64_t);
  static_assert(sizeof(Entry) % sizeof(uint64_t) == 0);

  std::optional<Entry> read() const noexcept;

  std::atomic<uint32_t> version_;  // odd while it is written; 0: never
  std::atomic<uint32_t> outstanding_;
  std::array<std::atomic<uint64_t>, kWords> words_;
};

}  // namespace caravan::shared
