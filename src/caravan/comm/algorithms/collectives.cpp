#include "caravan/comm/algorithms/collectives.h"

#include <algorithm>
#include <string>
#include <vector>

#include "caravan/comm/algorithms/run.h"
#include "caravan/comm/calls/checks.h"

namespace caravan::algorithms {
namespace {

/// The messages of a run as sends and recvs of a communicator.
class CommunicatorPort final : public Port {
 public:
  CommunicatorPort(Communicator& comm, const Operation& operation)
      : comm_(comm),
        what_(operation.what[0] != '\0' ? operation.what.data() : caravan::name(operation.verb)),
        where_(operation.where) {}

  /// Owner that messages in flight keep alive.
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

}  // namespace

struct Pending::State {
  State(Communicator& comm, const Operation& operation, const Choice& choice)
      : run(make_plan(choice, operation, comm.rank(), comm.size()), operation, comm.rank(), comm.size(),
            comm.touches_memory()),
        port(comm, operation) {}

  Run run;
  CommunicatorPort port;
};

Pending::Pending(std::shared_ptr<State> state) : state_(std::move(state)) {}
Pending::Pending(Pending&&) noexcept = default;

Pending::~Pending() {
  if (state_ == nullptr || is_unwinding_) return;
  try {
    state_->run.finish(state_->port);
  } catch (...) {  // the communicator is dead, and its next call reports why
  }
}

void Pending::wait() { state_->run.finish(state_->port); }

bool Pending::done() { return state_->run.advance(state_->port); }

Pending issue(Communicator& comm, const Operation& operation, const Choice& choice) {
  check_operation(operation, {comm.rank(), comm.size(), comm.name(), comm.backend(), comm.touches_memory()});
  auto state = std::make_shared<Pending::State>(comm, operation, choice);
  state->port.set_owner(state);
  state->run.advance(state->port);
  return Pending(std::move(state));
}

}  // namespace caravan::algorithms
