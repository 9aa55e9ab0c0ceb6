#include "caravan/prove/compare.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include <ATen/ops/scalar_tensor.h>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/nn/product/product.h"
#include "caravan/prove/judge.h"

namespace caravan {
namespace {

/// Fraction of the largest gradient that is added to the norm of each gradient.
constexpr double kFloor = 1e-2;

double rounding_sharded(const ProveCase& what) {
  return what.dtype == at::kDouble ? std::numeric_limits<double>::epsilon() : std::numeric_limits<float>::epsilon();
}

/// Relative rounding error of bf16, or fp16.
double rounding_of_layers(const ProveCase& what) { return std::ldexp(1, what.compute_dtype == at::kHalf ? -11 : -8); }

/// Native attention also rounds its weights, which are all positive, and their gradients: errors are this many times as
/// large.
double more_rounding(const ProveCase& what) {
  const bool rounds_weights =
      what.compute_dtype == at::kBFloat16 && product_choice_in_use().attention == Bf16Arithmetic::native;
  return rounds_weights ? 1.5 : 1;
}

/// Gradients below this fraction of the largest are zero except for rounding, such as those of key biases: adding the
/// same to every key changes no attention weight. In the models of shrunken() all others are above 1/20.
double zero_part(const ProveCase& what) {
  return rounds_to_16_bits(what) ? rounding_of_layers(what) : 8 * rounding_sharded(what);
}

/// The norm of a tensor of the shape of all[i] whose elements are on average as large as those of the largest one.
double largest_length(const std::vector<at::Tensor>& all, size_t i) {
  double largest = 0;
  for (const at::Tensor& x : all) {
    if (!x.defined() || x.numel() == 0) continue;
    largest = std::max(largest, length_of(x) / std::sqrt(static_cast<double>(x.numel())));
  }
  return largest * std::sqrt(static_cast<double>(all[i].numel()));
}

double floor_of(const std::vector<at::Tensor>& all, size_t i, double zero) {
  const double largest = largest_length(all, i);
  return length_of(all[i]) <= zero * largest ? largest : kFloor * largest;
}

constexpr const char* kInitialValue = "initial value of ";

/// How many times the tolerance the error of a fault is at least.
double fault_margin(const ProveCase& what) { return (what.finds_summands ? 10 : 5) / more_rounding(what); }

/// Compares the steps in order, up to the first difference.
class Comparison {
 public:
  Comparison(const std::vector<Trace>& ranks, const Trace& one, double tolerance, const ProveCase& what)
      : ranks_(ranks), one_(one), tolerance_(tolerance), zero_(zero_part(what)), rounding_(4 * rounding_sharded(what)) {
    proof_.num_ranks = static_cast<int>(ranks.size());
    proof_.num_parameters = static_cast<int>(one.names.size());
    proof_.tolerance = tolerance;
    for (const Trace& rank : ranks) add_paths(proof_.paths, rank.paths);
  }

  Proof run() {
    for (step_ = 0; step_ < one_.steps.size() && proof_.holds(); ++step_) compare_step();
    return std::move(proof_);
  }

 private:
  /// The quantity of a step that is compared.
  using Part = std::function<at::Tensor(const StepTrace& step)>;

  void compare_step() {
    const StepTrace& want = one_.steps[step_];
    proof_.steps.push_back({.loss = want.loss, .grad_norm = want.grad_norm});
    const std::vector<std::function<void()>> parts{
        [&] { compare_start(); }, [&] { compare_number("loss", &StepTrace::loss); }, [&] { compare_gradients(); },
        [&] { compare_number("gradient norm", &StepTrace::grad_norm); }, [&] { compare_updates(); }};
    for (const auto& compare_part : parts) {
      compare_part();
      // Everything that follows from it differs too. A loss says little about the location of the fault, so gradients
      // are compared with it.
      if (!proof_.holds() && proof_.first->what != "loss") return;
      if (!proof_.holds() && !proof_.first->tensor.empty()) return;
    }
  }

  void compare_start() {
    for (size_t i = 0; step_ == 0 && i < one_.names.size(); ++i) {
      compare(
          kInitialValue + one_.names[i], [=](const StepTrace& step) { return step.before[i]; }, 0, 0);
    }
  }

  void compare_number(const std::string& what, double StepTrace::*number) {
    compare(
        what, [=](const StepTrace& step) { return at::scalar_tensor(step.*number, at::kDouble); }, 0, tolerance_);
  }

  void compare_gradients() {
    const std::vector<at::Tensor>& gradients = one_.steps[step_].gradients;
    for (size_t i = 0; i < gradients.size(); ++i) {
      if (!gradients[i].defined()) continue;
      compare(
          "gradient of " + one_.names[i], [=](const StepTrace& step) { return step.gradients[i]; },
          floor_of(gradients, i, zero_), tolerance_);
    }
  }

  void compare_updates() {
    const StepTrace& want = one_.steps[step_];
    std::vector<at::Tensor> updates;
    for (size_t i = 0; i < want.after.size(); ++i) updates.push_back(want.after[i] - want.before[i]);
    for (size_t i = 0; i < updates.size(); ++i) {
      // If the update is small, the rounding of the parameter itself is not an error.
      const double floor = floor_of(updates, i, zero_) + rounding_ / tolerance_ * length_of(want.after[i]);
      compare(
          "update of " + one_.names[i], [=](const StepTrace& step) { return step.after[i] - step.before[i]; }, floor,
          tolerance_);
    }
  }

  void compare(const std::string& what, const Part& part, double floor, double tolerance) {
    const at::Tensor want = part(one_.steps[step_]);
    Proof::Step& line = proof_.steps.back();
    for (const Trace& rank : ranks_) {
      const Verdict verdict = judge(part(rank.steps[step_]), want, floor, tolerance);
      if (!std::isnan(line.largest_error) && !(verdict.error <= line.largest_error)) {
        line.largest_error = verdict.error;
        line.worst = what;
      }
      if (verdict.error <= tolerance) continue;
      if (proof_.holds()) {
        proof_.first = {.what = what,
                        .step = static_cast<int>(step_),
                        .where = rank.where,
                        .error = verdict.error,
                        .factor = verdict.factor};
      } else if (proof_.first->what != what) {
        ++proof_.first->num_others;
        if (proof_.first->tensor.empty()) proof_.first->tensor = what;
      }
      return;
    }
  }

  const std::vector<Trace>& ranks_;
  const Trace& one_;
  double tolerance_;
  double zero_;
  double rounding_;
  size_t step_ = 0;
  Proof proof_;
};

/// The largest error that rounding to 16 bits makes in one process.
double rounding_error(const Trace& one, const ProveCase& what) {
  const Trace exact{.names = one.names, .steps = one.exact};
  return Comparison({one}, exact, /*tolerance=*/1, what).run().largest_error();
}

}  // namespace

ValidTolerance largest_valid(const Trace& one, const ProveCase& what) {
  const std::vector<at::Tensor>& gradients = one.steps.front().gradients;
  const double margin = fault_margin(what);
  ValidTolerance valid;
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (!gradients[i].defined()) continue;
    const double zero = zero_part(what) * largest_length(gradients, i);
    const double length = length_of(gradients[i]);
    if (length <= zero) continue;
    double least = length / 2;  // a factor of 2 differs by more
    const char* fault = "a factor of 1/2";
    for (const std::vector<at::Tensor>& summands : one.summands) {
      if (!what.finds_summands) break;
      const double summand = length_of(summands[i]);
      if (summand <= zero || summand >= least) continue;
      least = summand;
      fault = "a missing summand";
    }
    const double error = least / (length + kFloor * largest_length(gradients, i));
    if (error / margin < valid.tolerance) {
      valid = {
          .tolerance = error / margin, .error = error, .margin = margin, .fault = fault, .parameter = one.names[i]};
    }
  }
  return valid;
}

std::string ValidTolerance::to_string() const {
  return fmt::format("{} in the gradient of {} would be an error of {:.2g}, less than {:.2g} times as much", fault,
                     parameter, error, margin);
}

double default_tolerance(const Trace& one, const ProveCase& what) {
  if (!rounds_to_16_bits(what)) return what.dtype == at::kDouble ? 1e-10 : 2e-5;
  if (one.exact.empty()) return 2e-5;
  // A layer rounds 14 activations in forward, and about twice as many gradients in backward; each by at most 2^-8
  // (2^-11 in fp16), in independent directions. With adapters the outputs of up to 7 products are rounded once more.
  const int64_t of_layer = what.model.lora.is_used() ? 21 : 14;
  const int64_t num_roundings = 3 * (of_layer * what.model.layers + 4);
  const double expected =
      more_rounding(what) * rounding_of_layers(what) * std::sqrt(static_cast<double>(num_roundings));
  // Some values are rounded worse, such as those that nearly cancel. Ranks and one process are about equally far from
  // what nobody has rounded, in independent directions: sqrt(2) times as far from each other.
  constexpr double kApart = 1.5;
  const double found = std::min(kApart * rounding_error(one, what), largest_valid(one, what).tolerance);
  return std::max(expected, found);
}

bool may_be_rounding(const Proof& proof, const ProveCase& what) {
  if (proof.holds() || proof.first->what.starts_with(kInitialValue)) return false;
  return proof.steps.back().largest_error < fault_margin(what) / 2 * proof.tolerance;  // false for NaN
}

Proof compare_traces(const std::vector<Trace>& ranks, const Trace& one, double tolerance, const ProveCase& what) {
  return Comparison(ranks, one, tolerance, what).run();
}

}  // namespace caravan
