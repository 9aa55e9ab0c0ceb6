#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "caravan/comm/calls/descriptor.h"

namespace caravan {

/// The number of collectives that a rank has issued on a communicator, and of sends to and recvs from each peer. The
/// rank sends it to its peers when it destroys the communicator, and when one of them asks who is late.
class CallCounts {
 public:
  explicit CallCounts(int size) : size_(static_cast<size_t>(size)), counts_(1 + 2 * size_) {}

  void count(const Operation& operation) { ++counts_[index(static_cast<uint8_t>(operation.verb), operation.peer)]; }
  void count(const Descriptor& call) { ++counts_[index(call.verb, call.root)]; }

  /// For the other ranks, which read it with has_issued().
  std::string bytes() const {
    return {reinterpret_cast<const char*>(counts_.data()), counts_.size() * sizeof(uint64_t)};
  }
  /// Whether the rank whose counts are `bytes` has issued its side of `call`, a call of rank `asking`. True if `bytes`
  /// are not readable.
  bool has_issued(const std::string& bytes, const Descriptor& call, int asking) const {
    uint64_t count = 0;
    if (bytes.size() != counts_.size() * sizeof(count)) return true;
    const bool is_send = call.verb == static_cast<uint8_t>(Verb::send);
    const bool is_recv = call.verb == static_cast<uint8_t>(Verb::recv);
    const size_t at = is_send   ? index(static_cast<uint8_t>(Verb::recv), asking)
                      : is_recv ? index(static_cast<uint8_t>(Verb::send), asking)
                                : 0;
    std::memcpy(&count, bytes.data() + at * sizeof(count), sizeof(count));
    return count > call.sequence;
  }

 private:
  size_t index(uint8_t verb, int peer) const {
    if (verb == static_cast<uint8_t>(Verb::send)) return 1 + static_cast<size_t>(peer);
    return verb == static_cast<uint8_t>(Verb::recv) ? 1 + size_ + static_cast<size_t>(peer) : 0;
  }

  size_t size_;
  std::vector<uint64_t> counts_;
};

}  // namespace caravan
