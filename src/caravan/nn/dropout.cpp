#include "caravan/nn/dropout.h"

#include <algorithm>
#include <array>
#include <utility>

#include <ATen/core/ivalue.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include "caravan/base/error.h"
#include "caravan/base/numeric/random.h"
#include "caravan/base/parallel_for.h"
#include "caravan/base/runs.h"
#include "caravan/module/count_kernel.h"
#include "caravan/nn/experts/dispatch.h"
#include "caravan/nn/ops.h"

namespace caravan {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

/// The random numbers of one tensor.
struct DropoutPlan : torch::CustomClassHolder {
  DropoutPlan(double dropout, const DropoutKey& key, at::IntArrayRef size)
      : keep(static_cast<float>(1 - dropout)), stream(key.seed, key.name, key.step) {
    for (size_t dim = 0; dim < size.size(); ++dim) {
      runs.push_back(key.index[dim].runs(size[dim]));
      global_shape.push_back(key.index[dim].global(size[dim]));
      offset.push_back(runs.back().empty() ? 0 : runs.back().front().first);
      is_box = is_box && runs.back().size() <= 1;
    }
    for (size_t dim = 0; !is_box && dim + 1 < size.size(); ++dim) {
      std::vector<int64_t>& global = indices.emplace_back();
      for (const DimIndex::Run& run : runs[dim]) {
        for (int64_t i = 0; i < run.count; ++i) global.push_back(run.first + i);
      }
    }
  }

  float keep;
  RandomStream stream;
  std::vector<int64_t> global_shape;
  std::vector<std::vector<DimIndex::Run>> runs;  ///< of each dim
  bool is_box = true;                            ///< one run a dim
  std::vector<int64_t> offset;                   ///< of the box
  std::vector<std::vector<int64_t>> indices;     ///< else: global index of each element of each dim but the last
};

/// Visits the elements [begin, end) of a tensor of `size` like for_each_run, with several runs in a dim.
template <class Visit>
void for_each_run_of(const DropoutPlan& plan, const std::vector<int64_t>& size, int64_t begin, int64_t end,
                     Visit visit) {
  if (plan.is_box) return for_each_run(plan.global_shape, plan.offset, size, begin, end, visit);
  const size_t last = size.size() - 1;
  while (begin < end) {
    int64_t row = begin / size[last];
    const int64_t first = row * size[last];
    const int64_t stop = std::min(end, first + size[last]);
    int64_t global = 0;  // index of the row's first element
    int64_t stride = plan.global_shape[last];
    for (size_t dim = last; dim-- > 0;) {
      global += plan.indices[dim][static_cast<size_t>(row % size[dim])] * stride;
      row /= size[dim];
      stride *= plan.global_shape[dim];
    }
    int64_t passed = first;  // local index at which a run begins
    for (const DimIndex::Run& run : plan.runs[last]) {
      const int64_t from = std::max(begin, passed);
      const int64_t to = std::min(stop, passed + run.count);
      if (from < to) visit(global + run.first + from - passed, from, to - from);
      passed += run.count;
    }
    begin = stop;
  }
}

at::Tensor masked(const at::Tensor& input, const DropoutPlan& plan) {
  constexpr int64_t kChunk = 4096;
  const at::Tensor x = input.contiguous();
  at::Tensor y = at::empty_like(x);
  count_kernel("dropout", x, y);
  if (x.is_meta()) return y;
  const std::vector<int64_t> size = x.sizes().vec();
  with_dtype("dropout", x.scalar_type(), [&](auto type) {
    using T = decltype(type);
    parallel_for(0, x.numel(), int64_t{1} << 15, [&](int64_t begin, int64_t end) {
      std::array<float, kChunk> mask;
      for_each_run_of(plan, size, begin, end, [&](int64_t global, int64_t local, int64_t length) {
        for (int64_t done = 0; done < length; done += kChunk) {
          const int64_t count = std::min(kChunk, length - done);
          plan.stream.dropout_mask(static_cast<uint64_t>(global + done), plan.keep,
                                   std::span(mask).first(static_cast<size_t>(count)));
          const int64_t at = local + done;
          kernels::multiply(data_of<T>(x) + at, mask.data(), data_of<T>(y) + at, count);
        }
      });
    });
  });
  return y;
}

struct CounterDropout : Function<CounterDropout> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, c10::intrusive_ptr<DropoutPlan> plan) {
    at::Tensor y = masked(x, *plan);
    ctx->saved_data["plan"] = c10::IValue::make_capsule(std::move(plan));
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto plan = ctx->saved_data["plan"].toCapsule();
    return {masked(grads[0], static_cast<const DropoutPlan&>(*plan)), {}};
  }
};

}  // namespace

at::Tensor counter_dropout(const at::Tensor& x, double dropout, const DropoutKey& key) {
  check_device("dropout", x);
  if (key.index.size() != static_cast<size_t>(x.dim())) {
    throw InternalError({"dropout", key.name, "the tensor and its place in the global one differ in dims", "", ""});
  }
  return CounterDropout::apply(x, c10::make_intrusive<DropoutPlan>(dropout, key, x.sizes()));
}

at::Tensor Dropout::forward(const at::Tensor& input, const ForwardContext& context) {
  static const OpType kType{"bsf->bsf", "", {{0}}};
  if (!context.is_training() || dropout_ == 0) return input;
  std::vector<DimIndex> index;
  for (const auto& [dim, size] : {std::pair(Dim::batch, input.size(0)), std::pair(Dim::sequence, input.size(1)),
                                  std::pair(Dim::feature, input.size(2))}) {
    index.push_back(checked_index(context, dim, size, name()));
  }
  at::Tensor y = counter_dropout(
      input, dropout_, {.seed = context.seed, .name = name(), .step = context.step, .index = std::move(index)});
  record_layout(context, kType, y, {input}, name());
  return y;
}

}  // namespace caravan
