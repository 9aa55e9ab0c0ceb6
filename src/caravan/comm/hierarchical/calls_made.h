#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "caravan/comm/descriptor.h"

namespace caravan::hierarchical {

/// How many collectives a rank has issued on a communicator, and sends to and recvs from each peer: what it tells when
/// it leaves, and when somebody asks who is missing.
class CallsMade {
 public:
  explicit CallsMade(int size) : size_(static_cast<size_t>(size)), counts_(1 + 2 * size_) {}

  void count(const Operation& operation) { ++counts_[slot(operation.verb, operation.peer)]; }
  void count_split() { ++counts_[0]; }

  std::string text() const {
    return {reinterpret_cast<const char*>(counts_.data()), counts_.size() * sizeof(uint64_t)};
  }
  /// Whether a rank that tells `text` has issued its side of `call` of rank `asking`.
  bool has(const std::string& text, const Descriptor& call, int asking) const {
    uint64_t count = 0;
    if (text.size() != counts_.size() * sizeof(count)) return true;  // cannot be told
    const Verb verb = static_cast<Verb>(call.verb);
    const size_t at = verb == Verb::send ? slot(Verb::recv, asking) : verb == Verb::recv ? slot(Verb::send, asking) : 0;
    std::memcpy(&count, text.data() + at * sizeof(count), sizeof(count));
    return count > call.sequence;
  }

 private:
  size_t slot(Verb verb, int peer) const {
    if (verb == Verb::send) return 1 + static_cast<size_t>(peer);
    return verb == Verb::recv ? 1 + size_ + static_cast<size_t>(peer) : 0;
  }

  size_t size_;
  std::vector<uint64_t> counts_;
};

}  // namespace caravan::hierarchical
