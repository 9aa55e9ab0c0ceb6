#include "caravan/comm/backends/hierarchical/collectives.h"

#include <algorithm>

#include "caravan/comm/algorithms/working_buffer.h"
#include "caravan/comm/backends/hierarchical/parts.h"

namespace caravan::hierarchical {
namespace {

/// Appends the steps of one collective. It is gone when they run, so they copy what they need.
class CollectiveSteps {
 public:
  explicit CollectiveSteps(HierarchicalTask& task)
      : task_(task),
        levels_(task.levels()),
        topology_(levels_.topology),
        op_(task.op()),
        elem_(size_bytes(op_.dtype)),
        wide_(algorithms::partial_dtype(op_.dtype, op_.op) != op_.dtype) {}

  void all_reduce();
  void reduce();
  void broadcast();
  void all_gather();
  void reduce_scatter();
  void all_to_all();
  void barrier();

 private:
  /// The input of sums: that of the operation, or a copy of it as fp32.
  ConstBuffer summands() {
    if (!wide_) return op_.in;
    const Buffer copy = sums(op_.in.count);
    HierarchicalTask* task = &task_;
    task_.then_here([=] {
      algorithms::convert(static_cast<const std::byte*>(task->op().in.data), task->op().dtype,
                          static_cast<std::byte*>(copy.data), copy.dtype, copy.count);
    });
    return copy;
  }
  /// Memory for partial sums.
  Buffer sums(int64_t count) {
    const Dtype dtype = wide_ ? Dtype::fp32 : op_.dtype;
    return {task_.scratch(count * size_bytes(dtype)), count, dtype, {}};
  }
  static Buffer part(const Buffer& whole, int64_t begin, int64_t count) {
    return {static_cast<std::byte*>(whole.data) + begin * size_bytes(whole.dtype), count, whole.dtype, {}};
  }
  void then_narrow(const Buffer& from, const Buffer& to) {
    if (from.data == to.data) return;
    task_.then_here([=] {
      algorithms::convert(static_cast<const std::byte*>(from.data), from.dtype, static_cast<std::byte*>(to.data),
                          to.dtype, to.count);
    });
  }

  /// Broadcasts on this host.
  void then_broadcast(const Buffer& buffer, int from) {
    task_.then(local(),
               [=, task = &task_](Communicator& comm) { return comm.broadcast_async(buffer, from, task->call()); });
  }
  /// Copies the parts of `ranks`, one after another in `from`, to where they belong in the output.
  void then_unpack(const Buffer& from, std::vector<int> ranks) {
    task_.then_here([from, ranks = std::move(ranks), task = &task_] {
      const Operation& op = task->op();
      unpack(static_cast<const std::byte*>(from.data), op.recv_counts, ranks, size_bytes(op.dtype),
             static_cast<std::byte*>(op.out.data));
    });
  }

  void all_reduce_by_cross();
  void all_gather_by_cross();
  void all_gather_by_leaders();
  void reduce_scatter_by_cross();
  void reduce_scatter_by_leaders();
  /// Scatters `from` of local rank `giver` to the `out` of all ranks of this host; `counts` is by local rank.
  void scatter_locally(const Buffer& from, int giver, std::vector<int64_t> counts, const Buffer& out);
  std::vector<int64_t> sums_by_host(std::span<const int64_t> counts) const;
  std::vector<int64_t> sums_by_local_rank(std::span<const int64_t> counts) const;

  Communicator* local() const { return levels_.local.get(); }
  Communicator* cross() const { return levels_.cross.get(); }
  size_t local_rank() const { return static_cast<size_t>(levels_.local_rank()); }
  size_t host() const { return static_cast<size_t>(levels_.host()); }

  HierarchicalTask& task_;
  const Levels& levels_;
  const Topology& topology_;
  const Operation& op_;
  int64_t elem_;
  bool wide_;
};

std::vector<int64_t> CollectiveSteps::sums_by_host(std::span<const int64_t> counts) const {
  std::vector<int64_t> sums;
  for (const std::vector<int>& ranks : topology_.ranks) sums.push_back(sum_of(counts_of(counts, ranks)));
  return sums;
}

std::vector<int64_t> CollectiveSteps::sums_by_local_rank(std::span<const int64_t> counts) const {
  std::vector<int64_t> sums;
  for (size_t i = 0; i < levels_.local_ranks().size(); ++i) {
    sums.push_back(sum_of(counts_of(counts, topology_.cross_ranks(static_cast<int>(i)))));
  }
  return sums;
}

void CollectiveSteps::all_reduce() {
  if (topology_.is_uniform() && op_.in.count * elem_ >= kCrossBytes) return all_reduce_by_cross();
  const ConstBuffer in = summands();
  const Buffer out = op_.out;
  const Buffer sum = wide_ && levels_.is_leader() ? sums(in.count) : out;
  const bool is_leader = levels_.is_leader();
  task_.then(local(), [=, task = &task_](Communicator& comm) {
    return comm.reduce_async(in, is_leader ? sum : Buffer{}, task->op().op, 0, task->call());
  });
  if (is_leader) {
    task_.then(cross(), [=, task = &task_](Communicator& comm) {
      return comm.all_reduce_async(sum, sum, task->op().op, task->call());
    });
    then_narrow(sum, out);
  }
  then_broadcast(out, 0);
}

void CollectiveSteps::all_reduce_by_cross() {
  const ConstBuffer in = summands();
  const std::vector<int64_t> counts = equal_parts(in.count, static_cast<int64_t>(levels_.local_ranks().size()));
  const int64_t begin = begins_of(counts)[local_rank()];
  const Buffer out = op_.out;
  const Buffer own = part(out, begin, counts[local_rank()]);
  const Buffer sum = wide_ ? sums(own.count) : own;
  task_.then(local(), [=, task = &task_](Communicator& comm) {
    return comm.reduce_scatter_async(in, sum, task->op().op, counts, task->call());
  });
  task_.then(cross(), [=, task = &task_](Communicator& comm) {
    return comm.all_reduce_async(sum, sum, task->op().op, task->call());
  });
  then_narrow(sum, own);
  task_.then(local(),
             [=, task = &task_](Communicator& comm) { return comm.all_gather_async(own, out, counts, task->call()); });
}

void CollectiveSteps::reduce() {
  const auto root = static_cast<size_t>(op_.root);
  const int root_host = topology_.host[root];
  const int root_local_rank = topology_.local_rank[root];
  const int gate = topology_.is_uniform() ? root_local_rank : 0;
  const bool is_gate = levels_.local_rank() == gate;
  const bool is_root = levels_.rank == op_.root;
  const bool at_root = levels_.host() == root_host;
  const ConstBuffer in = summands();
  const Buffer sum = !is_gate ? Buffer{} : is_root && !wide_ ? op_.out : sums(in.count);
  task_.then(local(), [=, task = &task_](Communicator& comm) {
    return comm.reduce_async(in, sum, task->op().op, gate, task->call());
  });
  if (is_gate) {
    task_.then(cross(), [=, task = &task_](Communicator& comm) {
      return comm.reduce_async(sum, at_root ? sum : Buffer{}, task->op().op, root_host, task->call());
    });
  }
  if (!at_root) return;
  Buffer result = sum;
  if (is_gate && wide_) {
    result = is_root ? op_.out : Buffer{task_.scratch(in.count * elem_), in.count, op_.dtype, {}};
    then_narrow(sum, result);
  }
  if (gate == root_local_rank) return;
  std::vector<int64_t> counts(levels_.local_ranks().size());
  counts[static_cast<size_t>(root_local_rank)] = in.count;
  result.dtype = op_.dtype;
  scatter_locally(result, gate, std::move(counts), is_root ? op_.out : Buffer{nullptr, 0, op_.dtype, {}});
}

void CollectiveSteps::broadcast() {
  const auto root = static_cast<size_t>(op_.root);
  const int root_host = topology_.host[root];
  const int root_local_rank = topology_.local_rank[root];
  const int gate = topology_.is_uniform() ? root_local_rank : 0;
  const bool at_root = levels_.host() == root_host;
  const Buffer buffer = op_.out;
  if (at_root) then_broadcast(buffer, root_local_rank);
  if (levels_.local_rank() == gate) {
    task_.then(cross(), [=, task = &task_](Communicator& comm) {
      return comm.broadcast_async(buffer, root_host, task->call());
    });
  }
  if (!at_root) then_broadcast(buffer, gate);
}

void CollectiveSteps::all_gather() {
  if (topology_.is_uniform()) return all_gather_by_cross();
  all_gather_by_leaders();
}

void CollectiveSteps::all_gather_by_cross() {
  const std::vector<int64_t> cross_counts = counts_of(op_.recv_counts, topology_.cross_ranks(levels_.local_rank()));
  const std::vector<int64_t> local_rank_counts = sums_by_local_rank(op_.recv_counts);
  const Buffer whole{task_.scratch(op_.out.count * elem_), op_.out.count, op_.dtype, {}};
  const Buffer own = part(whole, begins_of(local_rank_counts)[local_rank()], local_rank_counts[local_rank()]);
  task_.then(cross(), [=, task = &task_](Communicator& comm) {
    return comm.all_gather_async(task->op().in, own, cross_counts, task->call());
  });
  task_.then(local(), [=, task = &task_](Communicator& comm) {
    return comm.all_gather_async(own, whole, local_rank_counts, task->call());
  });
  then_unpack(whole, topology_.by_local_rank());
}

void CollectiveSteps::all_gather_by_leaders() {
  const std::vector<int64_t> local_counts = counts_of(op_.recv_counts, levels_.local_ranks());
  const std::vector<int64_t> host_counts = sums_by_host(op_.recv_counts);
  const bool in_order = topology_.is_contiguous();
  const Buffer whole = in_order ? op_.out : Buffer{task_.scratch(op_.out.count * elem_), op_.out.count, op_.dtype, {}};
  const Buffer block = part(whole, begins_of(host_counts)[host()], host_counts[host()]);
  task_.then(local(), [=, task = &task_](Communicator& comm) {
    return comm.all_gather_async(task->op().in, block, local_counts, task->call());
  });
  if (levels_.is_leader()) {
    task_.then(cross(), [=, task = &task_](Communicator& comm) {
      return comm.all_gather_async(block, whole, host_counts, task->call());
    });
  }
  then_broadcast(whole, 0);
  if (!in_order) then_unpack(whole, topology_.by_host());
}

void CollectiveSteps::reduce_scatter() {
  if (topology_.is_uniform()) return reduce_scatter_by_cross();
  reduce_scatter_by_leaders();
}

void CollectiveSteps::reduce_scatter_by_cross() {
  const std::vector<int64_t> cross_counts = counts_of(op_.send_counts, topology_.cross_ranks(levels_.local_rank()));
  const std::vector<int64_t> local_rank_counts = sums_by_local_rank(op_.send_counts);
  const ConstBuffer in = summands();
  const Buffer whole = sums(in.count);  // ordered by local rank
  const Buffer own = part(whole, begins_of(local_rank_counts)[local_rank()], local_rank_counts[local_rank()]);
  const Buffer out = wide_ ? sums(op_.out.count) : op_.out;
  task_.then(local(), [=, task = &task_](Communicator& comm) {
    pack(static_cast<const std::byte*>(in.data), task->op().send_counts, task->levels().topology.by_local_rank(),
         size_bytes(in.dtype), static_cast<std::byte*>(whole.data));
    return comm.reduce_scatter_async(whole, own, task->op().op, local_rank_counts, task->call());
  });
  task_.then(cross(), [=, task = &task_](Communicator& comm) {
    return comm.reduce_scatter_async(own, out, task->op().op, cross_counts, task->call());
  });
  then_narrow(out, op_.out);
}

void CollectiveSteps::reduce_scatter_by_leaders() {
  const std::vector<int64_t> host_counts = sums_by_host(op_.send_counts);
  const bool in_order = topology_.is_contiguous();
  const ConstBuffer in = summands();
  const Buffer whole = in_order ? Buffer{} : sums(in.count);
  const Buffer sum = levels_.is_leader() ? sums(in.count) : Buffer{};
  task_.then(local(), [=, task = &task_](Communicator& comm) {
    if (!in_order) {
      pack(static_cast<const std::byte*>(in.data), task->op().send_counts, task->levels().topology.by_host(),
           size_bytes(in.dtype), static_cast<std::byte*>(whole.data));
    }
    return comm.reduce_async(in_order ? in : ConstBuffer(whole), sum, task->op().op, 0, task->call());
  });
  Buffer block{nullptr, 0, in.dtype, {}};
  if (levels_.is_leader()) {
    block = part(sum, begins_of(host_counts)[host()], host_counts[host()]);
    task_.then(cross(), [=, task = &task_](Communicator& comm) {
      return comm.reduce_scatter_async(sum, block, task->op().op, host_counts, task->call());
    });
  }
  const Buffer out = wide_ ? sums(op_.out.count) : op_.out;
  scatter_locally(block, 0, counts_of(op_.send_counts, levels_.local_ranks()), out);
  then_narrow(out, op_.out);
}

void CollectiveSteps::scatter_locally(const Buffer& from, int giver, std::vector<int64_t> counts, const Buffer& out) {
  std::vector<int64_t> received(counts.size());
  received[static_cast<size_t>(giver)] = out.count;
  const bool gives = levels_.local_rank() == giver;
  if (!gives) std::ranges::fill(counts, 0);
  task_.then(local(), [=, task = &task_, sent = std::move(counts)](Communicator& comm) {
    const ConstBuffer given = gives ? ConstBuffer(from) : ConstBuffer(nullptr, 0, out.dtype);
    return comm.all_to_all_async(given, out, sent, received, task->call());
  });
}

void CollectiveSteps::all_to_all() {
  std::vector<int> away;
  for (int rank = 0; rank < topology_.size(); ++rank) {
    if (topology_.host[static_cast<size_t>(rank)] != levels_.host()) away.push_back(rank);
  }
  struct Exchange {
    std::vector<int> ranks;
    std::vector<int64_t> sent, received;
    Buffer in, out;
  };
  const auto exchange = [&](const std::vector<int>& ranks) {
    Exchange result{ranks, counts_of(op_.send_counts, ranks), counts_of(op_.recv_counts, ranks), {}, {}};
    const int64_t num_sent = sum_of(result.sent);
    const int64_t num_received = sum_of(result.received);
    result.in = {task_.scratch(num_sent * elem_), num_sent, op_.dtype, {}};
    result.out = {task_.scratch(num_received * elem_), num_received, op_.dtype, {}};
    return result;
  };
  const Exchange near = exchange(levels_.local_ranks());
  const Exchange far = exchange(away);
  const auto remote = std::make_shared<Work>();
  task_.then(local(), [=, task = &task_, all = levels_.global.get()](Communicator& comm) {
    const Operation& op = task->op();
    const auto* in = static_cast<const std::byte*>(op.in.data);
    for (const Exchange* each : {&near, &far}) {
      pack(in, op.send_counts, each->ranks, size_bytes(op.dtype), static_cast<std::byte*>(each->in.data));
    }
    std::vector<int64_t> sent = op.send_counts;
    std::vector<int64_t> received = op.recv_counts;
    for (const int peer : near.ranks) sent[static_cast<size_t>(peer)] = received[static_cast<size_t>(peer)] = 0;
    *remote = all->all_to_all_async(far.in, far.out, sent, received, task->call());
    task->also(*remote);
    return comm.all_to_all_async(near.in, near.out, near.sent, near.received, task->call());
  });
  task_.then(levels_.global.get(), [remote](Communicator&) { return *remote; });
  task_.then_here([=, task = &task_] {
    const Operation& op = task->op();
    for (const Exchange* each : {&near, &far}) {
      unpack(static_cast<const std::byte*>(each->out.data), op.recv_counts, each->ranks, size_bytes(op.dtype),
             static_cast<std::byte*>(op.out.data));
    }
  });
}

void CollectiveSteps::barrier() {
  task_.then(local(), [task = &task_](Communicator& comm) { return comm.barrier_async(task->call()); });
  if (levels_.is_leader()) {
    task_.then(cross(), [task = &task_](Communicator& comm) { return comm.barrier_async(task->call()); });
  }
  task_.then(local(), [task = &task_](Communicator& comm) { return comm.barrier_async(task->call()); });
}

}  // namespace

void add_collective(HierarchicalTask& task) {
  CollectiveSteps steps(task);
  switch (task.op().verb) {
    case Verb::all_reduce: return steps.all_reduce();
    case Verb::reduce: return steps.reduce();
    case Verb::broadcast: return steps.broadcast();
    case Verb::all_gather: return steps.all_gather();
    case Verb::reduce_scatter: return steps.reduce_scatter();
    case Verb::all_to_all: return steps.all_to_all();
    case Verb::barrier: return steps.barrier();
    case Verb::send:
    case Verb::recv: return;
  }
}

}  // namespace caravan::hierarchical
