#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "caravan/comm/backends/shared/peers/failure.h"
#include "caravan/comm/calls/descriptor.h"

namespace caravan::shared {

/// What one rank publishes in the first round of an operation.
struct LineData {
  static constexpr size_t kPayloadBytes = 24;

  uint64_t call;  ///< verb, op, dtype and root; see call_signature
  uint64_t size;  ///< the count, or a hash of the counts, that must be equal on all ranks
  uint64_t in;    ///< offset of its input in the segment; 0: not in an arena
  uint64_t out;   ///< offset of its result in the segment; 0: not in an arena
  std::array<std::byte, kPayloadBytes> payload;
};

/// A single cache line, so that one transfer between two cores carries the flag, the call and a small message. `data`
/// is written before `round` and read after it.
struct alignas(64) Line {
  std::atomic<uint64_t> round;  ///< the round that this line belongs to
  LineData data;
};
static_assert(sizeof(Line) == 64);

struct RegionControl {
  FailureRecord failure;           ///< the communicator is dead
  std::atomic<uint32_t> num_left;  ///< the last rank to leave frees the region
};

inline constexpr size_t kMailSlots = 2;

/// Messages from one rank to another, in order, cut into slots.
struct Mailbox {
  alignas(64) std::atomic<uint64_t> written;            ///< slots, by the sender
  alignas(64) std::atomic<uint64_t> consumed;           ///< slots, by the receiver
  alignas(64) std::array<Descriptor, kMailSlots> call;  ///< in the first slot of each message
  std::array<uint64_t, kMailSlots> offset;              ///< of the whole message in the segment; 0: it comes in slots
};

/// The memory of one communicator of `size` ranks: control, flags, and twice (for even and odd rounds) a line, a call
/// record and a staging buffer for each rank, then a mailbox for each ordered pair. Zeroed memory is its initial state.
/// A non-owning view, cheap to copy.
class Region {
 public:
  Region() = default;
  Region(std::byte* base, int size);
  /// Grows with `size`, so a slot of the world's size holds the region of every communicator split from it.
  static size_t bytes(int size);

  RegionControl& control() const noexcept { return *reinterpret_cast<RegionControl*>(base_); }
  Line& line(int rank, uint64_t round) const noexcept {
    return reinterpret_cast<Line*>(base_ + at_.lines)[static_cast<size_t>(rank) * 2 + round % 2];
  }
  /// Set when `rank` has destroyed the communicator.
  std::atomic<uint32_t>& left(int rank) const noexcept;

  /// The full call of `rank` in `round`: its descriptor, then send_counts and recv_counts, `size` numbers each.
  Descriptor& call(int rank, uint64_t round) const noexcept;
  std::span<int64_t> send_counts(int rank, uint64_t round) const noexcept;
  std::span<int64_t> recv_counts(int rank, uint64_t round) const noexcept;

  /// `staging_bytes(size)` bytes, 64-byte aligned.
  std::byte* staging(int rank, uint64_t round) const noexcept {
    return base_ + at_.staging + (static_cast<size_t>(rank) * 2 + round % 2) * staging_bytes(size_);
  }
  static size_t staging_bytes(int size) noexcept;

  Mailbox& mailbox(int from, int to) const noexcept;
  /// The `mail_bytes(size)` bytes of slot `slot` modulo kMailSlots.
  std::byte* mail(int from, int to, uint64_t slot) const noexcept;
  static size_t mail_bytes(int size) noexcept;

 private:
  /// Offsets of the parts, in bytes from the base.
  struct Offsets {
    explicit Offsets(int size);
    size_t lines, left, calls, staging, mailboxes, end;
  };

  std::byte* base_ = nullptr;
  int size_ = 0;
  Offsets at_{0};
};

}  // namespace caravan::shared
