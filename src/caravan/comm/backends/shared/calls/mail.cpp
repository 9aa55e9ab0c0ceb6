#include "caravan/comm/backends/shared/calls/mail.h"

#include <algorithm>
#include <cstring>

#include "caravan/comm/calls/call_errors.h"

namespace caravan::shared {

int64_t Mail::num_slots(int64_t total_bytes) const {
  const int64_t each = static_cast<int64_t>(Region::mail_bytes(state_.size));
  return std::max<int64_t>((total_bytes + each - 1) / each, 1);
}

int64_t Mail::slot_bytes(int64_t total_bytes) const {
  const int64_t each = static_cast<int64_t>(Region::mail_bytes(state_.size));
  return std::min(each, total_bytes - slot_ * each);
}

uint64_t SendTask::buffer_offset(int64_t total_bytes) const noexcept {
  if (num_slots(total_bytes) == 1) return 0;
  return state_.segment->offset_of(operation().in.data, static_cast<size_t>(total_bytes));
}

bool SendTask::wait_for_receiver(const Mailbox& box) {
  finished_ = box.consumed.load(std::memory_order_acquire) > lent_slot_;
  return finished_;
}

bool SendTask::advance() {
  const Operation& op = operation();
  Mailbox& box = state_.region.mailbox(state_.rank, op.peer);
  if (is_lent_) return wait_for_receiver(box);
  const int64_t total = op.in.count * size_bytes(op.dtype);
  const int64_t each = static_cast<int64_t>(Region::mail_bytes(state_.size));
  uint64_t written = box.written.load(std::memory_order_relaxed);
  bool moved = false;
  while (slot_ < num_slots(total) && written - box.consumed.load(std::memory_order_acquire) < kMailSlots) {
    if (slot_ == 0) {
      box.call[written % kMailSlots] = call();
      box.offset[written % kMailSlots] = buffer_offset(total);
      is_lent_ = box.offset[written % kMailSlots] != 0;
      lent_slot_ = written;
    }
    if (const int64_t bytes = slot_bytes(total); bytes > 0 && !is_lent_) {
      std::memcpy(state_.region.mail(state_.rank, op.peer, written),
                  static_cast<const std::byte*>(op.in.data) + slot_ * each, static_cast<size_t>(bytes));
    }
    Doorbell::publish(box.written, ++written);
    state_.ring(op.peer);
    moved = true;
    if (is_lent_) return true;
    ++slot_;
  }
  finished_ = slot_ == num_slots(total);
  return moved;
}

bool RecvTask::advance() {
  const Operation& op = operation();
  Mailbox& box = state_.region.mailbox(op.peer, state_.rank);
  const int64_t total = op.out.count * size_bytes(op.dtype);
  const int64_t each = static_cast<int64_t>(Region::mail_bytes(state_.size));
  uint64_t consumed = box.consumed.load(std::memory_order_relaxed);
  bool moved = false;
  while (slot_ < num_slots(total) && consumed < box.written.load(std::memory_order_acquire)) {
    if (slot_ == 0) compare_calls(box.call[consumed % kMailSlots]);
    const uint64_t offset = slot_ == 0 ? box.offset[consumed % kMailSlots] : 0;
    if (offset != 0) {
      state_.arena->populate_of_peer(offset, static_cast<size_t>(total));
      std::memcpy(op.out.data, state_.segment->at(offset), static_cast<size_t>(total));
      slot_ = num_slots(total);
    } else {
      if (const int64_t bytes = slot_bytes(total); bytes > 0) {
        std::memcpy(static_cast<std::byte*>(op.out.data) + slot_ * each,
                    state_.region.mail(op.peer, state_.rank, consumed), static_cast<size_t>(bytes));
      }
      ++slot_;
    }
    Doorbell::publish(box.consumed, ++consumed);
    state_.ring(op.peer);
    moved = true;
  }
  finished_ = slot_ == num_slots(total);
  return moved;
}

void RecvTask::compare_calls(const Descriptor& sent) const {
  const Descriptor own = call();
  const auto error = message_error(state_, sent, operation().peer, own, state_.rank, state_.compares_labels);
  if (error != nullptr) std::rethrow_exception(error);
}

}  // namespace caravan::shared
