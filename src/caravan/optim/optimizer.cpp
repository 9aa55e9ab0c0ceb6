#include "caravan/optim/optimizer.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/memory/memory_counter.h"
#include "caravan/base/trace/path_log.h"
#include "caravan/base/trace/trace.h"
#include "caravan/module/count_kernel.h"
#include "caravan/optim/kernels.h"
#include "caravan/optim/sweep_elements.h"

namespace caravan {
namespace {

at::Tensor cut(const FlatMemory& flat, const FlatLayout::Range& range) {
  return flat.narrow(range.offset, range.count);
}

/// Adds the values of step `number` to their average.
void add_values(const at::Tensor& average, const at::Tensor& values, double decay, int64_t number) {
  const at::NoGradGuard no_grad;
  const auto t = static_cast<double>(number);
  average.lerp_(values, 1 - std::min(decay, (1 + t) / (10 + t)));
}

bool is_inside(const FlatLayout::Range& range, const Bucket& bucket) {
  return range.offset >= bucket.sharded_offset &&
         range.offset + range.count <= bucket.sharded_offset + bucket.sharded_count;
}

}  // namespace

Optimizer::Optimizer(FlatState& state, const std::vector<std::string>& names, Update update)
    : state_(state), update_(std::move(update)) {
  state.is_versioned = true;
  for (const std::string& name : names) moments_.emplace_back(name, state.zeros_like_trained());
  const Tier place = state.optimizer_tier == Tier::device ? Tier::device : Tier::host;
  if (state.tiers != nullptr) sweep_ = std::make_unique<TierSweep>(state, place);
  const Units& units = state.layout.units();
  first_use_.resize(units.groups.size(), units.units.size());
  for (size_t unit = units.units.size(); unit-- > 0;) {
    for (const int group : units.units[unit].groups) first_use_[static_cast<size_t>(group)] = unit;
  }
}

void Optimizer::check_option(const char* key, double value, const OptionRange& range) {
  if (value >= range.low && (value < range.high || (range.has_high && value == range.high))) return;
  throw UsageError({"optimizer", key,
                    fmt::format("{} is outside [{}, {}{}", value, range.low, range.high, range.has_high ? "]" : ")"),
                    "", fmt::format("choose a value from {} to {}", range.low, range.high)});
}

void Optimizer::keep_average(double decay) {
  check_option("average", decay, {.low = 0, .high = 1, .has_high = false});
  moments_.emplace_back(kAverage, state_.zeros_like_trained());
  keeps_average_ = true;
  average_decay_ = decay;
  update_ = [update = std::move(update_), decay](const Part& part, double lr, double gradient_scale) {
    Part rest = part;
    rest.moments.pop_back();
    const at::Tensor& average = part.moments.back();
    if (part.number == 1) average.copy_(part.values);
    const bool writes = update(rest, lr, gradient_scale);
    add_values(average, part.values, decay, part.number);
    return writes;
  };
}

void Optimizer::begin_average() {
  if (!keeps_average_ || num_steps_ != 1) return;
  for (const FlatLayout::Range& range : state_.layout.ranges()) {
    cut(moments_.back().second, range).copy_(cut(state_.values, range));
  }
}

void Optimizer::add_to_average() {
  if (!keeps_average_) return;
  for (const FlatLayout::Range& range : state_.layout.ranges()) {
    add_values(cut(moments_.back().second, range), cut(state_.values, range), average_decay_, num_steps_);
  }
}

void Optimizer::exchange_average() {
  if (!can_exchange_average()) throw InternalError({"optimizer", "average", "cannot be exchanged", "", ""});
  if (num_steps_ == 0) return;  // there is none yet
  finish();
  change_values([&] {
    for (const FlatLayout::Range& range : state_.layout.ranges()) {
      FlatMemory::for_each_part(range.offset, range.count, [&](int64_t offset, int64_t count) {  // little memory
        const at::Tensor values = state_.values.narrow(offset, count);
        const at::Tensor average = moments_.back().second.narrow(offset, count), kept = values.clone();
        values.copy_(average);
        average.copy_(kept);
      });
    }
    return false;
  });
}

bool Optimizer::is_away() const {
  if (state_.tiers == nullptr) return false;
  return state_.values.tier() != Tier::device || state_.gradients.tier() != Tier::device ||
         state_.copies.tier() != Tier::device || state_.optimizer_tier != Tier::device;
}

bool Optimizer::step_range(const FlatLayout::Range& range, int64_t number, double lr, double gradient_scale) {
  Part part{.values = cut(state_.values, range),
            .gradients = cut(state_.gradients, range),
            .moments = {},
            .copies = state_.copies.has(range.offset) ? cut(state_.copies, range) : at::Tensor(),
            .decays = range.decays,
            .rule = range.rule,
            .number = number};
  for (const auto& [name, flat] : moments_) part.moments.push_back(cut(flat, range));
  return update_(part, lr * range.rule.lr_factor, gradient_scale) || !part.copies.defined();
}

/// `write` updates values; it returns whether it has also written the copies of all trained ones.
template <class Write>
void Optimizer::change_values(const Write& write) {
  const at::NoGradGuard no_grad;
  const bool keeps_frozen = state_.has_copied(/*is_trained=*/false);
  const bool has_copied = write();
  state_.bump_version();
  if (has_copied) state_.copied_versions.trained = state_.version();
  if (keeps_frozen) state_.copied_versions.frozen = state_.version();
}

void Optimizer::step(double lr, double gradient_scale) {
  start_step(lr, gradient_scale);
  finish();
}

void Optimizer::finish() {
  if (sweep_ != nullptr) sweep_->finish();
}

void Optimizer::start_step(double lr, double gradient_scale) {
  const TraceSpan span(TraceLog::kCompute, "optimizer");
  finish();
  ++num_steps_;
  if (state_.delay_after && num_steps_ > *state_.delay_after) return start_delayed_step(lr, gradient_scale);
  change_values([&] {
    if (is_away()) {
      sweep(std::nullopt, {}, lr, gradient_scale);
      return true;
    }
    return step_all(lr, gradient_scale);
  });
}

bool Optimizer::step_all(double lr, double gradient_scale) {
  bool has_copied = true;
  for (const FlatLayout::Range& range : state_.layout.ranges()) {
    has_copied &= step_range(range, num_steps_, lr, gradient_scale);
  }
  return has_copied;
}

void Optimizer::step(const Bucket& bucket, int64_t number, double lr, double gradient_scale) {
  check_parts();
  if (!bucket.is_apart() || is_away()) {
    throw InternalError({"optimizer", "step", "a bucket between others cannot be updated separately", "", ""});
  }
  change_values([&] {
    for (const FlatLayout::Range& range : state_.layout.ranges()) {
      if (is_inside(range, bucket)) step_range(range, number, lr, gradient_scale);
    }
    return false;
  });
}

void Optimizer::step_group(int group, const Gradient& gradient_of, double lr) {
  const TraceSpan span(TraceLog::kCompute, "optimizer", state_.layout.units().groups[static_cast<size_t>(group)].name);
  check_parts();
  finish();
  change_values([&] {
    sweep(group, gradient_of, lr, 1);
    return true;
  });
}

/// As the next forward needs them.
std::vector<const Bucket*> Optimizer::in_forward_order() const {
  std::vector<const Bucket*> buckets = TierSweep::trained_buckets(state_.layout);
  std::ranges::stable_sort(buckets, {},
                           [&](const Bucket* bucket) { return first_use_[static_cast<size_t>(bucket->group)]; });
  return buckets;
}

/// Of a sweep that `updates` values and moments, and writes the `copies` of values.
std::vector<TierSweep::Source> Optimizer::sources(const Gradient& gradient_of, bool updates, bool copies) {
  std::vector<TierSweep::Source> sources{{.flat = &state_.values, .is_written = updates},
                                         {.flat = &state_.gradients, .on_device = gradient_of, .is_read = updates},
                                         {.flat = &state_.copies, .is_read = false, .is_written = copies}};
  const bool is_on_host = state_.optimizer_tier != Tier::device;
  if (is_on_host && state_.copies.scalar_type() == state_.values.scalar_type()) sources[2].copy_of = 0;
  for (auto& [name, flat] : moments_) sources.push_back({.flat = &flat, .is_read = updates, .is_written = updates});
  return sources;
}

/// Begins to step the buckets of a group, or of all. Always writes the copies.
void Optimizer::sweep(std::optional<int> group, const Gradient& gradient_of, double lr, double gradient_scale) {
  std::vector<const Bucket*> buckets = in_forward_order();
  if (group) std::erase_if(buckets, [&](const Bucket* bucket) { return bucket->group != *group; });
  const bool is_on_device = state_.optimizer_tier == Tier::device;
  count_path(is_on_device ? "optimizer on the device, with what is away" : "optimizer on the host");
  sweep_->start(buckets, sources(gradient_of, /*updates=*/true, /*copies=*/true),
                [this, lr, gradient_scale, number = num_steps_](const TierSweep::Part& swept) {
                  update_swept(swept, number, lr, gradient_scale);
                });
}

/// The next step sees the update before this one: first the copies get it, in forward order; then the host updates in
/// the order in which the next backward needs the memory of the gradients.
void Optimizer::start_delayed_step(double lr, double gradient_scale) {
  const at::NoGradGuard no_grad;
  if (!state_.has_copied(/*is_trained=*/true)) {
    count_path("copies of values written before a delayed update");
    sweep_->start(in_forward_order(), sources({}, /*updates=*/false, /*copies=*/true), [](const TierSweep::Part& part) {
      // TierSweep writes copies of the dtype of the values.
      if (part.tensors[2].defined()) part.tensors[2].copy_(part.tensors[0]);
    });
    state_.copied_versions.trained = state_.version();
  }
  count_path("optimizer on the host, delayed");
  const bool keeps_frozen = state_.has_copied(/*is_trained=*/false);
  sweep_->start(TierSweep::trained_buckets(state_.layout), sources({}, /*updates=*/true, /*copies=*/false),
                [this, lr, gradient_scale, number = num_steps_](const TierSweep::Part& swept) {
                  update_swept(swept, number, lr, gradient_scale);
                });
  state_.bump_version();
  state_.copied_versions.lagging = state_.version();
  if (keeps_frozen) state_.copied_versions.frozen = state_.version();
}

void Optimizer::update_swept(const TierSweep::Part& swept, int64_t number, double lr, double gradient_scale) const {
  const int64_t begin = swept.bucket.sharded_offset + swept.begin, end = begin + swept.count;
  for (const FlatLayout::Range& range : state_.layout.ranges()) {
    const int64_t first = std::max(begin, range.offset), last = std::min(end, range.offset + range.count);
    if (first >= last) continue;
    const auto of = [&](const at::Tensor& whole) {
      return whole.defined() ? whole.narrow(0, first - begin, last - first) : whole;
    };
    Part part{.values = of(swept.tensors[0]),
              .gradients = of(swept.tensors[1]),
              .moments = {},
              .copies = of(swept.tensors[2]),
              .decays = range.decays,
              .rule = range.rule,
              .number = number};
    for (size_t i = 3; i < swept.tensors.size(); ++i) part.moments.push_back(of(swept.tensors[i]));
    if (!update_(part, lr * range.rule.lr_factor, gradient_scale) && part.copies.defined())
      part.copies.copy_(part.values);
  }
}

void Optimizer::walk(const Visit& visit) {
  using Spread = StatePiece::Spread;
  const Spread spread = state_.apart_axis.empty() ? Spread::like_parameter : Spread::per_coordinate;
  for (const auto& [name, flat] : state()) {
    for (const Slot& slot : state_.layout.slots()) {
      if (!slot.parameter->requires_grad() || !keeps(name, slot)) continue;
      StatePiece piece{.kind = StatePiece::Kind::moment,
                       .name = kOptimizerTensors + name + "." + slot.parameter->whole_name(),
                       .tensor = {},
                       .parameter = slot.parameter,
                       .spread = spread,
                       .axis = state_.apart_axis,
                       .combine = StatePiece::Combine::mean};
      set_tensor(piece, flat, slot);
      visit(std::move(piece));
    }
  }
}

AdamW::AdamW(FlatState& state, const AdamWOptions& options)
    : Optimizer(state, {"exp_avg", "exp_avg_sq"}, [options](const Part& part, double lr, double gradient_scale) {
        return update(part, options, lr, gradient_scale);
      }) {
  check(options);
}

void AdamW::check(const AdamWOptions& options) {
  check_option("beta1", options.beta1, {.low = 0, .high = 1, .has_high = false});
  check_option("beta2", options.beta2, {.low = 0, .high = 1, .has_high = false});
  check_option("epsilon", options.epsilon, {.low = 0, .high = 1});
  check_option("weight_decay", options.weight_decay, {.low = 0, .high = 1e3});
}

bool AdamW::update(const Part& part, const AdamWOptions& options, double lr, double gradient_scale) {
  const bool writes = part.copies.defined() && part.copies.scalar_type() == at::kBFloat16;
  count_kernel("adamw", part.values, part.values, part.gradients, part.moments[0], part.moments[0], part.moments[1],
               part.moments[1], writes ? part.copies : at::Tensor());
  if (part.values.is_meta()) return writes;
  const auto t = static_cast<double>(part.number);
  const kernels::AdamWStep numbers{.gradient_scale = gradient_scale,
                                   .decay = 1 - lr * part.decay(options.weight_decay),
                                   .beta1 = options.beta1,
                                   .beta2 = options.beta2,
                                   .epsilon = options.epsilon,
                                   .step_size = lr / (1 - std::pow(options.beta1, t)),
                                   .root_correction = std::sqrt(1 - std::pow(options.beta2, t))};
  auto* copies = writes ? static_cast<kernels::Bf16*>(part.copies.data_ptr()) : nullptr;
  sweep_elements(part.values, part.gradients, [&](auto* values, const auto* gradients, int64_t begin, int64_t count) {
    using T = std::remove_pointer_t<decltype(values)>;
    const auto moment = [&](size_t i) { return static_cast<T*>(part.moments[i].data_ptr()) + begin; };
    kernels::adamw(values, gradients, moment(0), moment(1), copies == nullptr ? nullptr : copies + begin, count,
                   numbers);
  });
  return writes;
}

Sgd::Sgd(FlatState& state, const SgdOptions& options)
    : Optimizer(state, options.momentum > 0 ? std::vector<std::string>{"momentum"} : std::vector<std::string>{},
                [options](const Part& part, double lr, double gradient_scale) {
                  return update(part, options, lr, gradient_scale);
                }) {
  check_option("momentum", options.momentum, {.low = 0, .high = 1, .has_high = false});
  check_option("weight_decay", options.weight_decay, {.low = 0, .high = 1e3});
}

bool Sgd::update(const Part& part, const SgdOptions& options, double lr, double gradient_scale) {
  const at::Tensor momentum = part.moments.empty() ? at::Tensor() : part.moments[0];
  count_kernel("sgd", part.values, part.values, part.gradients, momentum, momentum);
  if (part.values.is_meta()) return false;
  const kernels::SgdStep numbers{.gradient_scale = gradient_scale,
                                 .weight_decay = part.decay(options.weight_decay),
                                 .momentum = options.momentum,
                                 .lr = lr};
  sweep_elements(part.values, part.gradients, [&](auto* values, const auto* gradients, int64_t begin, int64_t count) {
    using T = std::remove_pointer_t<decltype(values)>;
    T* momentum = part.moments.empty() ? nullptr : static_cast<T*>(part.moments[0].data_ptr()) + begin;
    kernels::sgd(values, gradients, momentum, count, numbers);
  });
  return false;
}

}  // namespace caravan
