#pragma once

#include <memory>

#include "caravan/comm/backends/unwinding.h"
#include "caravan/comm/choice/selection.h"
#include "caravan/comm/communicator.h"

namespace caravan::algorithms {

// Collectives over the sends and recvs of any communicator, by a given algorithm: for measurements, and where the
// algorithm must not be the back-end's own. `operation` comes from operations.h; arguments, aliasing and errors are
// those of the verb of Communicator. All ranks give the same algorithm. The order of a sum depends on the ranks and the
// algorithm only, and all ranks that get a value get the same bits; `direct` gives the bits of the verb. 16-bit floats
// are added in fp32 and rounded once. Bytes sent: see the algorithm's header; comm.traffic() counts the messages.
//
// Their messages take part in the order of the communicator's sends and recvs. So there is one collective at a time:
// wait for each before the next one, and before other sends and recvs (or issue these in the same place on both ranks).
// Throw UsageError if the algorithm does not serve the verb, naming those that do.

/// Handle of one collective. It makes progress in done() and wait() only.
class Pending {
 public:
  Pending(Pending&&) noexcept;
  Pending& operator=(Pending&&) = delete;
  /// Waits, unless an exception unwinds the stack; the communicator's next call throws its errors.
  ~Pending();

  void wait();
  bool done();

 private:
  friend Pending issue(Communicator& comm, const Operation& operation, const Choice& choice);
  struct State;
  explicit Pending(std::shared_ptr<State> state);

  std::shared_ptr<State> state_;
  Unwinding is_unwinding_;
};

Pending issue(Communicator& comm, const Operation& operation, const Choice& choice);
inline void run(Communicator& comm, const Operation& operation, const Choice& choice) {
  issue(comm, operation, choice).wait();
}

}  // namespace caravan::algorithms
