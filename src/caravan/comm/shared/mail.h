#pragma once

#include "caravan/comm/shared/task.h"

namespace caravan::shared {

/// One message through the mailbox of an ordered pair of ranks. It is cut into slots; the first one carries what the
/// sender calls, which the receiver compares with its own call. A message that fits into the free slots is sent before
/// the receiver comes; a longer one waits for it. One of more than a slot that lies in an arena is not cut: the slot
/// says where it is, and the receiver copies it from there.
class Mail : public Task {
 public:
  using Task::Task;
  std::vector<int> missing() const final { return {operation().peer}; }

 protected:
  int64_t num_slots(int64_t total_bytes) const;
  int64_t slot_bytes(int64_t total_bytes) const;

  int64_t slot_ = 0;  // the next one of this message
};

class SendTask final : public Mail {
 public:
  using Mail::Mail;
  bool advance() override;

 private:
  /// Where the receiver finds the whole message; 0 if it is to be cut into slots.
  uint64_t place(int64_t total_bytes) const noexcept;
  bool wait_for_receiver(const Mailbox& box);

  bool is_lent_ = false;  // the receiver copies from the sender's memory
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
