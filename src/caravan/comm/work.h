#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <vector>

#include "caravan/comm/types.h"

namespace caravan {

class Communicator;
class FlightLog;
class TraceLog;

/// One issued call, which a back-end executes. Its counts are complete, and it is checked before a back-end gets it.
struct Operation {
  Verb verb = Verb::barrier;
  ReduceOp op = ReduceOp::sum;
  Dtype dtype = Dtype::uint8;
  ConstBuffer in;
  Buffer out;
  std::vector<int64_t> send_counts;  ///< all_to_all: to each rank; reduce_scatter: each rank's part
  std::vector<int64_t> recv_counts;  ///< all_to_all: from each rank; all_gather: each rank's part
  int root = -1;                     ///< broadcast, reduce
  int peer = -1;                     ///< send, recv
  Stream stream;
  uint64_t sequence = 0;        ///< counts from 0 per communicator (collectives) or per peer and direction (send, recv)
  std::array<char, 56> what{};  ///< Call::what, cut
  std::source_location where;

  FlightLog* flight = nullptr;  ///< the log that records it; outlives it
  uint64_t flight_number = 0;
  std::shared_ptr<TraceLog> trace;  ///< records a span from issue to completion; null: none
  size_t trace_span = 0;

  double planted = 1;  ///< a fault for tests of proofs (PathLog): completion multiplies `out` by it
  /// Counts a path that the operation takes, and plants its fault if the elements are floating-point.
  void take_path(std::string_view path);

  bool complete = false;
  std::exception_ptr error;             ///< set with complete
  std::shared_ptr<void> keep_alive;     ///< the tensors behind the buffers
  std::shared_ptr<void> backend_state;  ///< for the back-end

  /// Called by back-ends when an operation ends; also releases what it kept alive.
  void set_complete(std::exception_ptr failure = nullptr) noexcept;
};

/// Handle of an asynchronous operation. Copies share it. Dropping it does not cancel the operation.
class Work {
 public:
  Work() = default;  ///< already complete

  /// Returns when the operation is complete; throws its error, on every call.
  void wait();
  /// Waits for at most `timeout`. Returns true if the operation is complete, and throws its error; returns false if it
  /// is still in flight: it continues, and may be waited for again. Only the communicator's own time-out ends it.
  bool wait_for(std::chrono::milliseconds timeout);
  /// True if complete, with or without error. Makes progress.
  bool done();
  /// The error of a complete operation; null if it has none or is not complete.
  std::exception_ptr error() const noexcept;
  /// Keeps `object` alive until the operation is complete.
  void keep(std::shared_ptr<void> object);

 private:
  friend class Communicator;
  Work(std::shared_ptr<Operation> operation, Communicator* communicator);

  std::shared_ptr<Operation> operation_;
  Communicator* communicator_ = nullptr;  ///< outlives the operation: its destructor completes what is outstanding
};

}  // namespace caravan
