#include "caravan/redistribute/flat.h"

#include <algorithm>
#include <span>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/comm/tensor.h"
#include "caravan/redistribute/cell.h"

namespace caravan {
namespace {

void check_sizes(const FlatCell& cell, const at::Tensor& in, const at::Tensor& out, const Call& call) {
  const int64_t want_in = cell.from.is_shard() ? cell.own() : cell.to.is_shard() ? cell.whole() : out.numel();
  const int64_t want_out = cell.to.is_shard() ? cell.own() : cell.from.is_shard() ? cell.whole() : in.numel();
  if (in.numel() == want_in && out.numel() == want_out && in.scalar_type() == out.scalar_type()) return;
  throw InternalError({"redistribute", std::string(call.what),
                       fmt::format("{} -> {} of {} elements into {}, expected {} into {}", cell.from.to_string(),
                                   cell.to.to_string(), in.numel(), out.numel(), want_in, want_out),
                       cell.axis.where(), ""});
}

[[noreturn]] void refuse_cell(const FlatCell& cell, const Call& call) {
  throw InternalError({"redistribute", std::string(call.what),
                       fmt::format("{} -> {} has no flat form", cell.from.to_string(), cell.to.to_string()),
                       cell.axis.where(), ""});
}

/// S(d; on i) -> S(d; on j)
Work send_or_recv(const FlatCell& cell, const at::Tensor& in, const at::Tensor& out, const Call& call) {
  const int sender = cell.from.owner();
  const int receiver = cell.to.owner();
  if (sender == receiver) return {};
  if (cell.axis.coord() == sender) return send_async(cell.axis.comm(), in, receiver, call);
  if (cell.axis.coord() == receiver) return recv_async(cell.axis.comm(), out, sender, call);
  return {};
}

}  // namespace

int64_t FlatCell::whole() const { return sum_of(counts); }
int64_t FlatCell::own() const { return counts.empty() ? 0 : counts[static_cast<size_t>(axis.coord())]; }
int64_t FlatCell::before() const {
  return counts.empty() ? 0 : sum_of({counts.data(), static_cast<size_t>(axis.coord())});
}

Work start(const FlatCell& cell, const at::Tensor& in, const at::Tensor& out, const Call& call) {
  if (cell.from.is_shard() && cell.to.is_shard() && cell.from.owner() >= 0 && cell.to.owner() >= 0) {
    return send_or_recv(cell, in, out, call);
  }
  for (const Placement& placement : {cell.from, cell.to}) {
    if (placement.is_shard() && placement.blocks() > 1) refuse_cell(cell, call);
  }
  check_sizes(cell, in, out, call);
  Communicator& comm = cell.axis.comm();
  const auto& all = cell.counts;
  // Equal parts are the fast path of communicators.
  const bool is_even = std::adjacent_find(all.begin(), all.end(), std::not_equal_to<>()) == all.end();
  const std::span<const int64_t> counts = is_even ? std::span<const int64_t>() : all;
  if (cell.from.is_partial() && cell.to.is_whole()) return all_reduce_async(comm, in, out, ReduceOp::sum, call);
  if (cell.from.is_partial() && cell.to.is_shard()) {
    if (cell.to.owner() >= 0) return reduce_async(comm, in, out, ReduceOp::sum, cell.to.owner(), call);
    return reduce_scatter_async(comm, in, out, ReduceOp::sum, counts, call);
  }
  if (cell.from.is_shard() && cell.to.is_whole()) {
    if (cell.from.owner() < 0) return all_gather_async(comm, in, out, counts, call);
    if (in.numel() > 0 && !in.is_meta() && in.data_ptr() != out.data_ptr()) out.copy_(in);
    return broadcast_async(comm, out, cell.from.owner(), call);
  }
  refuse_cell(cell, call);
}

Work start_copy_from(int source, const at::Tensor& flat, const MeshAxis& axis, const Call& call) {
  const at::Tensor bytes = flat.view(at::kByte);
  std::vector<int64_t> counts(static_cast<size_t>(axis.size()), 0);
  counts[static_cast<size_t>(source)] = bytes.numel();
  const FlatCell cell{axis, Shard{.dim = 0, .owner = source, .rows = bytes.numel()}, Invariant{}, counts};
  return start(cell, axis.coord() == source ? bytes : bytes.narrow(0, 0, 0), bytes, call);
}

}  // namespace caravan
