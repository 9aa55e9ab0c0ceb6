#pragma once

#include <cstddef>

#include "caravan/comm/backends/messages/group.h"
#include "caravan/comm/backends/messages/message_exchange.h"

namespace caravan::messages {

/// The shutdown of a world: every rank sends every other one a notice of one byte. Once all have arrived, no message is
/// in flight.
class Shutdown final : public MessageTask {
 public:
  /// `is_clean`: whether every message of this rank was received, as far as it knows.
  Shutdown(Group group, bool is_clean);
  void run(TaskThread& thread) override;
  /// Once it has ended without error: whether all ranks were clean.
  bool all_are_clean() const noexcept { return all_are_clean_; }

 private:
  Group group_;
  std::byte notice_;
  bool all_are_clean_ = false;
};

}  // namespace caravan::messages
