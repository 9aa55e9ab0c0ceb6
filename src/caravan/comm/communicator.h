#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "caravan/comm/flight.h"
#include "caravan/comm/types.h"
#include "caravan/comm/work.h"

namespace caravan {

namespace algorithms {
class SelectionTable;
}

/// What a communicator has moved, for this rank. Bytes are those of the ring (all_reduce, all_gather, reduce_scatter),
/// direct (all_to_all, send) and chain (broadcast, reduce) algorithms, whatever the back-end does inside: the figure of
/// the design's table, equal in every back-end (see wire_bytes).
struct Traffic {
  /// Calls of a communicator of size 1 are counted, with no bytes.
  std::array<int64_t, kNumVerbs> calls{};
  std::array<int64_t, kNumVerbs> bytes{};
  double wait_ms = 0;  ///< time this rank's caller stood waiting; over shared memory without what spinning served

  int64_t total_calls() const noexcept;
  int64_t total_bytes() const noexcept;
};

/// Bytes that rank `rank` of `size` sends for one call. `input_bytes` is what it puts in; for all_to_all,
/// reduce_scatter and their uneven forms `own_bytes` is the part of it that stays on this rank.
int64_t wire_bytes(Verb verb, int rank, int size, int64_t input_bytes, int64_t own_bytes, int root) noexcept;

/// What a communicator has from the one it was split from. A world has none, and gets a recorder of its own.
struct Lineage {
  uint64_t identity = 0;  ///< see FlightGroup
  std::shared_ptr<FlightRecorder> recorder;
};

/// A group of ranks that call the same verbs in the same order. Not thread-safe: one rank, one thread.
///
/// Every verb comes blocking and as `*_async`, which returns a handle. For all of them:
///   - Order: the n-th collective a rank issues on a communicator meets the n-th of every other rank; the n-th send
///     to a peer meets the n-th recv from it. Collectives and the two directions of each pair are independent.
///   - Progress: waiting on any handle drives everything this rank has outstanding, on all communicators split from one
///     world. A handle may be dropped; its operation is completed by later calls, at the latest when the communicator
///     is destroyed.
///   - Buffers: contiguous; `in` is not written; in and out are the same memory or do not overlap (where stated, `in`
///     may be this rank's part of `out`). They belong to the operation until it is complete.
///   - Same bits: sums are taken in rank order, or where a table of algorithms (CommOptions) or hosts say otherwise in
///     another order fixed by the ranks; all_reduce gives every rank the same bits.
///   - Counts of 0 are legal. A communicator of size 1 copies in to out and moves nothing.
///   - Errors, on every rank, before any result is used: UsageError if the arguments are wrong on their own; CommError
///     if the ranks' calls differ in verb, op, dtype, sizes or root (both sides are named), if a peer is lost, or if
///     `timeout` passes (operation, sequence number, call site and missing ranks are named). After a CommError the
///     communicator is dead: every further call throws the first error again.
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
  /// The last operations of this rank, on this communicator and all others split from the same world.
  const std::shared_ptr<FlightRecorder>& recorder() const noexcept { return lineage_.recorder; }
  /// The log of `rank` where this process can read it, else null. Valid as long as recorder() is kept.
  virtual const FlightLog* flight_of(int rank) const noexcept;
  /// False for a back-end that never looks at the bytes: buffers may then have no memory behind them.
  virtual bool touches_memory() const noexcept { return true; }
  /// Where collectives are made of messages (gloo, mpi): which algorithms they take from now on; null: those of
  /// CommOptions. Every rank calls it, in the order of its collectives, with equal tables. False, and nothing is
  /// changed, where they are not made of messages.
  virtual bool select(std::shared_ptr<const algorithms::SelectionTable>) { return false; }

  /// out[i] = op over ranks of in[i]. `in` and `out` have the same count and dtype and may be the same. Sends 2(n-1)/n
  /// x.
  void all_reduce(ConstBuffer in, Buffer out, ReduceOp op, const Call& call = {}, Stream stream = {});
  Work all_reduce_async(ConstBuffer in, Buffer out, ReduceOp op, const Call& call = {}, Stream stream = {});

  /// out = in of rank 0, in of rank 1, ...; in may be its own place in out. `counts` gives each rank's elements (equal
  /// on every rank); empty: all ranks give in.count. Sends (n-1) x.
  void all_gather(ConstBuffer in, Buffer out, std::span<const int64_t> counts = {}, const Call& call = {},
                  Stream stream = {});
  Work all_gather_async(ConstBuffer in, Buffer out, std::span<const int64_t> counts = {}, const Call& call = {},
                        Stream stream = {});

  /// out = the part of (op over ranks of in) that belongs to this rank; out may be its own place in in. `counts` gives
  /// each rank's part; empty: all parts are out.count. Sends (n-1)/n x.
  void reduce_scatter(ConstBuffer in, Buffer out, ReduceOp op, std::span<const int64_t> counts = {},
                      const Call& call = {}, Stream stream = {});
  Work reduce_scatter_async(ConstBuffer in, Buffer out, ReduceOp op, std::span<const int64_t> counts = {},
                            const Call& call = {}, Stream stream = {});

  /// Part i of `in` goes to rank i; part i of `out` comes from rank i. `send_counts` and `recv_counts` give the parts
  /// (what rank a sends to b is what b receives from a); empty: n equal parts. in and out must not overlap. Sends x
  /// minus its own part.
  void all_to_all(ConstBuffer in, Buffer out, std::span<const int64_t> send_counts = {},
                  std::span<const int64_t> recv_counts = {}, const Call& call = {}, Stream stream = {});
  Work all_to_all_async(ConstBuffer in, Buffer out, std::span<const int64_t> send_counts = {},
                        std::span<const int64_t> recv_counts = {}, const Call& call = {}, Stream stream = {});

  /// `buffer` of `root` on every rank. Sends x, but for the last rank of the chain.
  void broadcast(Buffer buffer, int root, const Call& call = {}, Stream stream = {});
  Work broadcast_async(Buffer buffer, int root, const Call& call = {}, Stream stream = {});

  /// out on `root` = op over ranks of in. Elsewhere `out` is ignored and may be empty. Sends x, but for the root.
  void reduce(ConstBuffer in, Buffer out, ReduceOp op, int root, const Call& call = {}, Stream stream = {});
  Work reduce_async(ConstBuffer in, Buffer out, ReduceOp op, int root, const Call& call = {}, Stream stream = {});

  /// Complete when `in` may be written again; the receiver need not have called yet (it may be complete before or after
  /// that).
  void send(ConstBuffer in, int peer, const Call& call = {}, Stream stream = {});
  Work send_async(ConstBuffer in, int peer, const Call& call = {}, Stream stream = {});
  void recv(Buffer out, int peer, const Call& call = {}, Stream stream = {});
  Work recv_async(Buffer out, int peer, const Call& call = {}, Stream stream = {});

  void barrier(const Call& call = {});
  Work barrier_async(const Call& call = {});

  /// A communicator of a part of this one. Every rank calls it, in the order of its collectives, with the ranks (of
  /// this communicator) of its own part, in the order of their new ranks; the parts of different ranks are equal or
  /// disjoint. Throws UsageError if the parts overlap or this rank is not in its own.
  virtual std::shared_ptr<Communicator> split(std::span<const int> members, std::string name) = 0;

  /// Memory for buffers that live long and travel often (flat gradients, shards), 64-byte aligned, zeroed. Freed when
  /// the last copy of the pointer is gone, not before the operations on it are complete. Over shm the other ranks read
  /// and write such a buffer in place, where any other memory is copied through; ranks need not allocate alike.
  virtual std::shared_ptr<void> allocate(size_t bytes);

  /// One buffer for all ranks where they share memory, else one for each: 64-byte aligned, zeroed. Every rank calls it,
  /// in the order of its collectives, with the same size. A rank writes its own part only; an all_gather in place
  /// (every rank's `in` its place in `out`, and `out` this buffer) makes the others' parts readable: over shm it moves
  /// nothing, it is a view. What a rank writes after that may be seen by the others at once, so the next write waits
  /// for a barrier or any other collective after the last read.
  virtual std::shared_ptr<void> allocate_shared(size_t bytes) { return allocate(bytes); }

  /// Makes some progress on everything outstanding, without waiting: called between pieces of computation.
  virtual void progress() = 0;

  /// Tells the other ranks that this one gives up, and why; they throw a CommError that names this rank and `reason` at
  /// their current or next call. Idempotent, never throws, needs no peer.
  virtual void abort(std::string_view reason) noexcept = 0;

 protected:
  Communicator(int rank, int size, std::string name, Lineage lineage = {});
  /// What a communicator split from this one in collective number `sequence`, led by rank `first`, gets.
  Lineage child_lineage(uint64_t sequence, int first) const noexcept;

  /// Whether buffers on `device`, ordered on `stream`, can be taken. Default: host memory, no stream.
  virtual bool takes(const Device& device, const Stream& stream) const noexcept;
  virtual void copy_alone(const Operation& operation) const;  ///< all there is to do at size 1. Default: by the host

  /// Starts one checked operation; size() > 1. May throw the error the communicator died of, then nothing was started.
  /// Called by the verbs above only.
  virtual void start(const std::shared_ptr<Operation>& operation) = 0;
  /// Starts and finishes a blocking call. A back-end that can do so without the costs of an asynchronous one overrides
  /// it; on return or throw the operation is over.
  virtual void execute(Operation& operation);
  /// The number of a collective that does not come as an Operation of a verb: a split.
  uint64_t take_sequence() noexcept { return next_collective_++; }
  /// Returns when `operation` is complete; throws its error. Progresses everything else meanwhile.
  virtual void finish(Operation& operation) = 0;
  /// finish(), with the time it took counted as waiting and an error reported to the recorder.
  void wait(Operation& operation);
  /// Writes a call that is no Operation of a verb, such as a split, into the log; returns its number there.
  uint64_t record(const Descriptor& call) noexcept { return lineage_.recorder->log().begin(call, group_); }

 private:
  friend class Work;
  Work issue(Operation operation);
  void run(Operation operation);
  void check(const Operation& operation) const;
  /// Checks, numbers and records an operation. False if it is over already: one rank alone, moving nothing.
  bool prepare(Operation& operation);
  uint64_t& counter_of(const Operation& operation) noexcept;
  void count_traffic(const Operation& operation);

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
