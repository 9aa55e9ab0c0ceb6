#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "caravan/comm/c10d/work.h"
#include "caravan/comm/communicator.h"

namespace caravan {

/// Point-to-point messages of c10d, which have tags and may be received from any rank, over those of a communicator,
/// which arrive in the order sent. Each message is sent as two: an envelope with tag and size, and the payload.
///
/// Matching is MPI's: a recv takes the first message, in the order sent, of its source (or of any) and its tag; of two
/// recvs that fit a message, the one issued first takes it. A message that fits no recv is stored. An envelope is
/// received only if a recv names its sender, or if a message is known to have arrived, so a recv from any source leaves
/// no pending receive for ranks whose message it did not take.
///
/// Used under the lock of a C10dQueue.
class C10dMessages {
 public:
  static constexpr int kAnySource = -1;

  explicit C10dMessages(Communicator& communicator);

  /// The operations of a send.
  std::vector<Work> send(const at::Tensor& tensor, int to, int tag);
  /// Begins `work` once a message from `from` with this tag has arrived for `tensor`, which is contiguous. Throws
  /// UsageError for kAnySource over a back-end that cannot see what has arrived.
  void receive(const c10::intrusive_ptr<C10dWork>& work, int from, int tag, const at::Tensor& tensor);

  /// Begins the receives whose messages have arrived. Makes progress; errors go to the works.
  void advance();
  /// Whether the caller may block in the communicator until `work` is complete: nothing except perhaps `work` itself
  /// waits for a message, and only from one rank. Otherwise advance() must be called repeatedly, since a sender may
  /// wait for a receive that begins there.
  bool can_block_for(const C10dWork& work) const;
  /// Whether `work` is a receive from any source whose message has not arrived.
  bool takes_any(const C10dWork& work) const;
  /// Waits until a message with any tag has arrived from the rank that `work` receives from.
  void wait_for_envelope(const C10dWork& work);
  /// Ends a receive whose message has not arrived.
  void fail(const C10dWork& work, const std::exception_ptr& error);

 private:
  struct Envelope {
    int64_t tag = 0;
    int64_t dtype = 0;
    int64_t count = 0;
  };
  struct Pending {
    c10::intrusive_ptr<C10dWork> work;
    int from = kAnySource;
    int tag = 0;
    at::Tensor tensor;
  };
  /// A message that arrived before a recv that matches it.
  struct Stored {
    Envelope envelope;
    std::shared_ptr<std::vector<std::byte>> bytes;
    Work payload;
  };
  struct Peer {
    std::shared_ptr<Envelope> envelope;  ///< null: no receive of one is outstanding
    Work receive;
    std::deque<Stored> stored;
  };

  bool needs_envelope(int rank) const;
  bool advance(int rank);
  void accept(int rank, const Envelope& envelope);
  bool take_stored(int rank, const Pending& pending);
  void start(const Pending& pending, int rank, std::vector<Work> parts, std::exception_ptr error);
  void fail_all_from(int rank, const std::exception_ptr& error);

  Communicator& comm_;
  std::vector<Peer> peers_;
  std::deque<Pending> pending_;  ///< in the order issued
};

}  // namespace caravan
