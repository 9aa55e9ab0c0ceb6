#include "caravan/comm/hierarchical/collectives.h"

#include <algorithm>

#include "caravan/comm/algorithms/working_buffer.h"
#include "caravan/comm/hierarchical/parts.h"

namespace caravan::hierarchical {
namespace {

/// The steps of one collective. Lives only while it appends them, so they hold copies of what they need.
class Steps {
 public:
  explicit Steps(Task& task)
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
  /// What sums are made of: the input, or a copy of it as fp32.
  ConstBuffer summands() {
    if (!wide_) return op_.in;
    const Buffer copy = sums(op_.in.count);
    Task* task = &task_;
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

  void all_reduce_by_levels();
  void all_gather_by_levels();
  void all_gather_by_leaders();
  void reduce_scatter_by_levels();
  void reduce_scatter_by_leaders();
  /// `from` of the rank of place `giver` of this host to each one's `out`: `counts` by place.
  void hand_out(const Buffer& from, int giver, std::vector<int64_t> counts, const Buffer& out);
  std::vector<int64_t> sums_by_host(std::span<const int64_t> counts) const;
  std::vector<int64_t> sums_by_place(std::span<const int64_t> counts) const;

  Communicator* inner() const { return levels_.inner.get(); }
  Communicator* cross() const { return levels_.cross.get(); }
  size_t place() const { return static_cast<size_t>(levels_.place()); }
  size_t host() const { return static_cast<size_t>(levels_.host()); }

  Task& task_;
  const Levels& levels_;
  const Topology& topology_;
  const Operation& op_;
  int64_t elem_;
  bool wide_;
};

std::vector<int64_t> Steps::sums_by_host(std::span<const int64_t> counts) const {
  std::vector<int64_t> sums;
  for (const std::vector<int>& ranks : topology_.ranks) sums.push_back(sum_of(counts_of(counts, ranks)));
  return sums;
}

std::vector<int64_t> Steps::sums_by_place(std::span<const int64_t> counts) const {
  std::vector<int64_t> sums;
  for (size_t i = 0; i < levels_.mates().size(); ++i) {
    sums.push_back(sum_of(counts_of(counts, topology_.level(static_cast<int>(i)))));
  }
  return sums;
}

void Steps::all_reduce() {
  if (topology_.is_uniform() && op_.in.count * elem_ >= kLevelBytes) return all_reduce_by_levels();
  const ConstBuffer in = summands();
  const Buffer out = op_.out;
  const Buffer sum = wide_ && levels_.is_leader() ? sums(in.count) : out;
  const bool is_leader = levels_.is_leader();
  task_.then(inner(), [=, task = &task_](Communicator& comm) {
    return comm.reduce_async(in, is_leader ? sum : Buffer{}, task->op().op, 0, task->call());
  });
  if (is_leader) {
    task_.then(cross(), [=, task = &task_](Communicator& comm) {
      return comm.all_reduce_async(sum, sum, task->op().op, task->call());
    });
    then_narrow(sum, out);
  }
  task_.then(inner(), [=, task = &task_](Communicator& comm) { return comm.broadcast_async(out, 0, task->call()); });
}

void Steps::all_reduce_by_levels() {
  const ConstBuffer in = summands();
  const std::vector<int64_t> counts = equal_parts(in.count, static_cast<int64_t>(levels_.mates().size()));
  const int64_t begin = begins_of(counts)[place()];
  const Buffer out = op_.out;
  const Buffer own = part(out, begin, counts[place()]);
  const Buffer sum = wide_ ? sums(own.count) : own;
  task_.then(inner(), [=, task = &task_](Communicator& comm) {
    return comm.reduce_scatter_async(in, sum, task->op().op, counts, task->call());
  });
  task_.then(cross(), [=, task = &task_](Communicator& comm) {
    return comm.all_reduce_async(sum, sum, task->op().op, task->call());
  });
  then_narrow(sum, own);
  task_.then(inner(),
             [=, task = &task_](Communicator& comm) { return comm.all_gather_async(own, out, counts, task->call()); });
}

void Steps::reduce() {
  const auto root = static_cast<size_t>(op_.root);
  const int root_host = topology_.host[root];
  const int root_place = topology_.place[root];
  const int gate = topology_.is_uniform() ? root_place : 0;
  const bool is_gate = levels_.place() == gate;
  const bool is_root = levels_.rank == op_.root;
  const bool at_root = levels_.host() == root_host;
  const ConstBuffer in = summands();
  const Buffer sum = !is_gate ? Buffer{} : is_root && !wide_ ? op_.out : sums(in.count);
  task_.then(inner(), [=, task = &task_](Communicator& comm) {
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
  if (gate == root_place) return;
  std::vector<int64_t> counts(levels_.mates().size());
  counts[static_cast<size_t>(root_place)] = in.count;
  result.dtype = op_.dtype;
  hand_out(result, gate, std::move(counts), is_root ? op_.out : Buffer{nullptr, 0, op_.dtype, {}});
}

void Steps::broadcast() {
  const auto root = static_cast<size_t>(op_.root);
  const int root_host = topology_.host[root];
  const int root_place = topology_.place[root];
  const int gate = topology_.is_uniform() ? root_place : 0;
  const bool at_root = levels_.host() == root_host;
  const Buffer buffer = op_.out;
  const auto in_host = [&](int from) {
    task_.then(inner(),
               [=, task = &task_](Communicator& comm) { return comm.broadcast_async(buffer, from, task->call()); });
  };
  if (at_root) in_host(root_place);
  if (levels_.place() == gate) {
    task_.then(cross(), [=, task = &task_](Communicator& comm) {
      return comm.broadcast_async(buffer, root_host, task->call());
    });
  }
  if (!at_root) in_host(gate);
}

void Steps::all_gather() {
  if (topology_.is_uniform()) return all_gather_by_levels();
  all_gather_by_leaders();
}

void Steps::all_gather_by_levels() {
  const std::vector<int64_t> level_counts = counts_of(op_.recv_counts, topology_.level(levels_.place()));
  const std::vector<int64_t> place_counts = sums_by_place(op_.recv_counts);
  const Buffer whole{task_.scratch(op_.out.count * elem_), op_.out.count, op_.dtype, {}};
  const Buffer own = part(whole, begins_of(place_counts)[place()], place_counts[place()]);
  task_.then(cross(), [=, task = &task_](Communicator& comm) {
    return comm.all_gather_async(task->op().in, own, level_counts, task->call());
  });
  task_.then(inner(), [=, task = &task_](Communicator& comm) {
    return comm.all_gather_async(own, whole, place_counts, task->call());
  });
  task_.then_here([=, task = &task_] {
    const Operation& op = task->op();
    unpack(static_cast<const std::byte*>(whole.data), op.recv_counts, task->levels().topology.by_place(),
           size_bytes(op.dtype), static_cast<std::byte*>(op.out.data));
  });
}

void Steps::all_gather_by_leaders() {
  const std::vector<int64_t> mate_counts = counts_of(op_.recv_counts, levels_.mates());
  const std::vector<int64_t> host_counts = sums_by_host(op_.recv_counts);
  const bool in_order = topology_.is_contiguous();
  const Buffer whole = in_order ? op_.out : Buffer{task_.scratch(op_.out.count * elem_), op_.out.count, op_.dtype, {}};
  const Buffer block = part(whole, begins_of(host_counts)[host()], host_counts[host()]);
  task_.then(inner(), [=, task = &task_](Communicator& comm) {
    return comm.all_gather_async(task->op().in, block, mate_counts, task->call());
  });
  if (levels_.is_leader()) {
    task_.then(cross(), [=, task = &task_](Communicator& comm) {
      return comm.all_gather_async(block, whole, host_counts, task->call());
    });
  }
  task_.then(inner(), [=, task = &task_](Communicator& comm) { return comm.broadcast_async(whole, 0, task->call()); });
  if (in_order) return;
  task_.then_here([=, task = &task_] {
    const Operation& op = task->op();
    unpack(static_cast<const std::byte*>(whole.data), op.recv_counts, task->levels().topology.by_host(),
           size_bytes(op.dtype), static_cast<std::byte*>(op.out.data));
  });
}

void Steps::reduce_scatter() {
  if (topology_.is_uniform()) return reduce_scatter_by_levels();
  reduce_scatter_by_leaders();
}

void Steps::reduce_scatter_by_levels() {
  const std::vector<int64_t> level_counts = counts_of(op_.send_counts, topology_.level(levels_.place()));
  const std::vector<int64_t> place_counts = sums_by_place(op_.send_counts);
  const ConstBuffer in = summands();
  const Buffer whole = sums(in.count);  // parts of one level together
  const Buffer own = part(whole, begins_of(place_counts)[place()], place_counts[place()]);
  const Buffer out = wide_ ? sums(op_.out.count) : op_.out;
  task_.then(inner(), [=, task = &task_](Communicator& comm) {
    pack(static_cast<const std::byte*>(in.data), task->op().send_counts, task->levels().topology.by_place(),
         size_bytes(in.dtype), static_cast<std::byte*>(whole.data));
    return comm.reduce_scatter_async(whole, own, task->op().op, place_counts, task->call());
  });
  task_.then(cross(), [=, task = &task_](Communicator& comm) {
    return comm.reduce_scatter_async(own, out, task->op().op, level_counts, task->call());
  });
  then_narrow(out, op_.out);
}

void Steps::reduce_scatter_by_leaders() {
  const std::vector<int64_t> host_counts = sums_by_host(op_.send_counts);
  const bool in_order = topology_.is_contiguous();
  const ConstBuffer in = summands();
  const Buffer whole = in_order ? Buffer{} : sums(in.count);
  const Buffer sum = levels_.is_leader() ? sums(in.count) : Buffer{};
  task_.then(inner(), [=, task = &task_](Communicator& comm) {
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
  hand_out(block, 0, counts_of(op_.send_counts, levels_.mates()), out);
  then_narrow(out, op_.out);
}

void Steps::hand_out(const Buffer& from, int giver, std::vector<int64_t> counts, const Buffer& out) {
  std::vector<int64_t> received(counts.size());
  received[static_cast<size_t>(giver)] = out.count;
  const bool gives = levels_.place() == giver;
  if (!gives) std::ranges::fill(counts, 0);
  task_.then(inner(), [=, task = &task_, sent = std::move(counts)](Communicator& comm) {
    const ConstBuffer given = gives ? ConstBuffer(from) : ConstBuffer(nullptr, 0, out.dtype);
    return comm.all_to_all_async(given, out, sent, received, task->call());
  });
}

void Steps::all_to_all() {
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
  const Exchange near = exchange(levels_.mates());
  const Exchange far = exchange(away);
  const auto remote = std::make_shared<Work>();
  task_.then(inner(), [=, task = &task_, all = levels_.everyone.get()](Communicator& comm) {
    const Operation& op = task->op();
    const auto* in = static_cast<const std::byte*>(op.in.data);
    for (const Exchange* each : {&near, &far}) {
      pack(in, op.send_counts, each->ranks, size_bytes(op.dtype), static_cast<std::byte*>(each->in.data));
    }
    std::vector<int64_t> sent = op.send_counts;
    std::vector<int64_t> received = op.recv_counts;
    for (const int mate : near.ranks) sent[static_cast<size_t>(mate)] = received[static_cast<size_t>(mate)] = 0;
    *remote = all->all_to_all_async(far.in, far.out, sent, received, task->call());
    task->also(*remote);
    return comm.all_to_all_async(near.in, near.out, near.sent, near.received, task->call());
  });
  task_.then(levels_.everyone.get(), [remote](Communicator&) { return *remote; });
  task_.then_here([=, task = &task_] {
    const Operation& op = task->op();
    for (const Exchange* each : {&near, &far}) {
      unpack(static_cast<const std::byte*>(each->out.data), op.recv_counts, each->ranks, size_bytes(op.dtype),
             static_cast<std::byte*>(op.out.data));
    }
  });
}

void Steps::barrier() {
  task_.then(inner(), [task = &task_](Communicator& comm) { return comm.barrier_async(task->call()); });
  if (levels_.is_leader()) {
    task_.then(cross(), [task = &task_](Communicator& comm) { return comm.barrier_async(task->call()); });
  }
  task_.then(inner(), [task = &task_](Communicator& comm) { return comm.barrier_async(task->call()); });
}

}  // namespace

void add_collective(Task& task) {
  Steps steps(task);
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

Work begin_on(Communicator& comm, Task& task, int peer) {
  const Operation& op = task.op();
  const Call call = task.call();
  switch (op.verb) {
    case Verb::all_reduce: return comm.all_reduce_async(op.in, op.out, op.op, call);
    case Verb::reduce: return comm.reduce_async(op.in, op.out, op.op, op.root, call);
    case Verb::broadcast: return comm.broadcast_async(op.out, op.root, call);
    case Verb::all_gather: return comm.all_gather_async(op.in, op.out, op.recv_counts, call);
    case Verb::reduce_scatter: return comm.reduce_scatter_async(op.in, op.out, op.op, op.send_counts, call);
    case Verb::all_to_all: return comm.all_to_all_async(op.in, op.out, op.send_counts, op.recv_counts, call);
    case Verb::barrier: return comm.barrier_async(call);
    case Verb::send: return comm.send_async(op.in, peer, call);
    case Verb::recv: return comm.recv_async(op.out, peer, call);
  }
  return {};
}

void run_on(Communicator& comm, const Operation& op, int peer) {
  const Call call(std::string_view(op.what.data()), op.where);
  switch (op.verb) {
    case Verb::all_reduce: return comm.all_reduce(op.in, op.out, op.op, call);
    case Verb::reduce: return comm.reduce(op.in, op.out, op.op, op.root, call);
    case Verb::broadcast: return comm.broadcast(op.out, op.root, call);
    case Verb::all_gather: return comm.all_gather(op.in, op.out, op.recv_counts, call);
    case Verb::reduce_scatter: return comm.reduce_scatter(op.in, op.out, op.op, op.send_counts, call);
    case Verb::all_to_all: return comm.all_to_all(op.in, op.out, op.send_counts, op.recv_counts, call);
    case Verb::barrier: return comm.barrier(call);
    case Verb::send: return comm.send(op.in, peer, call);
    case Verb::recv: return comm.recv(op.out, peer, call);
  }
}

}  // namespace caravan::hierarchical
