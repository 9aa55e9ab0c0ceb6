#include "caravan/comm/store_log.h"

#include <fmt/format.h>

namespace caravan {

void StoreLog::refused(const std::string& peer, const std::string& reason) {
  if (!line_) return;
  const auto now = std::chrono::steady_clock::now();
  if (now - second_begins_ >= std::chrono::seconds(1)) {
    tell_left_out();
    second_begins_ = now;
    in_this_second_ = 0;
  }
  if (in_this_second_ >= kLinesASecond) {
    ++left_out_;
    return;
  }
  ++in_this_second_;
  line_(fmt::format("store: refused {}: {}", peer, reason));
}

std::chrono::steady_clock::time_point StoreLog::due() const noexcept {
  return left_out_ > 0 ? second_begins_ + std::chrono::seconds(1) : std::chrono::steady_clock::time_point::max();
}

void StoreLog::tell_left_out() {
  if (left_out_ > 0) line_(fmt::format("store: refused {} more connections", left_out_));
  left_out_ = 0;
}

}  // namespace caravan
