#include "caravan/comm/store/log.h"

#include <fmt/format.h>

namespace caravan {

void StoreLog::refused(const std::string& peer, const std::string& reason) {
  if (!line_) return;
  const auto now = std::chrono::steady_clock::now();
  if (now - second_begins_ >= std::chrono::seconds(1)) {
    log_omitted();
    second_begins_ = now;
    num_in_second_ = 0;
  }
  if (num_in_second_ >= kMaxLinesPerSecond) {
    ++num_omitted_;
    return;
  }
  ++num_in_second_;
  line_(fmt::format("store: refused {}: {}", peer, reason));
}

std::chrono::steady_clock::time_point StoreLog::due() const noexcept {
  return num_omitted_ > 0 ? second_begins_ + std::chrono::seconds(1) : std::chrono::steady_clock::time_point::max();
}

void StoreLog::log_omitted() {
  if (num_omitted_ > 0) line_(fmt::format("store: refused {} more connections", num_omitted_));
  num_omitted_ = 0;
}

}  // namespace caravan
