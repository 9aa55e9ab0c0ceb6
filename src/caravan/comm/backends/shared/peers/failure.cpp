#include "caravan/comm/backends/shared/peers/failure.h"

#include <algorithm>
#include <cstring>

namespace caravan::shared {

bool FailureRecord::publish(int rank, std::string_view text) noexcept {
  uint32_t expected = 0;
  if (!state_.compare_exchange_strong(expected, 1, std::memory_order_acq_rel)) return false;
  rank_ = rank;
  const size_t length = std::min(text.size(), text_.size() - 1);
  std::memcpy(text_.data(), text.data(), length);
  text_[length] = '\0';
  state_.store(kReady, std::memory_order_seq_cst);
  return true;
}

}  // namespace caravan::shared
