#pragma once

#include <array>
#include <cstdint>
#include <source_location>
#include <span>
#include <string>

#include "caravan/comm/work.h"

namespace caravan {

/// What a rank sends the others about its call: plain bytes without pointers, for shared memory and sockets.
struct Descriptor {
  uint8_t verb = 0;  ///< Verb, kSplitCall or kAllocateCall
  uint8_t op = 0;
  uint8_t dtype = 0;
  uint8_t algorithm = 0;  ///< 1 + Algorithm for a collective that is built on messages, else 0
  int32_t root = -1;      ///< of broadcast and reduce; the peer of send and recv
  int64_t count = 0;      ///< elements of the input; of the output for recv
  uint64_t sequence = 0;
  uint32_t line = 0;
  uint32_t segment_bytes = 0;  ///< of the algorithm
  std::array<char, 56> what{};
  std::array<char, 48> file{};  ///< its last folder and name
};
static_assert(sizeof(Descriptor) % sizeof(uint64_t) == 0);

/// Communicator::split and allocate_shared, which are collectives without a Verb.
inline constexpr uint8_t kSplitCall = kNumVerbs;
inline constexpr uint8_t kAllocateCall = kNumVerbs + 1;
/// "all_reduce", "split".
std::string_view call_name(uint8_t verb) noexcept;

Descriptor describe(const Operation& operation);
/// send or recv.
bool is_point_to_point(const Descriptor& call) noexcept;

/// `all_reduce sum fp32 [10] "gradient bucket 3" at techniques/data/ddp.cpp:12`.
std::string to_string(const Descriptor& descriptor);

/// "techniques/data/ddp.cpp:12".
std::string call_site(const std::source_location& where);

/// `"grad" as a name in a message`: the text with quotes, "" if there is none.
std::string quoted(std::string_view text);

/// One rank's side of a collective: its descriptor and its complete counts (see Operation), as it published them.
struct CallOf {
  const Descriptor* descriptor = nullptr;
  std::span<const int64_t> send_counts;
  std::span<const int64_t> recv_counts;
};

/// Compares the calls of all ranks for one collective: verb, op, dtype, root, counts, algorithm; for all_to_all also
/// that what a sends to b is what b receives from a. Returns "" if they match, else a description of both sides, the
/// same on every rank.
std::string difference(std::span<const CallOf> calls);

}  // namespace caravan
