#include "caravan/prove/prove.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/comm/shared/thread_ranks.h"
#include "caravan/prove/compare.h"
#include "caravan/prove/trace.h"

namespace caravan {
namespace {

void check_case(const ProveCase& what) {
  const auto refuse = [](const char* subject, const std::string& fact, const char* action) {
    throw UsageError({"prove", subject, fact, "", action});
  };
  if (!what.arrange) refuse("arrange", "is not given", "return a strategy for the model, such as ddp(model, mesh)");
  if (what.axes.empty()) refuse("axes", "are not given", "name at least one, such as {\"dp\", 2}");
  if (what.num_micro_batches < 1 || what.num_steps < 1) {
    refuse("case", fmt::format("{} steps of {} micro-batches", what.num_steps, what.num_micro_batches),
           "use 1 or more of both");
  }
  if (what.compute_dtype == at::kBFloat16 && what.dtype != at::kFloat) {
    refuse("dtype", "is fp64, and bf16 is computed with", "let parameters rest in fp32");
  }
  if (what.tolerance && !(*what.tolerance > 0)) {
    refuse("tolerance", fmt::format("{} is not above 0", *what.tolerance), "leave it out");
  }
  if (what.dtype != at::kDouble && what.dtype != at::kFloat) {
    refuse("dtype", fmt::format("parameters do not rest as {}", c10::toString(what.dtype)), "use fp64 or fp32");
  }
}

std::string axes_text(const std::vector<AxisSize>& axes) {
  std::vector<std::string> sizes;
  for (const AxisSize& axis : axes) sizes.push_back(fmt::format("{}={}", axis.name, axis.size));
  return join(sizes, " ");
}

}  // namespace

std::string ProveCase::to_string() const {
  const char* at_rest = dtype == at::kDouble ? "fp64" : "fp32";
  return fmt::format("{} on {}: {}{}{}, {} layers of width {}, {}, {} micro-batch{}, {} clipped SGD steps", name,
                     axes_text(axes), caravan::name(model.kind), model.tie_embeddings ? " with tied embeddings" : "",
                     has_documents ? ", packed documents" : "", model.layers, model.width,
                     compute_dtype == at::kBFloat16 ? "bf16" : at_rest, num_micro_batches,
                     num_micro_batches == 1 ? "" : "es", num_steps);
}

std::string Proof::Step::to_string() const {
  return fmt::format("loss {:.4f}  norm {:.3f}  largest error {:.1e}{}", loss, grad_norm, largest_error,
                     worst.empty() ? "" : " (" + worst + ")");
}

std::string Proof::Difference::fact() const {
  if (std::isnan(error)) return "is not a number";
  if (!factor) return fmt::format("differs from that of one process by {:.2g} % of its norm", 100 * error);
  if (std::abs(*factor) < 1e-9) return "is zero, and not in one process";
  const int digits = std::abs(*factor - 1) < 1e-2 ? 9 : 3;
  return fmt::format("is {:.{}f} times that of one process", *factor, digits);
}

std::string Proof::to_string() const {
  if (first) {
    const std::string others = first->num_others == 0 ? "" : fmt::format(", and {} more differ", first->num_others);
    return fmt::format("step {}: {} {} on {}{}", first->step + 1, first->what, first->fact(), first->where, others);
  }
  return fmt::format(
      "holds: loss, norm, gradients and updates of {} parameters, {} steps, {} ranks; largest relative error {:.1e}, "
      "tolerance {:.1e}",
      num_parameters, steps.size(), num_ranks, largest_error(), tolerance);
}

double Proof::largest_error() const noexcept {
  double largest = 0;
  for (const Step& step : steps) largest = std::max(largest, step.largest_error);
  return largest;
}

Proof prove(const ProveCase& what) {
  check_case(what);
  int num_ranks = 1;
  for (const AxisSize& axis : what.axes) num_ranks *= axis.size;
  std::vector<Trace> ranks(static_cast<size_t>(num_ranks));
  Trace one;
  const CommOptions options{.timeout = std::chrono::seconds(60)};
  using World = std::shared_ptr<Communicator>;
  run_thread_ranks(
      num_ranks, [&](const World& world) { ranks[static_cast<size_t>(world->rank())] = trace_on_ranks(what, world); },
      options);
  run_thread_ranks(
      1, [&](const World& world) { one = trace_on_one(what, world, ranks.front()); }, options);
  const double tolerance = what.tolerance.value_or(default_tolerance(what, ranks.front().splits_products));
  check_tolerance(one, tolerance, what);
  return compare_traces(ranks, one, tolerance, what);
}

}  // namespace caravan
