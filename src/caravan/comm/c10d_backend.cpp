#include "caravan/comm/c10d_backend.h"

#include <atomic>
#include <utility>
#include <vector>

#include "caravan/comm/c10d_arguments.h"
#include "caravan/comm/c10d_line.h"
#include "caravan/comm/c10d_memory.h"
#include "caravan/comm/c10d_reduction.h"
#include "caravan/comm/c10d_tensors.h"
#include "caravan/comm/tensor.h"

namespace caravan {
namespace {

using namespace c10d_arguments;
using c10d::OpType;
using std::chrono::milliseconds;
using Tensors = std::vector<at::Tensor>;
using TensorLists = std::vector<Tensors>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

milliseconds limit(milliseconds timeout) { return timeout == c10d::kUnsetTimeout ? milliseconds(0) : timeout; }

void scale(std::vector<int64_t>& counts, int64_t by) {
  for (int64_t& count : counts) count *= by;
}

/// An operation holds the tensors it works on.
Work with(Work work, Tensors tensors) {
  work.keep(std::make_shared<Tensors>(std::move(tensors)));
  return work;
}

// Methods whose names have moved between versions of torch carry no `override`; tests/comm/c10d_test.cpp calls them
// all.
class C10dBackend final : public c10d::Backend {
 public:
  C10dBackend(const std::shared_ptr<Communicator>& communicator, C10dOptions options)
      : Backend(communicator->rank(), communicator->size()),
        options_(std::move(options)),
        line_(std::make_shared<C10dLine>(communicator, options_.timeout, options_.progress)) {
    options_.progress->add(line_);
    init();
  }
  ~C10dBackend() override { C10dBackend::shutdown(); }

  const std::string getBackendName() const override { return options_.name; }
  c10::intrusive_ptr<Options> getBackendOptions() {
    return c10::make_intrusive<Options>(options_.name, options_.timeout);
  }

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    only(tensors, "allreduce");
    return reduce_all(tensors, options, OpType::ALLREDUCE, "allreduce");
  }

  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override {
    return reduce_all(tensors, options, OpType::ALLREDUCE_COALESCED, "allreduce_coalesced");
  }

  WorkPtr allreduce_sparse(Tensors& /*tensors*/, const c10d::AllreduceOptions& /*options*/) override {
    refuse("allreduce_sparse", "the back-end does not add sparse tensors", "call to_dense(), or sparse=False");
  }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    const at::Tensor tensor = only(tensors, "broadcast");
    const Buffer buffer = movable_buffer(tensor, "broadcast").buffer;
    return issue({OpType::BROADCAST, "broadcast", tensors, limit(options.timeout), {}}, [=](Communicator& comm) {
      return with(comm.broadcast_async(buffer, static_cast<int>(options.rootRank), "c10d broadcast"), {tensor});
    });
  }

  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    const at::Tensor tensor = only(tensors, "reduce");
    const Buffer out = reducible_buffer(tensor, "reduce");
    const auto reduction = C10dReduction::of(options.reduceOp, getSize(), tensor, "reduce");
    const at::Tensor in = reduction.scaled(tensor);
    std::function<void()> finish;
    if (getRank() == options.rootRank) finish = [=] { reduction.divide(tensor); };
    return issue(
        {OpType::REDUCE, "reduce", tensors, limit(options.timeout), std::move(finish)}, [=](Communicator& comm) {
          return with(
              comm.reduce_async(buffer_of(in), out, reduction.op, static_cast<int>(options.rootRank), "c10d reduce"),
              {in, tensor});
        });
  }

  WorkPtr allgather(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override {
    const at::Tensor input = only(inputs, "allgather");
    const Tensors list = one_each(only(outputs, "allgather"), getSize(), "allgather");
    const C10dBuffer in = movable_buffer(input, "allgather");
    std::vector<int64_t> counts = counts_of(list, "allgather");
    scale(counts, in.scale);
    const FlatList flat = flat_of(list, "allgather");
    return issue({OpType::ALLGATHER, "allgather", list, limit(options.timeout), [=] { copy_out(flat, list); }},
                 [=](Communicator& comm) {
                   const Buffer out = movable_buffer(flat.flat, "allgather").buffer;
                   return with(comm.all_gather_async(in.buffer, out, counts, "c10d allgather"), {input, flat.flat});
                 });
  }

  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) {
    return gather_flat({output}, {input}, options, OpType::_ALLGATHER_BASE, "_allgather_base");
  }

  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
    return gather_flat(outputs, inputs, options, OpType::COALESCED, "allgather_into_tensor_coalesced");
  }

  WorkPtr gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& options) override {
    const bool receives = getRank() == options.rootRank;
    if (receives) one_each(only(outputs, "gather"), getSize(), "gather");
    Tensors to(static_cast<size_t>(getSize()), none_like(only(inputs, "gather")));
    if (receives) to = outputs.front();
    Tensors from(static_cast<size_t>(getSize()), none_like(inputs.front()));
    from[check_root(options.rootRank, getSize(), "gather")] = inputs.front();
    return exchange(to, from, OpType::GATHER, "gather", options.timeout);
  }

  WorkPtr scatter(Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions& options) override {
    const bool sends = getRank() == options.rootRank;
    if (sends) one_each(only(inputs, "scatter"), getSize(), "scatter");
    Tensors from(static_cast<size_t>(getSize()), none_like(only(outputs, "scatter")));
    if (sends) from = inputs.front();
    Tensors to(static_cast<size_t>(getSize()), none_like(outputs.front()));
    to[check_root(options.rootRank, getSize(), "scatter")] = outputs.front();
    return exchange(to, from, OpType::SCATTER, "scatter", options.timeout);
  }

  WorkPtr reduce_scatter(Tensors& outputs, TensorLists& inputs, const c10d::ReduceScatterOptions& options) override {
    const at::Tensor output = only(outputs, "reduce_scatter");
    const Tensors list = one_each(only(inputs, "reduce_scatter"), getSize(), "reduce_scatter");
    const auto reduction = C10dReduction::of(options.reduceOp, getSize(), output, "reduce_scatter");
    const Buffer out = reducible_buffer(output, "reduce_scatter");
    const std::vector<int64_t> counts = counts_of(list, "reduce_scatter");
    const FlatList flat = flat_of(list, "reduce_scatter");
    copy_in(flat, list);
    const at::Tensor in = reduction.scaled(flat.flat);
    return issue(
        {OpType::REDUCE_SCATTER, "reduce_scatter", outputs, limit(options.timeout), [=] { reduction.divide(output); }},
        [=](Communicator& comm) {
          return with(comm.reduce_scatter_async(buffer_of(in), out, reduction.op, counts, "c10d reduce_scatter"),
                      {in, output});
        });
  }

  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) {
    return scatter_flat({output}, {input}, options, OpType::_REDUCE_SCATTER_BASE, "_reduce_scatter_base");
  }

  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) {
    return scatter_flat(outputs, inputs, options, OpType::COALESCED, "reduce_scatter_tensor_coalesced");
  }

  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) {
    const C10dBuffer in = movable_buffer(input, "alltoall_base");
    const C10dBuffer out = movable_buffer(output, "alltoall_base");
    std::vector<int64_t> send = split_counts(input_splits, input, getSize(), "alltoall_base");
    std::vector<int64_t> receive = split_counts(output_splits, output, getSize(), "alltoall_base");
    scale(send, in.scale);
    scale(receive, out.scale);
    return issue({OpType::ALLTOALL_BASE, "alltoall_base", {output}, limit(options.timeout), {}}, [=](Communicator&
                                                                                                         comm) {
      return with(comm.all_to_all_async(in.buffer, out.buffer, send, receive, "c10d alltoall_base"), {input, output});
    });
  }

  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override {
    one_each(outputs, getSize(), "alltoall");
    return exchange(outputs, one_each(inputs, getSize(), "alltoall"), OpType::ALLTOALL, "alltoall", options.timeout);
  }

  WorkPtr send(Tensors& tensors, int to, int tag) override {
    const at::Tensor tensor = only(tensors, "send");
    check_tag(tag, "send");
    const Buffer in = movable_buffer(tensor, "send").buffer;
    return issue({OpType::SEND, "send", tensors, milliseconds(0), {}},
                 [=](Communicator& comm) { return with(comm.send_async(in, to, "c10d send"), {tensor}); });
  }

  WorkPtr recv(Tensors& tensors, int from, int tag) override {
    const at::Tensor tensor = only(tensors, "recv");
    check_tag(tag, "recv");
    const Buffer out = movable_buffer(tensor, "recv").buffer;
    return issue({OpType::RECV, "recv", tensors, milliseconds(0), {}},
                 [=](Communicator& comm) { return with(comm.recv_async(out, from, "c10d recv"), {tensor}); });
  }

  WorkPtr recvAnysource(Tensors& /*tensors*/, int /*tag*/) override {
    refuse("recvAnysource", "the back-end does not receive from whoever comes first", "name the source rank");
  }

  WorkPtr barrier(const c10d::BarrierOptions& options) override {
    return issue({OpType::BARRIER, "barrier", {}, limit(options.timeout), {}},
                 [](Communicator& comm) { return comm.barrier_async("c10d barrier"); });
  }

  /// Every barrier is monitored: its error names the ranks that did not come.
  void monitoredBarrier(const c10d::BarrierOptions& options, bool /*wait_all_ranks*/) override {
    barrier(options)->wait();
  }

  void setSequenceNumberForGroup() override {}  // ours starts at 0 everywhere
  uint64_t getSequenceNumberForGroup() override { return num_calls_; }

  bool supportsTensorAlloc(c10::DeviceIndex /*device*/) { return true; }
  at::Tensor allocateTensor(long size, at::TensorOptions options) {
    return memory_->tensor(size, c10::typeMetaToScalarType(options.dtype()), [&](size_t bytes) {
      std::shared_ptr<void> memory;
      line_->use([&](Communicator& comm) { memory = comm.allocate(bytes); });
      return memory;
    });
  }

  void abort() { line_->abort("its process group was aborted"); }
  void shutdown() {
    line_->close();
    memory_->close();
  }

 private:
  /// `start` begins one operation, or several (a vector of them).
  template <class Start>
  WorkPtr issue(C10dWork::Call call, const Start& start) {
    ++num_calls_;
    return line_->issue(std::move(call), [&](Communicator& comm) -> std::vector<Work> {
      if constexpr (std::is_same_v<decltype(start(comm)), Work>) {
        return {start(comm)};
      } else {
        return start(comm);
      }
    });
  }

  WorkPtr reduce_all(Tensors& tensors, const c10d::AllreduceOptions& options, OpType type, const char* title) {
    if (tensors.empty()) refuse(title, "no tensor was given", "give at least one");
    const auto reduction = C10dReduction::of(options.reduceOp, getSize(), tensors.front(), title);
    std::vector<std::pair<Buffer, Tensors>> parts;  // with the memory of in, and of out
    for (const at::Tensor& tensor : tensors) {
      const Buffer out = reducible_buffer(tensor, title);
      parts.push_back({out, {reduction.scaled(tensor), tensor}});
    }
    const auto finish = [=, list = tensors] {
      for (const at::Tensor& tensor : list) reduction.divide(tensor);
    };
    return issue({type, title, tensors, limit(options.timeout), finish}, [&](Communicator& comm) {
      std::vector<Work> works;
      for (const auto& [out, memory] : parts) {
        works.push_back(with(comm.all_reduce_async(buffer_of(memory[0]), out, reduction.op, "c10d allreduce"), memory));
      }
      return works;
    });
  }

  WorkPtr gather_flat(const Tensors& outputs, const Tensors& inputs, const c10d::AllgatherOptions& options, OpType type,
                      const char* title) {
    check_same_lengths(outputs, inputs, title);
    std::vector<std::pair<Buffer, Buffer>> parts;
    for (size_t i = 0; i < inputs.size(); ++i) {
      parts.emplace_back(movable_buffer(inputs[i], title).buffer, movable_buffer(outputs[i], title).buffer);
    }
    return issue({type, title, outputs, limit(options.timeout), {}}, [&](Communicator& comm) {
      std::vector<Work> works;
      for (size_t i = 0; i < parts.size(); ++i) {
        works.push_back(
            with(comm.all_gather_async(parts[i].first, parts[i].second, {}, title), {inputs[i], outputs[i]}));
      }
      return works;
    });
  }

  WorkPtr scatter_flat(const Tensors& outputs, const Tensors& inputs, const c10d::ReduceScatterOptions& options,
                       OpType type, const char* title) {
    check_same_lengths(outputs, inputs, title);
    const auto reduction = C10dReduction::of(options.reduceOp, getSize(), outputs.front(), title);
    std::vector<std::pair<Buffer, Buffer>> parts;
    Tensors scaled;
    for (size_t i = 0; i < inputs.size(); ++i) {
      reducible_buffer(inputs[i], title);
      scaled.push_back(reduction.scaled(inputs[i]));
      parts.emplace_back(buffer_of(scaled[i], title), reducible_buffer(outputs[i], title));
    }
    const auto finish = [=] {
      for (const at::Tensor& output : outputs) reduction.divide(output);
    };
    return issue({type, title, outputs, limit(options.timeout), finish}, [&](Communicator& comm) {
      std::vector<Work> works;
      for (size_t i = 0; i < parts.size(); ++i) {
        works.push_back(with(comm.reduce_scatter_async(parts[i].first, parts[i].second, reduction.op, {}, title),
                             {scaled[i], outputs[i]}));
      }
      return works;
    });
  }

  /// Tensor r of `from` goes to rank r, tensor r of `to` comes from it.
  WorkPtr exchange(const Tensors& to, const Tensors& from, OpType type, const char* title, milliseconds timeout) {
    std::vector<int64_t> send = counts_of(from, title);
    std::vector<int64_t> receive = counts_of(to, title);
    const FlatList in = flat_of(from, title);
    const FlatList out = flat_of(to, title);
    const C10dBuffer in_buffer = movable_buffer(in.flat, title);
    const C10dBuffer out_buffer = movable_buffer(out.flat, title);
    scale(send, in_buffer.scale);
    scale(receive, out_buffer.scale);
    copy_in(in, from);
    return issue({type, title, to, limit(timeout), [=] { copy_out(out, to); }}, [=](Communicator& comm) {
      return with(comm.all_to_all_async(in_buffer.buffer, out_buffer.buffer, send, receive, title),
                  {in.flat, out.flat});
    });
  }

  static at::Tensor none_like(const at::Tensor& tensor) { return at::empty({0}, tensor.options()); }

  C10dOptions options_;
  std::shared_ptr<C10dLine> line_;
  const std::shared_ptr<C10dMemory> memory_ = std::make_shared<C10dMemory>();
  std::atomic<uint64_t> num_calls_{0};
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_c10d_backend(std::shared_ptr<Communicator> communicator, C10dOptions options) {
  if (options.progress == nullptr) options.progress = std::make_shared<C10dProgress>();
  return c10::make_intrusive<C10dBackend>(communicator, std::move(options));
}

}  // namespace caravan
