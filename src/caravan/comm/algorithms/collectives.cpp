#include "caravan/comm/algorithms/collectives.h"

#include <algorithm>
#include <exception>
#include <vector>

#include "caravan/comm/algorithms/run.h"
#include "caravan/comm/checks.h"
#include "caravan/comm/operations.h"

namespace caravan::algorithms {
namespace {

/// The messages of a run as a communicator's own.
class CommunicatorPort final : public Port {
 public:
  CommunicatorPort(Communicator& comm, std::string what, std::source_location where)
      : comm_(comm), what_(std::move(what)), where_(where) {}

  /// What the messages under way keep alive.
  void set_owner(std::weak_ptr<void> owner) { owner_ = std::move(owner); }

  void send(int peer, ConstBuffer data) override { add(comm_.send_async(data, peer, Call(what_, where_))); }
  void recv(int peer, Buffer place) override { add(comm_.recv_async(place, peer, Call(what_, where_))); }
  void finish() override {
    for (Work& work : works_) work.wait();
    works_.clear();
  }
  bool is_done() override {
    return std::ranges::all_of(works_, [](Work& work) { return work.done(); });
  }

 private:
  void add(Work work) {
    work.keep(owner_.lock());
    works_.push_back(std::move(work));
  }

  Communicator& comm_;
  std::string what_;
  std::source_location where_;
  std::weak_ptr<void> owner_;
  std::vector<Work> works_;
};

int64_t segment_elems(const Choice& choice, Dtype dtype) {
  return choice.segment_bytes == 0 ? 0 : std::max<int64_t>(choice.segment_bytes / size_bytes(dtype), 1);
}

}  // namespace

struct Pending::State {
  State(Communicator& comm, const Operation& operation, const Choice& choice, const Call& call)
      : run(make_schedule(choice.algorithm, problem_of(operation, comm.rank(), comm.size()),
                          segment_elems(choice, operation.dtype)),
            operation, comm.rank(), comm.size(), comm.touches_memory()),
        port(comm, call.what.empty() ? std::string(caravan::name(operation.verb)) : std::string(call.what),
             call.where) {}

  Run run;
  CommunicatorPort port;
};

Pending::Pending(std::shared_ptr<State> state) : state_(std::move(state)) {}
Pending::Pending(Pending&&) noexcept = default;

Pending::~Pending() {
  if (state_ == nullptr || std::uncaught_exceptions() > 0) return;
  try {
    state_->run.finish(state_->port);
  } catch (...) {  // the communicator is dead and says so
  }
}

void Pending::wait() { state_->run.finish(state_->port); }

bool Pending::done() { return state_->run.advance(state_->port); }

Pending start(Communicator& comm, Operation operation, const Choice& choice, const Call& call) {
  check_operation(operation, {comm.rank(), comm.size(), comm.name(), comm.backend(), comm.touches_memory()});
  auto state = std::make_shared<Pending::State>(comm, operation, choice, call);
  state->port.set_owner(state);
  state->run.advance(state->port);
  return Pending(std::move(state));
}

Pending all_reduce_async(Communicator& comm, ConstBuffer in, Buffer out, ReduceOp op, const Choice& choice,
                         const Call& call) {
  return start(comm, all_reduce_operation(in, out, op, call), choice, call);
}

Pending all_gather_async(Communicator& comm, ConstBuffer in, Buffer out, std::span<const int64_t> counts,
                         const Choice& choice, const Call& call) {
  return start(comm, all_gather_operation(in, out, counts, comm.size(), call), choice, call);
}

Pending reduce_scatter_async(Communicator& comm, ConstBuffer in, Buffer out, ReduceOp op,
                             std::span<const int64_t> counts, const Choice& choice, const Call& call) {
  return start(comm, reduce_scatter_operation(in, out, op, counts, comm.size(), call), choice, call);
}

Pending all_to_all_async(Communicator& comm, ConstBuffer in, Buffer out, std::span<const int64_t> send_counts,
                         std::span<const int64_t> recv_counts, const Choice& choice, const Call& call) {
  return start(comm, all_to_all_operation(in, out, send_counts, recv_counts, comm.size(), call), choice, call);
}

Pending broadcast_async(Communicator& comm, Buffer buffer, int root, const Choice& choice, const Call& call) {
  return start(comm, broadcast_operation(buffer, root, call), choice, call);
}

Pending reduce_async(Communicator& comm, ConstBuffer in, Buffer out, ReduceOp op, int root, const Choice& choice,
                     const Call& call) {
  return start(comm, reduce_operation(in, comm.rank() == root ? out : Buffer{}, op, root, call), choice, call);
}

}  // namespace caravan::algorithms
