#include "caravan/optim/optimizer.h"

#include <algorithm>
#include <cmath>

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/memory/memory_counter.h"
#include "caravan/base/trace/trace.h"
#include "caravan/optim/kernels.h"

namespace caravan {
namespace {

void check_range(const char* key, double value, double low, double high, bool high_is_valid) {
  if (value >= low && (value < high || (high_is_valid && value == high))) return;
  throw UsageError({"optimizer", key,
                    fmt::format("{} is outside [{}, {}{}", value, low, high, high_is_valid ? "]" : ")"), "",
                    fmt::format("choose a value from {} to {}", low, high)});
}

/// Calls f(range) for each range of `part` that is treated alike.
template <class Part, class F>
void for_each_range(const FlatState& state, const Part& part, const F& f) {
  for (const FlatLayout::Range& range : state.layout.ranges()) {
    if (part.covers(range)) f(range);
  }
}

at::Tensor cut(const FlatMemory& flat, const FlatLayout::Range& range) {
  return flat.narrow(range.offset, range.count);
}

at::Tensor cut(const at::Tensor& flat, const FlatLayout::Range& range) {
  return flat.narrow(0, range.offset, range.count);
}

at::Tensor zeros_for(const FlatState& state) {
  const MemoryKindScope kind(MemoryKind::optimizer);
  return at::zeros({state.layout.trained_count()}, state.values.options());
}

}  // namespace

void Optimizer::step(double lr, double gradient_scale) {
  const TraceSpan span(TraceLog::kCompute, "optimizer");
  const at::NoGradGuard no_grad;
  ++num_steps_;
  const Part all{.count = state_.layout.trained_count(), .number = num_steps_};
  const bool keeps_frozen = state_.has_copied(/*is_trained=*/false);
  const bool has_copied = update(all, lr, gradient_scale);
  state_.bump_version();
  if (has_copied) state_.copied_versions.trained = state_.version();
  if (keeps_frozen) state_.copied_versions.frozen = state_.version();
}

void Optimizer::step(const Bucket& bucket, int64_t number, double lr, double gradient_scale) {
  const at::NoGradGuard no_grad;
  if (!bucket.is_apart()) {
    throw InternalError({"optimizer", "step", "a bucket between others cannot be updated separately", "", ""});
  }
  const bool keeps_frozen = state_.has_copied(/*is_trained=*/false);
  update({.offset = bucket.sharded_offset, .count = bucket.sharded_count, .number = number}, lr, gradient_scale);
  state_.bump_version();
  if (keeps_frozen) state_.copied_versions.frozen = state_.version();
}

void Optimizer::walk(const Visit& visit) {
  using Spread = StatePiece::Spread;
  const Spread spread = state_.apart_axis.empty() ? Spread::like_parameter : Spread::per_coordinate;
  for (const auto& [name, flat] : state()) {
    for (const Slot& slot : state_.layout.slots()) {
      if (!slot.parameter->requires_grad()) continue;
      visit({.kind = StatePiece::Kind::moment,
             .name = kOptimizerTensors + name + "." + slot.parameter->name(),
             .tensor = state_.layout.view(flat, *slot.parameter),
             .parameter = slot.parameter,
             .spread = spread,
             .axis = state_.apart_axis,
             .combine = StatePiece::Combine::mean});
    }
  }
}

AdamW::AdamW(FlatState& state, const AdamWOptions& options) : Optimizer(state), options_(options) {
  check_range("beta1", options.beta1, 0, 1, false);
  check_range("beta2", options.beta2, 0, 1, false);
  check_range("epsilon", options.epsilon, 0, 1, true);
  check_range("weight_decay", options.weight_decay, 0, 1e3, true);
  exp_avg_ = zeros_for(state);
  exp_avg_sq_ = zeros_for(state);
}

void adamw_step(const AdamWOptions& options, int64_t step, double lr, double gradient_scale, bool decays,
                const AdamWPart& part) {
  if (part.values.is_meta()) return;
  const auto t = static_cast<double>(step);
  const kernels::AdamWStep numbers{.gradient_scale = gradient_scale,
                                   .decay = decays ? 1 - lr * options.weight_decay : 1,
                                   .beta1 = options.beta1,
                                   .beta2 = options.beta2,
                                   .epsilon = options.epsilon,
                                   .step_size = lr / (1 - std::pow(options.beta1, t)),
                                   .root_correction = std::sqrt(1 - std::pow(options.beta2, t))};
  const auto sweep = [&]<class T, class G>(T, G) {
    const auto data = [](const at::Tensor& flat) { return static_cast<T*>(flat.data_ptr()); };
    const auto* gradients = static_cast<const G*>(part.gradients.const_data_ptr());
    auto* copies = part.copies.defined() ? static_cast<kernels::Bf16*>(part.copies.data_ptr()) : nullptr;
    at::parallel_for(0, part.values.numel(), int64_t{1} << 15, [&](int64_t begin, int64_t end) {
      kernels::adamw(data(part.values) + begin, gradients + begin, data(part.exp_avg) + begin,
                     data(part.exp_avg_sq) + begin, copies == nullptr ? nullptr : copies + begin, end - begin, numbers);
    });
  };
  if (part.values.scalar_type() == at::kDouble) {
    sweep(double{}, double{});
  } else if (part.gradients.scalar_type() == at::kBFloat16) {
    sweep(float{}, kernels::Bf16{});
  } else {
    sweep(float{}, float{});
  }
}

bool AdamW::update(const Part& part, double lr, double gradient_scale) {
  const bool writes = state_.copies.defined() && state_.copies.scalar_type() == at::kBFloat16;
  for_each_range(state_, part, [&](const FlatLayout::Range& range) {
    adamw_step(options_, part.number, lr, gradient_scale, range.decays,
               {cut(state_.values, range), cut(state_.gradients, range), cut(exp_avg_, range), cut(exp_avg_sq_, range),
                writes && state_.copies.has(range.offset) ? cut(state_.copies, range) : at::Tensor()});
  });
  return writes;
}

std::vector<std::pair<std::string, at::Tensor>> AdamW::state() const {
  return {{"exp_avg", exp_avg_}, {"exp_avg_sq", exp_avg_sq_}};
}

Sgd::Sgd(FlatState& state, const SgdOptions& options) : Optimizer(state), options_(options) {
  check_range("momentum", options.momentum, 0, 1, false);
  check_range("weight_decay", options.weight_decay, 0, 1e3, true);
  if (options.momentum > 0) momentum_ = zeros_for(state);
}

bool Sgd::update(const Part& part, double lr, double gradient_scale) {
  constexpr int64_t kElements = int64_t{1} << 18;  // at a time, which stay in a cache
  for_each_range(state_, part, [&](const FlatLayout::Range& range) {
    for (int64_t first = 0; first < range.count; first += kElements) {
      const FlatLayout::Range piece{range.offset + first, std::min(kElements, range.count - first), range.decays};
      const at::Tensor values = cut(state_.values, piece);
      at::Tensor direction = cut(state_.gradients, piece).to(values.scalar_type()) * gradient_scale;
      if (options_.weight_decay > 0 && range.decays) direction.add_(values, options_.weight_decay);
      if (momentum_.defined()) direction = cut(momentum_, piece).mul_(options_.momentum).add_(direction);
      values.add_(direction, -lr);
    }
  });
  return false;
}

std::vector<std::pair<std::string, at::Tensor>> Sgd::state() const {
  if (!momentum_.defined()) return {};
  return {{"momentum", momentum_}};
}

}  // namespace caravan
