#include "caravan/comm/c10d/backend.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <ATen/ops/empty.h>

#include "caravan/comm/c10d/arguments.h"
#include "caravan/comm/c10d/memory.h"
#include "caravan/comm/c10d/methods.h"
#include "caravan/comm/c10d/monitored_barrier.h"
#include "caravan/comm/c10d/sparse.h"
#include "caravan/comm/c10d/steps.h"
#include "caravan/comm/c10d/tensors.h"

namespace caravan {
namespace {

using namespace c10d_arguments;
using c10d_steps::Group;
using c10d_steps::Step;
using std::chrono::milliseconds;
using Tensors = std::vector<at::Tensor>;
using TensorLists = std::vector<Tensors>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;
namespace methods = c10d_methods;

milliseconds limit(milliseconds timeout) { return timeout == c10d::kUnsetTimeout ? milliseconds(0) : timeout; }

Tensors flattened(const TensorLists& lists) {
  Tensors all;
  for (const Tensors& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

// Methods whose names have moved between versions of torch carry no `override`; tests/c10d calls them all.
class C10dBackend final : public c10d::Backend {
 public:
  C10dBackend(const std::shared_ptr<Communicator>& communicator, C10dOptions options)
      : Backend(communicator->rank(), communicator->size()),
        options_(std::move(options)),
        queue_(std::make_shared<C10dQueue>(communicator, options_.timeout, options_.progress)) {
    options_.progress->add(queue_);
    init();
  }
  ~C10dBackend() override { C10dBackend::shutdown(); }

  const std::string getBackendName() const override { return options_.name; }
  c10::intrusive_ptr<Options> getBackendOptions() {
    return c10::make_intrusive<Options>(options_.name, options_.timeout);
  }

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    const at::Tensor& tensor = only(tensors, methods::kAllReduce.name);
    if (tensor.defined() && tensor.is_sparse()) return allreduce_sparse(tensors, options);
    return reduce_all(methods::kAllReduce, tensors, options);
  }

  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override {
    if (tensors.empty()) refuse(methods::kAllReduceCoalesced.name, "no tensor was given", "give at least one");
    return reduce_all(methods::kAllReduceCoalesced, tensors, options);
  }

  /// Blocks while the ranks exchange their numbers of entries.
  WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    const C10dMethod& method = methods::kAllReduceSparse;
    const at::Tensor tensor = only(tensors, method.name);
    if (options.reduceOp != c10d::ReduceOp::SUM) {
      refuse(method.name, "sparse tensors are only summed", "use SUM, or call to_dense()");
    }
    C10dSparseSum sum(group(method), tensor);
    issue(methods::kGatherShapes, {}, {}, options.timeout, {sum.gather_shapes()})->wait();
    return issue(method, tensors, tensors, options.timeout, sum.gather_entries());
  }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    const C10dMethod& method = methods::kBroadcast;
    return issue(method, tensors, tensors, options.timeout,
                 {c10d_steps::broadcast(group(method), only(tensors, method.name), root(options.rootRank, method))});
  }

  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    const C10dMethod& method = methods::kReduce;
    const at::Tensor& tensor = only(tensors, method.name);
    const auto reduction = C10dReduction::of(options.reduceOp, getSize(), tensor, method.name);
    return issue(method, tensors, tensors, options.timeout,
                 {c10d_steps::reduce(group(method), reduction, tensor, root(options.rootRank, method))});
  }

  WorkPtr allgather(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override {
    const C10dMethod& method = methods::kAllGather;
    const Tensors& list = one_each(only(outputs, method.name), getSize(), method.name);
    return issue(method, inputs, list, options.timeout,
                 {c10d_steps::all_gather(group(method), list, only(inputs, method.name))});
  }

  WorkPtr allgather_coalesced(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override {
    const C10dMethod& method = methods::kAllGatherCoalesced;
    check_lists(outputs, inputs.size(), getSize(), method.name);
    std::vector<Step> steps;
    for (size_t i = 0; i < inputs.size(); ++i) {
      Tensors of_ranks;
      for (const Tensors& list : outputs) of_ranks.push_back(list[i]);
      steps.push_back(c10d_steps::all_gather(group(method), of_ranks, inputs[i]));
    }
    return issue(method, inputs, flattened(outputs), options.timeout, std::move(steps));
  }

  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) {
    return gather_flat(methods::kAllGatherBase, {output}, {input}, options);
  }

  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
    return gather_flat(methods::kAllGatherBaseCoalesced, outputs, inputs, options);
  }

  WorkPtr gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& options) override {
    const C10dMethod& method = methods::kGather;
    const at::Tensor& input = only(inputs, method.name);
    const bool receives = getRank() == options.rootRank;
    if (receives) one_each(only(outputs, method.name), getSize(), method.name);
    const Tensors to = receives ? outputs.front() : none_for_each(input);
    Tensors from = none_for_each(input);
    from[static_cast<size_t>(root(options.rootRank, method))] = input;
    return issue(method, inputs, to, options.timeout, {c10d_steps::exchange(group(method), to, from)});
  }

  WorkPtr scatter(Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions& options) override {
    const C10dMethod& method = methods::kScatter;
    const at::Tensor& output = only(outputs, method.name);
    const bool sends = getRank() == options.rootRank;
    if (sends) one_each(only(inputs, method.name), getSize(), method.name);
    const Tensors from = sends ? inputs.front() : none_for_each(output);
    Tensors to = none_for_each(output);
    to[static_cast<size_t>(root(options.rootRank, method))] = output;
    return issue(method, flattened(inputs), outputs, options.timeout, {c10d_steps::exchange(group(method), to, from)});
  }

  WorkPtr reduce_scatter(Tensors& outputs, TensorLists& inputs, const c10d::ReduceScatterOptions& options) override {
    const C10dMethod& method = methods::kReduceScatter;
    const at::Tensor& output = only(outputs, method.name);
    const Tensors& list = one_each(only(inputs, method.name), getSize(), method.name);
    const auto reduction = C10dReduction::of(options.reduceOp, getSize(), output, method.name);
    return issue(method, list, outputs, options.timeout,
                 {c10d_steps::reduce_scatter(group(method), reduction, output, list)});
  }

  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) {
    return scatter_flat(methods::kReduceScatterBase, {output}, {input}, options);
  }

  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) {
    return scatter_flat(methods::kReduceScatterBaseCoalesced, outputs, inputs, options);
  }

  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) {
    const C10dMethod& method = methods::kAllToAllBase;
    return issue(method, {input}, {output}, options.timeout,
                 {c10d_steps::exchange_rows(group(method), output, input, output_splits, input_splits)});
  }

  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override {
    const C10dMethod& method = methods::kAllToAll;
    one_each(outputs, getSize(), method.name);
    one_each(inputs, getSize(), method.name);
    return issue(method, inputs, outputs, options.timeout, {c10d_steps::exchange(group(method), outputs, inputs)});
  }

  WorkPtr send(Tensors& tensors, int to, int tag) override {
    const C10dMethod& method = methods::kSend;
    const at::Tensor& tensor = only(tensors, method.name);
    check_message(to, getRank(), getSize(), tag, method.name);
    return queue_->send({method, tensors, tensors, milliseconds(0), {}}, tensor, to, tag);
  }

  WorkPtr recv(Tensors& tensors, int from, int tag) override {
    check_message(from, getRank(), getSize(), tag, methods::kRecv.name);
    return receive(methods::kRecv, tensors, from, tag);
  }

  WorkPtr recvAnysource(Tensors& tensors, int tag) override {
    check_message((getRank() + 1) % getSize(), getRank(), getSize(), tag, methods::kRecvAnySource.name);
    return receive(methods::kRecvAnySource, tensors, C10dMessages::kAnySource, tag);
  }

  WorkPtr barrier(const c10d::BarrierOptions& options) override {
    return issue(methods::kBarrier, {}, {}, options.timeout,
                 {{[](Communicator& comm) { return comm.barrier_async("c10d barrier"); }}});
  }

  /// Names all ranks that did not join, `wait_all_ranks` or not.
  void monitoredBarrier(const c10d::BarrierOptions& options, bool /*wait_all_ranks*/) override {
    monitored_barrier(*queue_, getRank(), getSize(), limit(options.timeout));
  }

  void enableCollectivesTiming() override {}
  void setSequenceNumberForGroup() override {}  // ours starts at 0 everywhere
  uint64_t getSequenceNumberForGroup() override { return queue_->num_issued(); }

  bool supportsSplitting() const { return options_.connect != nullptr; }

  /// Members only: the others get null.
  c10::intrusive_ptr<Backend> split(const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
                                    const c10::intrusive_ptr<Options>& options) {
    const auto own = std::ranges::find(ranks, getRank());
    if (own == ranks.end()) return nullptr;
    return connect(store, static_cast<int>(own - ranks.begin()), static_cast<int>(ranks.size()), options, "split");
  }

  c10::intrusive_ptr<Backend> merge(const c10::intrusive_ptr<c10d::Store>& store,
                                    const c10::intrusive_ptr<Options>& options, const int& rank, const int& size) {
    return connect(store, rank, size, options, "merge");
  }

  bool supportsTensorAlloc(c10::DeviceIndex /*device*/) { return true; }
  at::Tensor allocateTensor(long size, at::TensorOptions options) {
    return memory_->tensor(size, c10::typeMetaToScalarType(options.dtype()), [&](size_t bytes) {
      std::shared_ptr<void> memory;
      queue_->use([&](Communicator& comm) { memory = comm.allocate(bytes); });
      return memory;
    });
  }

  void abort() { queue_->abort("its process group was aborted"); }
  void shutdown() {
    queue_->close();
    memory_->close();
  }

 private:
  Group group(const C10dMethod& method) const { return {getRank(), getSize(), method.name}; }
  int root(int64_t rank, const C10dMethod& method) const {
    return static_cast<int>(check_root(rank, getSize(), method.name));
  }
  Tensors none_for_each(const at::Tensor& like) const {
    return Tensors(static_cast<size_t>(getSize()), at::empty({0}, like.options()));
  }

  WorkPtr issue(const C10dMethod& method, const Tensors& inputs, const Tensors& outputs, milliseconds timeout,
                std::vector<Step> steps) {
    const auto held = std::make_shared<std::vector<Step>>(std::move(steps));
    const auto finish = [held] {
      for (const Step& step : *held) {
        if (step.finish) step.finish();
      }
    };
    return queue_->issue({method, inputs, outputs, limit(timeout), finish}, [&](Communicator& comm) {
      std::vector<Work> works;
      for (const Step& step : *held) works.push_back(step.start(comm));
      return works;
    });
  }

  WorkPtr receive(const C10dMethod& method, const Tensors& tensors, int from, int tag) {
    const at::Tensor& tensor = only(tensors, method.name);
    movable_buffer(tensor, method.name);  // refuses what cannot be received into
    return queue_->receive({method, tensors, tensors, milliseconds(0), {}}, tensor, from, tag);
  }

  WorkPtr reduce_all(const C10dMethod& method, const Tensors& tensors, const c10d::AllreduceOptions& options) {
    std::vector<Step> steps;
    for (const at::Tensor& tensor : tensors) {
      const auto reduction = C10dReduction::of(options.reduceOp, getSize(), tensor, method.name);
      steps.push_back(c10d_steps::all_reduce(group(method), reduction, tensor));
    }
    return issue(method, tensors, tensors, options.timeout, std::move(steps));
  }

  WorkPtr gather_flat(const C10dMethod& method, const Tensors& outputs, const Tensors& inputs,
                      const c10d::AllgatherOptions& options) {
    check_same_lengths(outputs, inputs, method.name);
    std::vector<Step> steps;
    for (size_t i = 0; i < inputs.size(); ++i) {
      steps.push_back(c10d_steps::all_gather_flat(group(method), outputs[i], inputs[i]));
    }
    return issue(method, inputs, outputs, options.timeout, std::move(steps));
  }

  WorkPtr scatter_flat(const C10dMethod& method, const Tensors& outputs, const Tensors& inputs,
                       const c10d::ReduceScatterOptions& options) {
    check_same_lengths(outputs, inputs, method.name);
    std::vector<Step> steps;
    for (size_t i = 0; i < inputs.size(); ++i) {
      const auto reduction = C10dReduction::of(options.reduceOp, getSize(), outputs[i], method.name);
      steps.push_back(c10d_steps::reduce_scatter_flat(group(method), reduction, outputs[i], inputs[i]));
    }
    return issue(method, inputs, outputs, options.timeout, std::move(steps));
  }

  c10::intrusive_ptr<Backend> connect(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                      const c10::intrusive_ptr<Options>& options, const char* name) const {
    if (!options_.connect) {
      refuse(name, "this process group cannot connect others", "make a new group");
    }
    C10dOptions own = options_;
    if (options != nullptr && options->timeout.count() > 0) own.timeout = options->timeout;
    return make_c10d_backend(options_.connect(store, rank, size, own.timeout), own);
  }

  C10dOptions options_;
  std::shared_ptr<C10dQueue> queue_;
  const std::shared_ptr<C10dMemory> memory_ = std::make_shared<C10dMemory>();
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_c10d_backend(std::shared_ptr<Communicator> communicator, C10dOptions options) {
  if (options.progress == nullptr) options.progress = std::make_shared<C10dProgress>();
  return c10::make_intrusive<C10dBackend>(communicator, std::move(options));
}

}  // namespace caravan
