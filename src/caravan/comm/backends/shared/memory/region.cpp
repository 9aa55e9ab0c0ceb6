#include "caravan/comm/backends/shared/memory/region.h"

#include <algorithm>

#include "caravan/comm/backends/shared/memory/pages.h"

namespace caravan::shared {
namespace {

constexpr size_t kLine = 64;
constexpr size_t kStagingBytes = 256 * 1024;

size_t round_up(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }
size_t call_bytes(size_t n) { return round_up(sizeof(Descriptor) + 2 * n * sizeof(int64_t), kLine); }
size_t mailbox_bytes(int size) { return round_up(sizeof(Mailbox), kLine) + kMailSlots * Region::mail_bytes(size); }

}  // namespace

Region::Offsets::Offsets(int size) {
  const size_t n = static_cast<size_t>(size);
  lines = round_up(sizeof(RegionControl), 2 * kLine);
  left = lines + 2 * n * sizeof(Line);
  calls = left + n * kLine;
  staging = round_up(calls + 2 * n * call_bytes(n), kPage);
  mailboxes = staging + 2 * n * staging_bytes(size);
  end = mailboxes + n * n * mailbox_bytes(size);
}

Region::Region(std::byte* base, int size) : base_(base), size_(size), at_(size) {}

size_t Region::bytes(int size) { return Offsets(size).end; }

size_t Region::staging_bytes(int size) noexcept {
  return std::max(kStagingBytes, static_cast<size_t>(size) * kPage);  // reduce_scatter cuts it into `size` blocks
}

size_t Region::mail_bytes(int size) noexcept {
  return std::clamp<size_t>(round_up(512 * 1024 / static_cast<size_t>(std::max(size, 1)), kPage), kPage, 64 * 1024);
}

std::atomic<uint32_t>& Region::left(int rank) const noexcept {
  return *reinterpret_cast<std::atomic<uint32_t>*>(base_ + at_.left + static_cast<size_t>(rank) * kLine);
}

Descriptor& Region::call(int rank, uint64_t round) const noexcept {
  const size_t n = static_cast<size_t>(size_);
  const size_t index = static_cast<size_t>(rank) * 2 + round % 2;
  return *reinterpret_cast<Descriptor*>(base_ + at_.calls + index * call_bytes(n));
}

std::span<int64_t> Region::send_counts(int rank, uint64_t round) const noexcept {
  auto* counts = reinterpret_cast<int64_t*>(&call(rank, round) + 1);
  return {counts, static_cast<size_t>(size_)};
}

std::span<int64_t> Region::recv_counts(int rank, uint64_t round) const noexcept {
  auto* counts = reinterpret_cast<int64_t*>(&call(rank, round) + 1);
  return {counts + size_, static_cast<size_t>(size_)};
}

Mailbox& Region::mailbox(int from, int to) const noexcept {
  const size_t index = static_cast<size_t>(from) * static_cast<size_t>(size_) + static_cast<size_t>(to);
  return *reinterpret_cast<Mailbox*>(base_ + at_.mailboxes + index * mailbox_bytes(size_));
}

std::byte* Region::mail(int from, int to, uint64_t slot) const noexcept {
  auto* box = reinterpret_cast<std::byte*>(&mailbox(from, to));
  return box + round_up(sizeof(Mailbox), kLine) + slot % kMailSlots * mail_bytes(size_);
}

}  // namespace caravan::shared
