#include "caravan/memory/disk/space.h"

#include <iterator>

namespace caravan::disk {

std::optional<int64_t> Space::take(int64_t bytes) {
  for (auto hole = free_.begin(); hole != free_.end(); ++hole) {
    if (hole->second < bytes) continue;
    const auto [offset, length] = *hole;
    free_.erase(hole);
    if (length > bytes) free_.emplace(offset + bytes, length - bytes);
    return offset;
  }
  return std::nullopt;
}

void Space::give(int64_t offset, int64_t bytes) {
  const auto after = free_.lower_bound(offset);
  if (after != free_.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second == offset) {
      offset = before->first;
      bytes += before->second;
      free_.erase(before);
    }
  }
  if (after != free_.end() && after->first == offset + bytes) {
    bytes += after->second;
    free_.erase(after);
  }
  free_.emplace(offset, bytes);
}

int64_t Space::missing(int64_t bytes) const {
  if (free_.empty()) return bytes;
  const auto& [offset, length] = *free_.rbegin();
  return offset + length == size_ ? bytes - length : bytes;
}

void Space::grow(int64_t bytes) {
  give(size_, bytes);
  size_ += bytes;
}

}  // namespace caravan::disk
