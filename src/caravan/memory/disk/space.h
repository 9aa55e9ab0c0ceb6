#pragma once

#include <cstdint>
#include <map>
#include <optional>

namespace caravan::disk {

/// Which bytes of a file are in use. Not thread-safe.
class Space {
 public:
  /// The offset of `bytes` that were free and now are not, the first that fit; nothing if none do.
  std::optional<int64_t> take(int64_t bytes);
  /// Gives them back; joined with free bytes beside them.
  void give(int64_t offset, int64_t bytes);
  /// By how much the file has to grow before `bytes` fit.
  int64_t missing(int64_t bytes) const;
  /// The file has grown.
  void grow(int64_t bytes);
  int64_t size() const noexcept { return size_; }

 private:
  int64_t size_ = 0;
  std::map<int64_t, int64_t> free_;  ///< bytes by offset
};

}  // namespace caravan::disk
