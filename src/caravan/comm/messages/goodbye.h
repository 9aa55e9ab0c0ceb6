#pragma once

#include <cstddef>

#include "caravan/comm/messages/exchange.h"
#include "caravan/comm/messages/seat.h"

namespace caravan::messages {

/// One byte from everybody to everybody: when it has come, nothing else is on its way.
class Goodbye final : public Job {
 public:
  /// `is_clean`: whether every message of this rank was received, as far as it knows.
  Goodbye(Seat seat, bool is_clean);
  void run(Lane& lane) override;
  /// Once it has ended without error: whether all ranks were clean.
  bool all_are_clean() const noexcept { return all_are_clean_; }

 private:
  Seat seat_;
  std::byte own_;
  bool all_are_clean_ = false;
};

}  // namespace caravan::messages
