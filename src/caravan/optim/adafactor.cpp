#include "caravan/optim/adafactor.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include <ATen/ops/zeros.h>

#include "caravan/base/error.h"
#include "caravan/base/parallel_for.h"
#include "caravan/comm/tensor.h"
#include "caravan/module/count_kernel.h"
#include "caravan/module/path.h"
#include "caravan/optim/adafactor_kernels.h"
#include "caravan/optim/check_on_device.h"
#include "caravan/optim/factored_moments.h"
#include "caravan/optim/factored_sums.h"
#include "caravan/optim/grad_norm.h"
#include "caravan/optim/zeros_of_slots.h"

namespace caravan {
namespace {

constexpr const char* kAdafactorUpdates = "exp_avg";
constexpr const char* kAdafactorSquares = "exp_avg_sq";
constexpr double kSmallestScale = 1e-3;  // of scale_by_parameter, as in the paper

bool is_factored(const Parameter& parameter) { return parameter.global_shape().size() == 2; }

/// Calls f(T, G) with the types of values and gradients, as sweep_elements.
template <class F>
void with_element_types(const FlatState& state, const F& f) {
  if (state.values.scalar_type() == at::kDouble) {
    f(double{}, double{});
  } else if (state.gradients.scalar_type() == at::kBFloat16) {
    f(float{}, kernels::Bf16{});
  } else {
    f(float{}, float{});
  }
}

/// Adds up over the ranks of a stage.
void sum_over(const MatrixRanks& ranks, const at::Tensor& sums, const char* what) {
  if (ranks.size() == 1 || sums.numel() == 0) return;
  all_reduce_async(ranks.comm(), sums, sums, ReduceOp::sum, what).wait();
  take_path(what, sums);
}

}  // namespace

struct Adafactor::Step {
  double lr = 0;
  double gradient_scale = 1;
  double rest = 1;       ///< weight of this step's squares in second moments
  at::Tensor factors{};  ///< of rows and of columns
};

/// What this rank holds of a parameter, flat: nothing, or all that is kept of it.
struct Adafactor::Held {
  at::Tensor values{};
  at::Tensor gradients{};
  at::Tensor squares{};  ///< second moments of single elements
  at::Tensor updates{};  ///< their average
  at::Tensor copies{};   ///< of the values
};

Adafactor::Adafactor(FlatState& state, const AdafactorOptions& options)
    : Optimizer(
          state, {},
          [](const Part&, double, double) -> bool {
            throw InternalError({"optimizer", "adafactor", "is asked to update a part of the parameters", "", ""});
          }),
      options_(options) {
  check_option("decay_exponent", options.decay_exponent, {.low = 0, .high = 1});
  check_option("epsilon1", options.epsilon1, {.low = 1e-36, .high = 1});
  check_option("clip_threshold", options.clip_threshold, {.low = 1e-6, .high = 1e6});
  check_option("momentum", options.momentum, {.low = 0, .high = 1, .has_high = false});
  check_option("weight_decay", options.weight_decay, {.low = 0, .high = 1e3});
  check_on_device(state, "adafactor", "needs sums over whole rows and columns");
  factored_ = std::make_unique<FactoredMoments>(state);
  const auto has = [this](const Slot& slot) { return keeps(kAdafactorSquares, slot); };
  moments_.emplace_back(kAdafactorSquares, zeros_of_slots(state, has));
  if (options.momentum > 0) moments_.emplace_back(kAdafactorUpdates, state.zeros_like_trained());
}

Adafactor::~Adafactor() = default;

bool Adafactor::keeps(const std::string& moment, const Slot& slot) const {
  return slot.parameter->requires_grad() && (moment != kAdafactorSquares || !is_factored(*slot.parameter));
}

void Adafactor::check_parts() const {
  throw UsageError({"optimizer", "adafactor",
                    "needs sums over whole rows and columns, but is asked to update one bucket", "",
                    "use AdamW where ranks step apart or groups step early"});
}

void Adafactor::walk(const Visit& visit) {
  Optimizer::walk(visit);
  factored_->walk(visit);
}

bool Adafactor::step_all(double lr, double gradient_scale) {
  begin_average();
  Step step{.lr = lr,
            .gradient_scale = gradient_scale,
            .rest = std::pow(static_cast<double>(num_steps()), -options_.decay_exponent)};
  step.factors = move_factored(step);
  update(step, squares_of_updates(step));
  add_to_average();
  return true;
}

Adafactor::Held Adafactor::held(const FactoredParameter& of) const {
  const Slot& slot = state_.layout.slots()[of.slot];
  const int64_t offset = slot.sharded_offset, count = slot.sharded_count();
  if (count == 0) return {};
  return {.values = state_.values.narrow(offset, count),
          .gradients = state_.gradients.narrow(offset, count),
          .squares = of.matrices == 0 ? moments_[0].second.narrow(offset, count) : at::Tensor(),
          .updates = options_.momentum > 0 ? moments_[1].second.narrow(offset, count) : at::Tensor(),
          .copies = state_.copies.has(offset) ? state_.copies.narrow(offset, count) : at::Tensor()};
}

/// Moves the means of rows and columns. Returns the factors of an update that follow from them, those of all rows and
/// then those of all columns.
at::Tensor Adafactor::move_factored(const Step& step) const {
  const FactoredMoments& moments = *factored_;
  const int64_t num_rows = moments.rows().numel();
  const at::Tensor sums = at::zeros({num_rows + moments.columns().numel()}, state_.values.options());
  for (const FactoredParameter& of : moments.parameters()) {
    const Held held = this->held(of);
    if (of.matrices == 0 || !of.is_counted || !held.values.defined()) continue;
    count_kernel("adafactor squares", held.gradients, held.gradients);
    if (sums.is_meta()) continue;
    with_element_types(state_, [&]<class T, class G>(T, G) {
      T* rows = sums.data_ptr<T>();
      add_squares_of_piece(of, static_cast<const G*>(held.gradients.const_data_ptr()),
                           step.gradient_scale * step.gradient_scale, rows, rows + num_rows);
    });
  }
  sum_over(moments.ranks(), sums, "squares of gradients");
  count_kernel("adafactor means", sums, sums, sums, sums);
  if (sums.is_meta()) return sums;
  with_element_types(state_, [&]<class T, class G>(T, G) {
    T *to = sums.data_ptr<T>(), *rows = moments.rows().data_ptr<T>(), *columns = moments.columns().data_ptr<T>();
    for (const FactoredParameter& of : moments.parameters()) {
      for (int64_t i = 0; i < of.matrices; ++i) {
        const int64_t row = of.row + i * of.rows, column = of.column + i * of.columns;
        move_means(rows + row, to + row, of.rows, of.columns, step.rest, options_.epsilon1, /*is_relative=*/true);
        move_means(columns + column, to + num_rows + column, of.columns, of.rows, step.rest, options_.epsilon1,
                   /*is_relative=*/false);
      }
    }
  });
  return sums;
}

/// Moves the second moments of single elements. Returns the sum of squares of each parameter's update, and then, to
/// scale by them, those of its values.
at::Tensor Adafactor::squares_of_updates(const Step& step) const {
  const std::vector<FactoredParameter>& parameters = factored_->parameters();
  const auto count = static_cast<int64_t>(parameters.size());
  const at::Tensor sums = at::zeros({options_.scale_by_parameter ? 2 * count : count}, state_.values.options());
  for (int64_t i = 0; i < count; ++i) {
    const FactoredParameter& of = parameters[static_cast<size_t>(i)];
    const Held held = this->held(of);
    if (!held.values.defined() || (of.matrices > 0 && !of.is_counted)) continue;
    count_kernel("adafactor squares of updates", held.gradients, held.gradients, held.squares, held.squares,
                 options_.scale_by_parameter ? held.values : at::Tensor());
    if (sums.is_meta()) continue;
    with_element_types(state_, [&]<class T, class G>(T, G) {
      const auto* gradients = static_cast<const G*>(held.gradients.const_data_ptr());
      const T* rows = step.factors.const_data_ptr<T>();
      const double of_update =
          of.matrices > 0 ? squares_of_piece(of, gradients, step.gradient_scale, rows, rows + factored_->rows().numel())
                          : sum_over_parts(held.values.numel(), [&](int64_t begin, int64_t size) {
                              return kernels::move_squares(gradients + begin, held.squares.data_ptr<T>() + begin, size,
                                                           step.gradient_scale, step.rest, options_.epsilon1);
                            });
      if (of.is_counted) sums.data_ptr<T>()[i] = static_cast<T>(of_update);
    });
    if (!options_.scale_by_parameter || !of.is_counted) continue;
    sums[count + i].fill_(sum_over_parts(held.values.numel(), [&](int64_t begin, int64_t size) {
      return sum_of_squares(held.values.narrow(0, begin, size));
    }));
  }
  sum_over(factored_->ranks(), sums, "squares of updates");
  return sums;
}

void Adafactor::update(const Step& step, const at::Tensor& squares) const {
  const std::vector<FactoredParameter>& parameters = factored_->parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    const FactoredParameter& of = parameters[i];
    const Held held = this->held(of);
    if (!held.values.defined()) continue;
    const double planted = take_path(of.matrices > 0 ? "update by factored moments" : "update by second moments");
    const bool writes = held.copies.defined() && held.copies.scalar_type() == at::kBFloat16;
    count_kernel("adafactor", held.values, held.values, held.gradients, held.squares, held.updates, held.updates,
                 writes ? held.copies : at::Tensor());
    if (!squares.is_meta()) {
      const auto rms = [&](size_t at) {
        return std::sqrt(squares[static_cast<int64_t>(at)].item<double>() / static_cast<double>(of.count));
      };
      const Parameter& parameter = *state_.layout.slots()[of.slot].parameter;
      Part part;
      part.decays = parameter.spec().decays;
      part.rule = parameter.update_rule();
      double lr = step.lr * part.rule.lr_factor;
      if (options_.scale_by_parameter) lr *= std::max(kSmallestScale, rms(parameters.size() + i));
      const double clipped = std::max(1.0, rms(i) / options_.clip_threshold);
      sweep(step, of, held,
            {.size = planted * lr * step.gradient_scale / clipped,
             .decay = 1 - lr * part.decay(options_.weight_decay),
             .momentum = options_.momentum});
    }
    if (!writes && held.copies.defined()) held.copies.copy_(held.values);
  }
}

/// Updates what this rank holds of a parameter.
void Adafactor::sweep(const Step& step, const FactoredParameter& of, const Held& held,
                      const kernels::AdafactorStep& numbers) const {
  const bool writes = held.copies.defined() && held.copies.scalar_type() == at::kBFloat16;
  with_element_types(state_, [&]<class T, class G>(T, G) {
    const auto write = [&](int64_t first, const kernels::UpdateFactors<T>& by, const kernels::MatrixBlock& block) {
      kernels::adafactor(
          held.values.data_ptr<T>() + first, static_cast<const G*>(held.gradients.const_data_ptr()) + first, by,
          held.updates.defined() ? held.updates.data_ptr<T>() + first : nullptr,
          writes ? static_cast<kernels::Bf16*>(held.copies.data_ptr()) + first : nullptr, block, numbers);
    };
    if (of.matrices == 0) {
      parallel_for(0, held.values.numel(), kElementsAtOnce, [&](int64_t begin, int64_t end) {
        write(begin, {.exp_avg_sq = held.squares.const_data_ptr<T>() + begin},
              {.rows = 1, .columns = end - begin, .stride = end - begin});
      });
    }
    const T *rows = step.factors.const_data_ptr<T>(), *columns = rows + factored_->rows().numel();
    for (const FactoredBlock& block : of.blocks) {
      for_rows_of(block, [&](int64_t first, const kernels::MatrixBlock& part) {
        write(block.first + first * block.stride, {.rows = rows + block.row + first, .columns = columns + block.column},
              part);
      });
    }
  });
}

}  // namespace caravan
