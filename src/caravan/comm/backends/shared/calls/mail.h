#pragma once

#include "caravan/comm/backends/shared/shared_task.h"

namespace caravan::shared {

/// A message through the mailbox of an ordered pair of ranks. It is cut into slots; the first one carries the sender's
/// call, which the receiver compares with its own. A message that fits into the free slots does not wait for the
/// receiver; a longer one does. A message of more than one slot that lies in an arena is not copied into slots: the
/// receiver copies it from the sender's buffer, whose offset is in the slot.
class Mail : public SharedTask {
 public:
  using SharedTask::SharedTask;
  std::vector<int> missing() const final { return {operation().peer}; }

 protected:
  int64_t num_slots(int64_t total_bytes) const;
  int64_t slot_bytes(int64_t total_bytes) const;

  int64_t slot_ = 0;  // index of the next slot of this message
};

class SendTask final : public Mail {
 public:
  using Mail::Mail;
  bool advance() override;

 private:
  /// The offset of the message if the receiver copies it from the sender's buffer; 0 if it goes through slots.
  uint64_t buffer_offset(int64_t total_bytes) const noexcept;
  bool wait_for_receiver(const Mailbox& box);

  bool is_lent_ = false;  // the receiver copies from the sender's buffer
  uint64_t lent_slot_ = 0;
};

class RecvTask final : public Mail {
 public:
  using Mail::Mail;
  bool advance() override;

 private:
  void compare_calls(const Descriptor& sent) const;
};

}  // namespace caravan::shared
