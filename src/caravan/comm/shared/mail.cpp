#include "caravan/comm/shared/mail.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "caravan/comm/shared/wait_errors.h"

namespace caravan::shared {

int64_t Mail::num_slots(int64_t total_bytes) const {
  const int64_t each = static_cast<int64_t>(Region::mail_bytes(seat_.size));
  return std::max<int64_t>((total_bytes + each - 1) / each, 1);
}

int64_t Mail::slot_bytes(int64_t total_bytes) const {
  const int64_t each = static_cast<int64_t>(Region::mail_bytes(seat_.size));
  return std::min(each, total_bytes - slot_ * each);
}

bool SendTask::advance() {
  const Operation& op = operation();
  Mailbox& box = seat_.region.mailbox(seat_.rank, op.peer);
  const int64_t total = op.in.count * size_bytes(op.dtype);
  const int64_t each = static_cast<int64_t>(Region::mail_bytes(seat_.size));
  uint64_t written = box.written.load(std::memory_order_relaxed);
  bool moved = false;
  while (slot_ < num_slots(total) && written - box.consumed.load(std::memory_order_seq_cst) < kMailSlots) {
    if (slot_ == 0) box.call[written % kMailSlots] = call();
    if (const int64_t bytes = slot_bytes(total); bytes > 0) {
      std::memcpy(seat_.region.mail(seat_.rank, op.peer, written),
                  static_cast<const std::byte*>(op.in.data) + slot_ * each, static_cast<size_t>(bytes));
    }
    box.written.store(++written, std::memory_order_seq_cst);  // see Note [no lost wake-up]
    seat_.ring(op.peer);
    ++slot_;
    moved = true;
  }
  finished_ = slot_ == num_slots(total);
  return moved;
}

bool RecvTask::advance() {
  const Operation& op = operation();
  Mailbox& box = seat_.region.mailbox(op.peer, seat_.rank);
  const int64_t total = op.out.count * size_bytes(op.dtype);
  const int64_t each = static_cast<int64_t>(Region::mail_bytes(seat_.size));
  uint64_t consumed = box.consumed.load(std::memory_order_relaxed);
  bool moved = false;
  while (slot_ < num_slots(total) && consumed < box.written.load(std::memory_order_seq_cst)) {
    if (slot_ == 0) compare_calls(box.call[consumed % kMailSlots]);
    if (const int64_t bytes = slot_bytes(total); bytes > 0) {
      std::memcpy(static_cast<std::byte*>(op.out.data) + slot_ * each, seat_.region.mail(op.peer, seat_.rank, consumed),
                  static_cast<size_t>(bytes));
    }
    box.consumed.store(++consumed, std::memory_order_seq_cst);
    seat_.ring(op.peer);
    ++slot_;
    moved = true;
  }
  finished_ = slot_ == num_slots(total);
  return moved;
}

void RecvTask::compare_calls(const Descriptor& sent) const {
  const Descriptor own = call();
  if (sent.dtype == own.dtype && sent.count == own.count) return;
  std::rethrow_exception(mismatch_error(seat_, own,
                                        fmt::format("the calls of sender and receiver differ: rank {}: {}; rank {}: {}",
                                                    operation().peer, to_string(sent), seat_.rank, to_string(own))));
}

}  // namespace caravan::shared
