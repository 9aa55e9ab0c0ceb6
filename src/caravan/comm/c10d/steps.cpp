#include "caravan/comm/c10d/steps.h"

#include <memory>
#include <utility>

#include <ATen/ops/empty.h>

#include "caravan/comm/c10d/arguments.h"
#include "caravan/comm/c10d/tensors.h"
#include "caravan/comm/tensor.h"

namespace caravan::c10d_steps {
namespace {

using Counts = std::vector<int64_t>;

Counts scaled(Counts counts, int64_t by) {
  for (int64_t& count : counts) count *= by;
  return counts;
}

/// An operation holds the tensors it works on.
Work with(Work work, Tensors tensors) {
  work.keep(std::make_shared<Tensors>(std::move(tensors)));
  return work;
}

/// Folds the inputs of all ranks, if no communicator has the op: `counts[r]` elements of `in` go to rank r, which gets
/// as many from each rank as `out` has; an undefined `out` gets none.
Step fold(const Group& group, const C10dReduction& reduction, const at::Tensor& in, const Counts& counts,
          const at::Tensor& out, std::function<void()> after) {
  const int64_t each = out.defined() ? out.numel() : 0;
  const at::Tensor parts = at::empty({each * group.size}, in.options());
  const C10dBuffer from = movable_buffer(in, group.name);
  const C10dBuffer to = movable_buffer(parts, group.name);
  const Counts received(static_cast<size_t>(group.size), each * to.scale);
  return {[=, sent = scaled(counts, from.scale), name = group.name](Communicator& comm) {
            return with(comm.all_to_all_async(from.buffer, to.buffer, sent, received, name), {in, parts});
          },
          [=, after = std::move(after)] {
            if (out.defined()) reduction.fold(parts, out);
            after();
          }};
}

/// A reduction of `in` into `out` by the communicator: `start` gets the communicator and the buffers of both.
/// `has_result`: on this rank.
template <class Start>
Step reduce_natively(const Group& group, const C10dReduction& reduction, const at::Tensor& in, const at::Tensor& out,
                     bool has_result, const Start& start, const std::function<void()>& after) {
  const at::Tensor scaled = reduction.scaled(in);
  const Buffer from = buffer_of(scaled, group.name);
  const Buffer to = buffer_of(out, group.name);
  return {[=](Communicator& comm) {
            return with(start(comm, from, to), {scaled, out});
          },
          [=] {
            if (has_result) reduction.divide(out);
            after();
          }};
}

}  // namespace

Step broadcast(const Group& group, const at::Tensor& tensor, int root) {
  const at::Tensor memory = contiguous_of(tensor, group.name);
  const Buffer buffer = movable_buffer(memory, group.name).buffer;
  return {
      [=, name = group.name](Communicator& comm) { return with(comm.broadcast_async(buffer, root, name), {memory}); },
      [=] { copy_to(tensor, memory); }};
}

Step all_gather(const Group& group, const Tensors& outputs, const at::Tensor& input) {
  const at::Tensor in = contiguous_of(input, group.name);
  const C10dBuffer from = movable_buffer(in, group.name);
  const Counts counts = scaled(counts_of(outputs, group.name), from.scale);
  const FlatList out = flat_of(outputs, group.name);
  const Buffer to = movable_buffer(out.flat, group.name).buffer;
  return {[=, name = group.name](Communicator& comm) {
            return with(comm.all_gather_async(from.buffer, to, counts, name), {in, out.flat});
          },
          [=] { copy_out(out, outputs); }};
}

Step all_gather_flat(const Group& group, const at::Tensor& output, const at::Tensor& input) {
  const at::Tensor in = contiguous_of(input, group.name);
  const at::Tensor out = contiguous_of(output, group.name);
  const Buffer from = movable_buffer(in, group.name).buffer;
  const Buffer to = movable_buffer(out, group.name).buffer;
  return {[=, name = group.name](Communicator& comm) {
            return with(comm.all_gather_async(from, to, {}, name), {in, out});
          },
          [=] { copy_to(output, out); }};
}

Step exchange(const Group& group, const Tensors& to, const Tensors& from) {
  const FlatList in = flat_of(from, group.name);
  const FlatList out = flat_of(to, group.name);
  const C10dBuffer in_buffer = movable_buffer(in.flat, group.name);
  const C10dBuffer out_buffer = movable_buffer(out.flat, group.name);
  const Counts sent = scaled(counts_of(from, group.name), in_buffer.scale);
  const Counts received = scaled(counts_of(to, group.name), out_buffer.scale);
  copy_in(in, from);
  return {[=, name = group.name](Communicator& comm) {
            return with(comm.all_to_all_async(in_buffer.buffer, out_buffer.buffer, sent, received, name),
                        {in.flat, out.flat});
          },
          [=] { copy_out(out, to); }};
}

Step exchange_rows(const Group& group, const at::Tensor& out, const at::Tensor& in,
                   const std::vector<int64_t>& out_rows, const std::vector<int64_t>& in_rows) {
  const C10dBuffer from = movable_buffer(in, group.name);
  const C10dBuffer to = movable_buffer(out, group.name);
  const Counts sent = scaled(c10d_arguments::split_counts(in_rows, in, group.size, group.name), from.scale);
  const Counts received = scaled(c10d_arguments::split_counts(out_rows, out, group.size, group.name), to.scale);
  return {[=, name = group.name](Communicator& comm) {
    return with(comm.all_to_all_async(from.buffer, to.buffer, sent, received, name), {in, out});
  }};
}

Step all_reduce(const Group& group, const C10dReduction& reduction, const at::Tensor& tensor) {
  const at::Tensor memory = contiguous_of(tensor, group.name);
  const auto after = [=] { copy_to(tensor, memory); };
  if (!reduction.native()) {
    const at::Tensor parts = at::empty({memory.numel() * group.size}, memory.options());
    Step step = all_gather_flat(group, parts, memory);
    step.finish = [=] {
      reduction.fold(parts, memory);
      after();
    };
    return step;
  }
  const auto start = [op = *reduction.native(), name = group.name](Communicator& comm, Buffer from, Buffer to) {
    return comm.all_reduce_async(from, to, op, name);
  };
  return reduce_natively(group, reduction, memory, memory, /*has_result=*/true, start, after);
}

Step reduce(const Group& group, const C10dReduction& reduction, const at::Tensor& tensor, int root) {
  const at::Tensor memory = contiguous_of(tensor, group.name);
  const bool is_root = group.rank == root;
  const auto after = [=] {
    if (is_root) copy_to(tensor, memory);
  };
  if (!reduction.native()) {
    Counts counts(static_cast<size_t>(group.size), 0);
    counts[static_cast<size_t>(root)] = memory.numel();
    return fold(group, reduction, memory, counts, is_root ? memory : at::Tensor(), after);
  }
  const auto start = [=, op = *reduction.native(), name = group.name](Communicator& comm, Buffer from, Buffer to) {
    return comm.reduce_async(from, to, op, root, name);
  };
  return reduce_natively(group, reduction, memory, memory, is_root, start, after);
}

namespace {

Step reduce_scatter(const Group& group, const C10dReduction& reduction, const at::Tensor& output, const at::Tensor& in,
                    const Counts& counts) {
  const at::Tensor out = contiguous_of(output, group.name);
  const auto after = [=] { copy_to(output, out); };
  if (!reduction.native()) {
    const Counts parts = counts.empty() ? Counts(static_cast<size_t>(group.size), out.numel()) : counts;
    return fold(group, reduction, in, parts, out, after);
  }
  const auto start = [=, op = *reduction.native(), name = group.name](Communicator& comm, Buffer from, Buffer to) {
    return comm.reduce_scatter_async(from, to, op, counts, name);
  };
  return reduce_natively(group, reduction, in, out, /*has_result=*/true, start, after);
}

}  // namespace

Step reduce_scatter(const Group& group, const C10dReduction& reduction, const at::Tensor& output,
                    const Tensors& inputs) {
  const FlatList flat = flat_of(inputs, group.name);
  copy_in(flat, inputs);
  return reduce_scatter(group, reduction, output, flat.flat, counts_of(inputs, group.name));
}

Step reduce_scatter_flat(const Group& group, const C10dReduction& reduction, const at::Tensor& output,
                         const at::Tensor& input) {
  return reduce_scatter(group, reduction, output, contiguous_of(input, group.name), {});
}

}  // namespace caravan::c10d_steps
