#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "caravan/comm/flight.h"
#include "caravan/comm/traffic.h"
#include "caravan/comm/types.h"
#include "caravan/comm/work.h"

namespace caravan {

namespace algorithms {
class SelectionTable;
}

/// What a communicator inherits from its parent. A world inherits nothing and creates its own recorder.
struct Lineage {
  uint64_t identity = 0;  ///< see FlightGroup
  std::shared_ptr<FlightRecorder> recorder;
};

/// A group of ranks that call the same verbs in the same order. Not thread-safe: one rank, one thread.
///
/// Every verb comes blocking and as `*_async`, which returns a handle. For all of them:
///   - Order: the n-th collective that a rank issues on a communicator matches the n-th of every other rank; the n-th
///     send to a peer matches the peer's n-th recv. Collectives and the two directions of each pair are independent.
///   - Progress: waiting on any handle progresses everything outstanding on this rank, on all communicators split
///     from one world. A handle may be dropped; later calls complete its operation, at the latest the communicator's
///     destructor.
///   - Buffers: contiguous; `in` is not written; in and out are the same memory or do not overlap (where stated, `in`
///     may be this rank's part of `out`). They belong to the operation until it completes.
///   - Same bits: sums are taken in rank order. A table of algorithms (CommOptions) or several hosts may change that to
///     another order that depends on the ranks only. all_reduce gives every rank the same bits.
///   - Counts of 0 are legal. A communicator of size 1 copies in to out and moves nothing.
///   - Errors, on every rank, before any result is used: UsageError if the arguments are invalid by themselves;
///     CommError if the ranks' calls differ in verb, op, dtype, sizes, root or the label of a message (it names both),
///     if a peer is lost, or if `timeout` passes (it names operation, sequence number, call site and missing ranks).
///     After a CommError the communicator is dead: every later call throws the first error again.
///   - Bytes sent: see wire_bytes; x = bytes of `in`, n = size().
class Communicator {
 public:
  virtual ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  const std::string& name() const noexcept { return name_; }
  /// "thread", "shm", "gloo", "mpi", "shm+gloo", "shm+mpi", "nccl", "record".
  virtual std::string_view backend() const noexcept = 0;
  const Traffic& traffic() const noexcept { return traffic_; }
  /// The last operations of this rank, on all communicators split from the same world.
  const std::shared_ptr<FlightRecorder>& recorder() const noexcept { return lineage_.recorder; }
  /// The log of `rank` if this process can read it, else null. Valid while recorder() is alive.
  virtual const FlightLog* flight_of(int rank) const noexcept;
  /// False for a back-end that never reads the bytes: then buffers need no memory.
  virtual bool touches_memory() const noexcept { return true; }
  /// Selects the algorithms of the collectives of a back-end that is built on messages (gloo, mpi); null: those of
  /// CommOptions. Communicators that are split from this one later inherit them. Every rank calls it, in the order of
  /// its collectives, with equal tables. Returns false, and is a no-op, in other back-ends.
  virtual bool select(std::shared_ptr<const algorithms::SelectionTable>) { return false; }
  /// The table in use; null in other back-ends.
  virtual const algorithms::SelectionTable* selection() const noexcept { return nullptr; }

  /// out[i] = op over ranks of in[i]. `in` and `out` have the same count and dtype and may be the same memory. Sends
  /// 2(n-1)/n x.
  void all_reduce(ConstBuffer in, Buffer out, ReduceOp op, const Call& call = {}, Stream stream = {});
  Work all_reduce_async(ConstBuffer in, Buffer out, ReduceOp op, const Call& call = {}, Stream stream = {});

  /// out = in of rank 0, in of rank 1, ...; `in` may be this rank's part of `out`. `counts` has each rank's number of
  /// elements, the same list on every rank; empty: in.count for all. Sends (n-1) x.
  void all_gather(ConstBuffer in, Buffer out, std::span<const int64_t> counts = {}, const Call& call = {},
                  Stream stream = {});
  Work all_gather_async(ConstBuffer in, Buffer out, std::span<const int64_t> counts = {}, const Call& call = {},
                        Stream stream = {});

  /// out = this rank's part of (op over ranks of in); `out` may be this rank's part of `in`. `counts` has the size of
  /// each rank's part; empty: out.count for all. Sends (n-1)/n x.
  void reduce_scatter(ConstBuffer in, Buffer out, ReduceOp op, std::span<const int64_t> counts = {},
                      const Call& call = {}, Stream stream = {});
  Work reduce_scatter_async(ConstBuffer in, Buffer out, ReduceOp op, std::span<const int64_t> counts = {},
                            const Call& call = {}, Stream stream = {});

  /// Part i of `in` goes to rank i; part i of `out` comes from rank i. `send_counts` and `recv_counts` have the sizes
  /// of the parts (rank a sends to b as many elements as b receives from a); empty: n equal parts. `in` and `out` must
  /// not overlap. Sends x minus this rank's own part.
  void all_to_all(ConstBuffer in, Buffer out, std::span<const int64_t> send_counts = {},
                  std::span<const int64_t> recv_counts = {}, const Call& call = {}, Stream stream = {});
  Work all_to_all_async(ConstBuffer in, Buffer out, std::span<const int64_t> send_counts = {},
                        std::span<const int64_t> recv_counts = {}, const Call& call = {}, Stream stream = {});

  /// Copies `buffer` of `root` to every rank. Sends x, except on the last rank of the chain.
  void broadcast(Buffer buffer, int root, const Call& call = {}, Stream stream = {});
  Work broadcast_async(Buffer buffer, int root, const Call& call = {}, Stream stream = {});

  /// out on `root` = op over ranks of in. Other ranks ignore `out`; it may be empty. Sends x, except on the root.
  void reduce(ConstBuffer in, Buffer out, ReduceOp op, int root, const Call& call = {}, Stream stream = {});
  Work reduce_async(ConstBuffer in, Buffer out, ReduceOp op, int root, const Call& call = {}, Stream stream = {});

  /// Completes when `in` may be written again, which may be before or after the receiver calls recv.
  void send(ConstBuffer in, int peer, const Call& call = {}, Stream stream = {});
  Work send_async(ConstBuffer in, int peer, const Call& call = {}, Stream stream = {});
  void recv(Buffer out, int peer, const Call& call = {}, Stream stream = {});
  Work recv_async(Buffer out, int peer, const Call& call = {}, Stream stream = {});

  /// Whether the next message of `peer` has arrived and this rank has issued no recv for it; no value if the back-end
  /// cannot tell. Makes progress; throws the error of a dead communicator, and CommError if the peer is lost.
  virtual std::optional<bool> has_message(int /*peer*/) { return std::nullopt; }

  void barrier(const Call& call = {});
  Work barrier_async(const Call& call = {});

  /// Any of these verbs, blocking and asynchronous; operations.h makes the operation.
  void run(Operation operation);
  Work issue(Operation operation);

  /// A communicator of some ranks of this one. Every rank calls it, in the order of its collectives, with the members
  /// of its own part: ranks of this communicator, in the order of their new ranks. The parts of two ranks are equal or
  /// disjoint. Throws UsageError if parts overlap or this rank is not in its own.
  virtual std::shared_ptr<Communicator> split(std::span<const int> members, std::string name) = 0;

  /// Memory for buffers that live long and are communicated often (flat gradients, shards): 64-byte aligned, zeroed.
  /// Freed when the last copy of the pointer is gone and the operations on it are complete. Over shm the other ranks
  /// read and write it in place, while any other memory is copied through staging buffers. Ranks may allocate different
  /// sizes.
  /// Charged to MemoryCounter::current().
  virtual std::shared_ptr<void> allocate(size_t bytes);

  /// One buffer for all ranks if they share memory, else one for each: 64-byte aligned, zeroed. Every rank calls it, in
  /// the order of its collectives, with the same size. A rank writes its own part only. An all_gather in place (`out`
  /// is this buffer, every rank's `in` its part of it) makes the other parts readable; over shm it copies nothing.
  /// Later writes may be visible to the other ranks at once, so write again only after a barrier or any other
  /// collective that follows the last read. Each rank is charged its part of `bytes`.
  virtual std::shared_ptr<void> allocate_shared(size_t bytes) { return allocate(bytes); }
  /// Whether allocate_shared makes one buffer for all ranks.
  virtual bool shares_memory() const noexcept { return false; }

  /// Makes some progress on everything outstanding, without waiting. Call it between pieces of computation.
  virtual void progress() = 0;

  /// Tells the other ranks that this one aborts: their current or next call throws a CommError that names this rank and
  /// `reason`. Idempotent, never throws, does not wait for any peer. Over shared memory another thread may call it.
  virtual void abort(std::string_view reason) noexcept = 0;

 protected:
  Communicator(int rank, int size, std::string name, Lineage lineage = {});
  /// The lineage of a communicator split from this one in collective number `sequence` whose first member is `first`.
  Lineage child_lineage(uint64_t sequence, int first) const noexcept;

  /// Whether the back-end accepts buffers on `device`, ordered on `stream`. Default: host memory, no stream.
  virtual bool takes(const Device& device, const Stream& stream) const noexcept;
  virtual void copy_alone(const Operation& operation) const;  ///< the whole operation at size 1. Default: on the host

  /// Starts one checked operation; size() > 1. Throws the first error of a dead communicator; then nothing was started.
  virtual void start(const std::shared_ptr<Operation>& operation) = 0;
  /// Starts and finishes a blocking call. Overridden where that is cheaper than an asynchronous one. The operation has
  /// ended when this returns or throws.
  virtual void execute(Operation& operation);
  /// Whether execute() calls note() itself, at a moment when the peers need not wait for it.
  virtual bool execute_notes() const noexcept { return false; }
  /// Counts and records an operation, unless that is done.
  void note(Operation& operation) noexcept;
  /// The sequence number of a collective without a Verb: a split.
  uint64_t take_sequence() noexcept { return next_collective_++; }
  /// Returns when `operation` is complete; throws its error. Drives everything else meanwhile.
  virtual void finish(Operation& operation) = 0;
  /// finish(), counts its time as waiting, and reports an error to the recorder.
  void wait(Operation& operation);
  /// Records a call without a Verb, such as a split; returns its number in the log.
  uint64_t record(const Descriptor& call) noexcept { return lineage_.recorder->log().begin(call, group_); }

 private:
  friend class Work;
  void check(const Operation& operation) const;
  /// Checks and numbers an operation. Returns false if that completed it: a communicator of one rank.
  bool prepare(Operation& operation);
  uint64_t& counter_of(const Operation& operation) noexcept;
  void count_traffic(const Operation& operation);
  int64_t sent_bytes(const Operation& operation) const noexcept;
  void begin_span(Operation& operation, TraceLog& trace) const;

  int rank_;
  int size_;
  std::string name_;
  Lineage lineage_;
  FlightGroup group_;
  Traffic traffic_;
  uint64_t next_collective_ = 0;
  std::vector<uint64_t> next_send_;  ///< per peer
  std::vector<uint64_t> next_recv_;
};

}  // namespace caravan
