// The only file that includes c10d's header of NCCL.
#include "caravan/comm/backends/nccl/nccl.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <thread>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "caravan/base/error.h"
#include "caravan/comm/backends/backend_communicator.h"
#include "caravan/comm/calls/call_errors.h"
#include "caravan/comm/members.h"
#include "caravan/comm/store/c10d_store.h"
#include "caravan/comm/store/startup.h"

namespace caravan {
namespace {

using std::chrono::steady_clock;

at::ScalarType scalar_type(Dtype dtype) {
  switch (dtype) {
    case Dtype::fp32: return at::kFloat;
    case Dtype::fp64: return at::kDouble;
    case Dtype::bf16: return at::kBFloat16;
    case Dtype::fp16: return at::kHalf;
    case Dtype::int64: return at::kLong;
    case Dtype::int32: return at::kInt;
    case Dtype::uint8: return at::kByte;
    case Dtype::boolean: return at::kByte;  // 0 and 1: max is or, min is and
  }
  return at::kByte;
}

c10d::ReduceOp reduce_op(ReduceOp op) {
  if (op == ReduceOp::max) return c10d::ReduceOp::MAX;
  return op == ReduceOp::min ? c10d::ReduceOp::MIN : c10d::ReduceOp::SUM;
}

/// An NCCL process group. Any exception of c10d ends it.
class NcclCommunicator final : public BackendCommunicator {
 public:
  NcclCommunicator(std::shared_ptr<Store> store, const CommOptions& options, GroupInfo group, int device,
                   Lineage lineage)
      : BackendCommunicator(group, lineage),
        store_(std::move(store)),
        options_(options),
        info_(std::move(group)),
        device_(device) {
    if (size() == 1) return;
    const auto at_start = startup_timeout(options_);
    group_ = c10::make_intrusive<c10d::ProcessGroupNCCL>(as_c10d_store(prefixed(store_, "c10d"), at_start), rank(),
                                                         size(), c10d::ProcessGroupNCCL::Options::create());
  }
  ~NcclCommunicator() override { shut_down(); }
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  std::string_view backend() const noexcept override { return "nccl"; }

  std::shared_ptr<Communicator> split(std::span<const int> members, std::string name) override {
    GroupInfo group = info_.part(members, check_members(members, *this, name), name);
    const Lineage lineage = child_lineage(take_sequence(), members.front());
    auto store = size() == 1 ? store_ : prefixed(store_, fmt::format("part {:x}", lineage.identity));
    return std::make_shared<NcclCommunicator>(std::move(store), options_, std::move(group), device_, lineage);
  }

  void progress() override {
    for (const Pending& pending : pending_) {
      if (!pending.work->isCompleted()) continue;
      const auto failure = pending.work->exception();
      if (failure != nullptr) keep_first_error(failure);
      pending.operation->set_complete(failure);
    }
    std::erase_if(pending_, [](const Pending& pending) { return pending.operation->complete; });
  }

  void end(const std::exception_ptr& error) noexcept override {
    keep_first_error(error);
    try {
      if (group_ != nullptr) group_->abort();
    } catch (const std::exception&) {  // it has ended itself
    }
    for (const Pending& pending : pending_) pending.operation->set_complete(first_error());
    pending_.clear();
  }
  void end_world(std::string_view fact) noexcept override {
    end(std::make_exception_ptr(
        CommError({.op = "abort", .subject = name(), .fact = std::string(fact), .where = info_.text()})));
  }

 private:
  struct Pending {
    std::shared_ptr<Operation> operation;
    c10::intrusive_ptr<c10d::Work> work;
  };

  size_t num_outstanding() const noexcept override { return pending_.size(); }
  void complete_outstanding() noexcept override {
    while (!pending_.empty()) {
      const std::shared_ptr<Operation> operation = pending_.front().operation;
      try {
        finish(*operation);
      } catch (const std::exception&) {  // nobody waits for it
      }
    }
  }
  void abandon(const std::exception_ptr& error, const std::string& /*reason*/) noexcept override { end(error); }

  bool takes(const Device& device, const Stream&) const noexcept override {
    return device.kind == DeviceKind::cuda && device.index == device_;
  }

  void copy_alone(const Operation& op) const override {
    if (op.verb == Verb::broadcast || op.verb == Verb::barrier || op.in.data == op.out.data) return;
    const c10::cuda::CUDAStreamGuard stream(stream_of(op));
    out(op).copy_(in(op), /*non_blocking=*/true);
  }

  at::Tensor tensor(const void* data, int64_t count, Dtype dtype) const {
    const auto options = at::TensorOptions().dtype(scalar_type(dtype)).device(at::kCUDA, static_cast<int8_t>(device_));
    if (count == 0) return at::empty({0}, options);
    return at::from_blob(const_cast<void*>(data), {count}, options);  // c10d only reads it
  }
  at::Tensor in(const Operation& op) const { return tensor(op.in.data, op.in.count, op.in.dtype); }
  at::Tensor out(const Operation& op) const { return tensor(op.out.data, op.out.count, op.out.dtype); }

  void start(const std::shared_ptr<Operation>& operation) override {
    throw_if_dead();
    const c10::cuda::CUDAGuard device(static_cast<c10::DeviceIndex>(device_));
    const c10::cuda::CUDAStreamGuard stream(stream_of(*operation));
    try {
      pending_.push_back({operation, begin(*operation)});
    } catch (const std::exception& exception) {
      keep_first_error(peer_failure_error(info_, describe(*operation), exception.what(), FailureScope::communicator));
      throw_if_dead();
    }
  }

  c10::cuda::CUDAStream stream_of(const Operation& op) const {
    const auto index = static_cast<c10::DeviceIndex>(device_);
    if (op.stream.handle == nullptr) return c10::cuda::getCurrentCUDAStream(index);
    return c10::cuda::getStreamFromExternal(static_cast<cudaStream_t>(op.stream.handle), index);
  }

  c10::intrusive_ptr<c10d::Work> begin(const Operation& op) const {
    switch (op.verb) {
      case Verb::all_reduce: {
        std::vector<at::Tensor> tensors{out(op)};
        if (op.in.data != op.out.data) tensors[0].copy_(in(op), /*non_blocking=*/true);
        c10d::AllreduceOptions options;
        options.reduceOp = reduce_op(op.op);
        return group_->allreduce(tensors, options);
      }
      case Verb::reduce: {
        at::Tensor given = in(op);
        at::Tensor taken = rank() == op.root ? out(op) : given;
        c10d::ReduceOptions options;
        options.reduceOp = reduce_op(op.op);
        options.rootRank = op.root;
        return group_->_reduce_oop(taken, given, options);
      }
      case Verb::broadcast: {
        std::vector<at::Tensor> tensors{out(op)};
        c10d::BroadcastOptions options;
        options.rootRank = op.root;
        return group_->broadcast(tensors, options);
      }
      case Verb::all_gather: {
        std::vector<std::vector<at::Tensor>> outs{parts(out(op), op.recv_counts)};
        std::vector<at::Tensor> ins{in(op)};
        return group_->allgather(outs, ins);
      }
      case Verb::reduce_scatter: {
        std::vector<std::vector<at::Tensor>> ins{parts(in(op), op.send_counts)};
        std::vector<at::Tensor> outs{out(op)};
        c10d::ReduceScatterOptions options;
        options.reduceOp = reduce_op(op.op);
        return group_->reduce_scatter(outs, ins, options);
      }
      case Verb::all_to_all: {
        at::Tensor given = in(op);
        at::Tensor taken = out(op);
        std::vector<int64_t> sent = op.send_counts;
        std::vector<int64_t> received = op.recv_counts;
        return group_->alltoall_base(taken, given, received, sent);
      }
      case Verb::send: {
        std::vector<at::Tensor> tensors{in(op)};
        return group_->send(tensors, op.peer, 0);
      }
      case Verb::recv: {
        std::vector<at::Tensor> tensors{out(op)};
        return group_->recv(tensors, op.peer, 0);
      }
      case Verb::barrier: {
        c10d::BarrierOptions options;
        options.device_ids = {device_};
        return group_->barrier(options);
      }
    }
    return {};
  }

  static std::vector<at::Tensor> parts(const at::Tensor& whole, const std::vector<int64_t>& counts) {
    return whole.split_with_sizes(counts);
  }

  void finish(Operation& operation) override {
    const auto deadline = steady_clock::now() + options_.timeout;
    while (!operation.complete) {
      const auto found =
          std::ranges::find_if(pending_, [&](const Pending& each) { return each.operation.get() == &operation; });
      const auto work = found->work;
      progress();
      if (operation.complete) {
        const c10::cuda::CUDAStreamGuard stream(stream_of(operation));
        if (operation.error == nullptr) work->wait();  // later work on the stream sees the result
        break;
      }
      if (steady_clock::now() >= deadline) {
        std::vector<int> others(static_cast<size_t>(size()));
        std::iota(others.begin(), others.end(), 0);
        std::erase(others, rank());
        end(late_error(info_, describe(operation), others, options_.timeout, {}));  // NCCL does not report which of
                                                                                    // them
      }
      std::this_thread::yield();
    }
    if (operation.error != nullptr) std::rethrow_exception(operation.error);
  }

  std::shared_ptr<Store> store_;
  CommOptions options_;
  GroupInfo info_;
  int device_;
  c10::intrusive_ptr<c10d::ProcessGroupNCCL> group_;
  std::vector<Pending> pending_;
};

}  // namespace

std::shared_ptr<Communicator> make_nccl_world(const RankInfo& info, const std::shared_ptr<Store>& store,
                                              const CommOptions& options) {
  std::shared_ptr<Store> own;
  if (info.world_size > 1) {
    own = next_world_store("nccl", info, store);
    wait_for_ranks("nccl", info, *own, startup_timeout(options));
  }
  GroupInfo group = GroupInfo::of_world(info.rank, info.world_size);
  return std::make_shared<NcclCommunicator>(std::move(own), options, std::move(group), info.local_rank, Lineage{});
}

}  // namespace caravan
