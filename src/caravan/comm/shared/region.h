#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "caravan/comm/descriptor.h"
#include "caravan/comm/shared/failure.h"

namespace caravan::shared {

/// How far one rank is in the rounds of a communicator's collectives. Rounds count from 1 over all of them.
struct alignas(64) RankFlags {
  std::atomic<uint64_t> posted;  ///< the last round whose chunk and call record it has written
  std::atomic<uint64_t> read;    ///< the last round of which it has read everybody's chunk
  std::atomic<uint32_t> left;    ///< its communicator is destroyed
};

struct RegionControl {
  FailureRecord failure;           ///< the communicator is dead
  std::atomic<uint32_t> num_left;  ///< the last one gives the region back
};

inline constexpr size_t kMailSlots = 2;

/// Messages from one rank to another, in order, cut into slots.
struct Mailbox {
  alignas(64) std::atomic<uint64_t> written;            ///< slots, by the sender
  alignas(64) std::atomic<uint64_t> consumed;           ///< slots, by the receiver
  alignas(64) std::array<Descriptor, kMailSlots> call;  ///< in the first slot of each message
};

/// The memory of one communicator of `size` ranks: control, flags, and twice (for even and odd rounds) a call record
/// and a staging buffer for each rank, then a mailbox for each ordered pair. Zeroed memory is its initial state.
/// A view: cheap to copy, does not own.
class Region {
 public:
  Region() = default;
  Region(std::byte* base, int size);
  /// Grows with `size`, so a slot for the world holds the region of every part of it.
  static size_t bytes(int size);

  RegionControl& control() const noexcept { return *reinterpret_cast<RegionControl*>(base_); }
  RankFlags& flags(int rank) const noexcept;

  /// What `rank` calls in `round`: its descriptor, then its send_counts and its recv_counts, `size` numbers each.
  Descriptor& call(int rank, uint64_t round) const noexcept;
  std::span<int64_t> send_counts(int rank, uint64_t round) const noexcept;
  std::span<int64_t> recv_counts(int rank, uint64_t round) const noexcept;

  /// `staging_bytes(size)` bytes, 64-byte aligned.
  std::byte* staging(int rank, uint64_t round) const noexcept;
  static size_t staging_bytes(int size) noexcept;

  Mailbox& mailbox(int from, int to) const noexcept;
  /// `mail_bytes(size)` bytes of slot number `slot` (any count, taken modulo kMailSlots).
  std::byte* mail(int from, int to, uint64_t slot) const noexcept;
  static size_t mail_bytes(int size) noexcept;

 private:
  /// Where the parts begin.
  struct Offsets {
    explicit Offsets(int size);
    size_t flags, calls, staging, mailboxes, end;
  };

  std::byte* base_ = nullptr;
  int size_ = 0;
  Offsets at_{0};
};

}  // namespace caravan::shared
