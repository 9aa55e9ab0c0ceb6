#include "caravan/redistribute/redistribute.h"

#include <algorithm>

#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>

#include "caravan/base/error.h"
#include "caravan/comm/operations.h"
#include "caravan/comm/tensor.h"
#include "caravan/mesh/deferred_work.h"
#include "caravan/redistribute/cell.h"
#include "caravan/redistribute/packing.h"

namespace caravan {
namespace {

/// One redistribution, kept by the autograd graph for its backward and for error messages.
struct Move : torch::CustomClassHolder {
  Move(MeshAxis axis_, Cell cell_, std::string what_, std::source_location where_, bool is_backward_ = false)
      : axis(std::move(axis_)),
        cell(std::move(cell_)),
        what(std::move(what_)),
        where(where_),
        is_backward(is_backward_) {}

  MeshAxis axis;
  Cell cell;
  std::string what;
  std::source_location where;
  bool is_backward;

  int coord() const { return axis.coord(); }
  Call call() const { return {what, where}; }
};

using MovePtr = c10::intrusive_ptr<Move>;
using Rows = std::vector<int64_t>;

bool are_equal(const Rows& parts) { return std::equal(parts.begin() + 1, parts.end(), parts.begin()); }

ShardParts parts_before(const Cell& cell) { return {cell.from.dim(), cell.from_rows, cell.from.blocks()}; }
ShardParts parts_after(const Cell& cell) { return {cell.to.dim(), cell.to_rows, cell.to.blocks()}; }

at::Tensor empty_result(const at::Tensor& x, const Move& move) {
  return at::empty(shape_after(move.cell, x.sizes(), move.coord()), x.options());
}

/// Weight gradients that can wait are computed while a collective of the backward pass is in flight.
void run(const Move& move, Operation operation) {
  Communicator& comm = move.axis.comm();
  const DeferredWork& deferred = move.axis.deferred();
  if (!move.is_backward || deferred.empty() || !deferred.overlaps()) return comm.run(std::move(operation));
  Work work = comm.issue(std::move(operation));
  try {
    move.axis.deferred().run_all();
  } catch (...) {
    try {
      work.wait();   // the operation still uses the caller's buffers
    } catch (...) {  // NOLINT(bugprone-empty-catch): the first exception is the cause
    }
    throw;
  }
  work.wait();
}

// ---- the cells that move bytes, by collective ----

at::Tensor all_reduce(const at::Tensor& x, const Move& move) {  // P -> R, P -> I
  const at::Tensor in = x.contiguous();
  const at::Tensor out = at::empty(x.sizes(), x.options());
  run(move, all_reduce_operation(buffer_of(in), buffer_of(out), ReduceOp::sum, move.call()));
  return out;
}

at::Tensor reduce_scatter(const at::Tensor& x, const Move& move) {  // P -> S
  const int dim = move.cell.to.dim();
  const at::Tensor in = pack(x, parts_after(move.cell));
  const at::Tensor out = empty_result(x, move);
  Rows counts;  // empty: equal parts, the fast path of communicators
  if (!are_equal(move.cell.to_rows)) counts = counts_of(move.cell.to_rows, x.sizes(), dim);
  run(move,
      reduce_scatter_operation(buffer_of(in), buffer_of(out), ReduceOp::sum, counts, move.axis.size(), move.call()));
  return out;
}

at::Tensor reduce(const at::Tensor& x, const Move& move) {  // P -> S(d; on k)
  const at::Tensor in = x.contiguous();
  const at::Tensor out = empty_result(x, move);
  const int root = move.cell.to.owner();
  run(move, reduce_operation(buffer_of(in), move.coord() == root ? buffer_of(out) : Buffer{}, ReduceOp::sum, root,
                             move.call()));
  return out;
}

at::Tensor all_gather(const at::Tensor& x, const Move& move) {  // S -> R, S -> I
  const int dim = move.cell.from.dim();
  const Rows shape = shape_after(move.cell, x.sizes(), move.coord());
  const at::Tensor in = x.contiguous();
  const at::Tensor flat = at::empty({num_elements(shape)}, x.options());
  Rows counts;
  if (!are_equal(move.cell.from_rows)) counts = counts_of(move.cell.from_rows, shape, dim);
  run(move, all_gather_operation(buffer_of(in), buffer_of(flat), counts, move.axis.size(), move.call()));
  return unpack(flat, shape, parts_before(move.cell));
}

at::Tensor broadcast(const at::Tensor& x, const Move& move) {  // S(d; on k) -> R, I
  const int owner = move.cell.from.owner();
  const at::Tensor out = move.coord() == owner ? x.contiguous() : empty_result(x, move);
  run(move, broadcast_operation(buffer_of(out), owner, move.call()));
  return out;
}

at::Tensor all_to_all(const at::Tensor& x, const Move& move) {  // S -> S: another dim, or other sizes or blocks
  const Exchange rows = exchange_of(move.cell, move.coord());
  const int send_dim = move.cell.to.dim();
  const int receive_dim = move.cell.from.dim();
  const Rows shape = shape_after(move.cell, x.sizes(), move.coord());
  const bool is_recut = move.cell.is_recut();
  const bool has_runs = is_recut && (move.cell.from.blocks() > 1 || move.cell.to.blocks() > 1);
  const at::Tensor in = has_runs   ? pack_runs(x, send_dim, rows.sent_runs)
                        : is_recut ? pack(x, {send_dim, rows.send})
                                   : pack(x, parts_after(move.cell));
  const at::Tensor flat = at::empty({num_elements(shape)}, x.options());
  Rows send_counts;
  Rows receive_counts;
  if (is_recut || !are_equal(move.cell.from_rows) || !are_equal(move.cell.to_rows)) {  // every rank decides alike
    send_counts = counts_of(rows.send, x.sizes(), send_dim);
    receive_counts = counts_of(rows.receive, shape, receive_dim);
  }
  run(move,
      all_to_all_operation(buffer_of(in), buffer_of(flat), send_counts, receive_counts, move.axis.size(), move.call()));
  if (has_runs) return unpack_runs(flat, shape, receive_dim, rows.received_runs);
  if (is_recut) return unpack(flat, shape, {receive_dim, rows.receive});
  return unpack(flat, shape, parts_before(move.cell));
}

at::Tensor send_recv(const at::Tensor& x, const Move& move) {  // S(d; on i) -> S(e; on j)
  const int sender = move.cell.from.owner();
  const int receiver = move.cell.to.owner();
  if (sender == receiver && move.coord() == sender) return x;
  const at::Tensor out = empty_result(x, move);
  if (sender == receiver) return out;
  if (move.coord() == sender) {
    const at::Tensor in = x.contiguous();
    run(move, message_operation(Verb::send, buffer_of(in), {}, receiver, move.call()));
  } else if (move.coord() == receiver) {
    run(move, message_operation(Verb::recv, {}, buffer_of(out), sender, move.call()));
  }
  return out;
}

at::Tensor pad(const at::Tensor& x, const Move& move) {  // S -> P
  const at::Tensor out = at::zeros(shape_after(move.cell, x.sizes(), move.coord()), x.options());
  const at::Tensor own = own_rows(out, parts_before(move.cell), move.coord());
  own.copy_(x.view(own.sizes()));
  return out;
}

/// Coordinate 0 for every coordinate of the other axes. If it depended on them, the product of two such tensors would
/// lose its gradient.
at::Tensor keep_on_0(const at::Tensor& x, const Move& move) { return move.coord() == 0 ? x : at::zeros_like(x); }

// ---- the table ----

at::Tensor table(const at::Tensor& x, const Move& move) {
  const Placement& from = move.cell.from;
  const Placement& to = move.cell.to;
  if (move.cell.is_same_data()) return x;
  if (from.is_whole()) {  // R, I
    if (to.is_partial()) return keep_on_0(x, move);
    const at::Tensor own = own_rows(x, parts_after(move.cell), move.coord());
    return to.blocks() == 1 ? own : own.reshape(shape_after(move.cell, x.sizes(), move.coord()));
  }
  if (from.is_partial()) {  // P
    if (to.is_whole()) return all_reduce(x, move);
    return to.owner() >= 0 ? reduce(x, move) : reduce_scatter(x, move);
  }
  if (to.is_partial()) return pad(x, move);  // S
  if (to.is_whole()) return from.owner() >= 0 ? broadcast(x, move) : all_gather(x, move);
  return from.owner() >= 0 && to.owner() >= 0 ? send_recv(x, move) : all_to_all(x, move);
}

at::Tensor run_law(const at::Tensor& x, const MovePtr& move);

/// The law: the backward of (a -> b) is (dual(b) -> dual(a)), computed by the same function and so differentiable too.
struct Law : torch::autograd::Function<Law> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const MovePtr& move) {
    context->saved_data["move"] = c10::IValue::make_capsule(move);
    return table(x, *move);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto holder = context->saved_data["move"].toCapsule();
    const auto& move = static_cast<const Move&>(*holder);
    const std::string what = move.what.empty() ? "gradient" : "gradient of " + move.what;
    return {run_law(gradients[0], c10::make_intrusive<Move>(move.axis, move.cell.backward(), what, move.where, true)),
            {}};
  }
};

at::Tensor run_law(const at::Tensor& x, const MovePtr& move) {
  return x.requires_grad() && at::GradMode::is_enabled() ? Law::apply(x, move) : table(x, *move);
}

void check_minor(const Placement& from, const CallSite& site) {
  const auto& entries = site.layout->entries();
  const auto minor = std::find_if(entries.rbegin(), entries.rend(),
                                  [&](const auto& entry) { return entry.second.is_shard(from.dim()); });
  if (minor->first == site.axis.name()) return;
  throw LayoutError(
      {site.op, site.subject(),
       fmt::format("axis {} is not the minor axis of dim {}, axis {} is: leaving it would permute the rows",
                   site.axis.name(), from.dim(), minor->first),
       site.where(),
       fmt::format("move axis {} off the dim first, or place {} after it in the layout", minor->first,
                   site.axis.name())});
}

}  // namespace

at::Tensor redistribute(const at::Tensor& x, const Layout& layout, const MeshAxis& axis, const Placement& to,
                        const Call& call) {
  const CallSite site{"redistribute", x.sizes(), axis, &layout, &call};
  if (!layout.has(axis.name())) {
    throw LayoutError({site.op, site.subject(), "the layout has no placement for axis " + axis.name(), site.where(),
                       "complete the layout with its mesh"});
  }
  const Placement& from = layout[axis.name()];
  if (from == to) return x;
  // Checked before sizes: whether a program is well typed must not depend on the size of its axes.
  check_dim(from, x.sizes().size(), site);
  check_dim(to, x.sizes().size(), site);
  if (from.is_shard()) check_minor(from, site);
  if (axis.size() == 1) return x;
  return run_law(x, c10::make_intrusive<Move>(axis, make_cell(from, to, site), std::string(call.what), call.where));
}

}  // namespace caravan
