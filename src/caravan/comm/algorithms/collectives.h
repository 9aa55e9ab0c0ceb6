#pragma once

#include <memory>
#include <span>

#include "caravan/comm/algorithms/selection.h"
#include "caravan/comm/communicator.h"

namespace caravan::algorithms {

// Collectives made of the sends and recvs of any communicator, by the algorithm that is named; for measurements, and
// where an algorithm must be another than the back-end's own. Arguments, aliasing and errors are those of the verb of
// Communicator; all ranks name the same algorithm. Results: the sum's order is fixed by the ranks and the algorithm,
// and all ranks that get a value get the same bits; `direct` gives the bits of the verb. 16-bit floats are added in
// fp32 and rounded once. Bytes sent: the header of the algorithm; comm.traffic() counts the messages.
//
// Their messages take part in the order of the communicator's sends and recvs. Therefore one collective at a time: wait
// for each before the next one, and before sends and recvs of your own (or issue these in the same place on both
// ranks). Throw UsageError if the algorithm does not serve the verb, naming those that do.

/// Handle of one collective. It goes on in done() and wait() only.
class Pending {
 public:
  Pending(Pending&&) noexcept;
  Pending& operator=(Pending&&) = delete;
  /// Waits, unless an exception passes; errors are those of the communicator's next call.
  ~Pending();

  void wait();
  bool done();

 private:
  friend Pending start(Communicator& comm, Operation operation, const Choice& choice, const Call& call);
  struct State;
  explicit Pending(std::shared_ptr<State> state);

  std::shared_ptr<State> state_;
};

Pending all_reduce_async(Communicator& comm, ConstBuffer in, Buffer out, ReduceOp op, const Choice& choice,
                         const Call& call = {});
Pending all_gather_async(Communicator& comm, ConstBuffer in, Buffer out, std::span<const int64_t> counts,
                         const Choice& choice, const Call& call = {});
Pending reduce_scatter_async(Communicator& comm, ConstBuffer in, Buffer out, ReduceOp op,
                             std::span<const int64_t> counts, const Choice& choice, const Call& call = {});
Pending all_to_all_async(Communicator& comm, ConstBuffer in, Buffer out, std::span<const int64_t> send_counts,
                         std::span<const int64_t> recv_counts, const Choice& choice, const Call& call = {});
Pending broadcast_async(Communicator& comm, Buffer buffer, int root, const Choice& choice, const Call& call = {});
Pending reduce_async(Communicator& comm, ConstBuffer in, Buffer out, ReduceOp op, int root, const Choice& choice,
                     const Call& call = {});

inline void all_reduce(Communicator& comm, ConstBuffer in, Buffer out, ReduceOp op, const Choice& choice,
                       const Call& call = {}) {
  all_reduce_async(comm, in, out, op, choice, call).wait();
}
inline void all_gather(Communicator& comm, ConstBuffer in, Buffer out, std::span<const int64_t> counts,
                       const Choice& choice, const Call& call = {}) {
  all_gather_async(comm, in, out, counts, choice, call).wait();
}
inline void reduce_scatter(Communicator& comm, ConstBuffer in, Buffer out, ReduceOp op, std::span<const int64_t> counts,
                           const Choice& choice, const Call& call = {}) {
  reduce_scatter_async(comm, in, out, op, counts, choice, call).wait();
}
inline void all_to_all(Communicator& comm, ConstBuffer in, Buffer out, std::span<const int64_t> send_counts,
                       std::span<const int64_t> recv_counts, const Choice& choice, const Call& call = {}) {
  all_to_all_async(comm, in, out, send_counts, recv_counts, choice, call).wait();
}
inline void broadcast(Communicator& comm, Buffer buffer, int root, const Choice& choice, const Call& call = {}) {
  broadcast_async(comm, buffer, root, choice, call).wait();
}
inline void reduce(Communicator& comm, ConstBuffer in, Buffer out, ReduceOp op, int root, const Choice& choice,
                   const Call& call = {}) {
  reduce_async(comm, in, out, op, root, choice, call).wait();
}

}  // namespace caravan::algorithms
