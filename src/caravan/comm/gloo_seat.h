#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "caravan/comm/descriptor.h"
#include "caravan/comm/gloo_transport.h"

namespace caravan::gloo {

/// What a message belongs to, within one communicator and pair of ranks.
enum class Channel : int { collective, mail, mail_call, mail_answer, goodbye };

/// What each rank of the world last showed this one that it called; told when it is late.
class LastCalls {
 public:
  explicit LastCalls(int world_size) : entries_(static_cast<size_t>(world_size)) {}
  void note(int world_rank, const Descriptor& call, const std::string& communicator);
  /// "rank 2 last called barrier at train/loop.cpp:80, operation 7 of "dp", as far as this rank knows".
  std::string text(int world_rank) const;

 private:
  struct Entry {
    Descriptor call;
    std::string communicator;  ///< "": none yet
  };
  mutable std::mutex mutex_;
  std::vector<Entry> entries_;
};

/// One rank's place in one communicator.
struct Seat {
  std::shared_ptr<Transport> transport;
  int id = 0;  ///< of the communicator: no two that share a pair of ranks have the same
  int rank = 0;
  int size = 1;
  std::string name;
  std::vector<int> world_ranks;  ///< of the ranks of this communicator
  bool check = true;
  std::shared_ptr<LastCalls> last_calls;

  int tag(Channel channel) const noexcept { return id * 8 + static_cast<int>(channel); }
  /// `rank 1 of 4 of "tp"`, for errors.
  std::string text() const;
};

}  // namespace caravan::gloo
