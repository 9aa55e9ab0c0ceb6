#include "caravan/prove/prove.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/comm/backends/shared/thread_ranks.h"
#include "caravan/comm/calls/agree.h"
#include "caravan/prove/compare.h"
#include "caravan/prove/trace.h"

namespace caravan {
namespace {

// JSON has no NaN.
uint64_t bits(double value) { return std::bit_cast<uint64_t>(value); }
double number(const nlohmann::json& json) { return std::bit_cast<double>(json.get<uint64_t>()); }

void check_case(const ProveCase& what) {
  const auto refuse = [](const char* subject, const std::string& fact, const char* action) {
    throw UsageError({"prove", subject, fact, "", action});
  };
  if (!what.arrange)
    refuse("arrange", "is not given", "return a strategy for the model, such as whole_model(model, mesh)");
  if (what.axes.empty()) refuse("axes", "are not given", "name at least one, such as {\"dp\", 2}");
  if (what.num_micro_batches < 1 || what.num_steps < 1) {
    refuse("case", fmt::format("{} steps of {} micro-batches", what.num_steps, what.num_micro_batches),
           "use 1 or more of both");
  }
  if (rounds_to_16_bits(what) && what.dtype != at::kFloat) {
    refuse("dtype", "is fp64, but layers compute in 16 bits", "use fp32 parameters");
  }
  if (what.tolerance && !(*what.tolerance > 0)) {
    refuse("tolerance", fmt::format("{} is not above 0", *what.tolerance), "leave it out");
  }
  if (what.dtype != at::kDouble && what.dtype != at::kFloat) {
    refuse("dtype", fmt::format("sharded parameters cannot be {}", c10::toString(what.dtype)), "use fp64 or fp32");
  }
}

/// The result of rank 0, for all ranks.
nlohmann::json compared(const ProveCase& what, const std::vector<Trace>& ranks) {
  Trace one;
  run_thread_ranks(1,
                   [&](const std::shared_ptr<Communicator>& alone) { one = trace_on_one(what, alone, ranks.front()); });
  const double tolerance = what.tolerance ? *what.tolerance : default_tolerance(one, what);
  const ValidTolerance valid = largest_valid(one, what);
  if (what.tolerance && tolerance > valid.tolerance) {
    throw UsageError(
        {"prove", fmt::format("tolerance {:.2g}", tolerance), valid.to_string(), "", "lower it, or leave it out"});
  }
  Proof proof = compare_traces(ranks, one, std::min(tolerance, valid.tolerance), what);
  if (!proof.holds() && tolerance > valid.tolerance && compare_traces(ranks, one, tolerance, what).holds()) {
    proof.doubt = fmt::format("rounding explains up to {:.2g}, and {}", tolerance, valid.to_string());
  }
  nlohmann::json json{{"ranks", proof.num_ranks},
                      {"parameters", proof.num_parameters},
                      {"tolerance", proof.tolerance},
                      {"paths", proof.paths},
                      {"doubt", proof.doubt}};
  for (const Proof::Step& step : proof.steps) {
    json["steps"].push_back({bits(step.loss), bits(step.grad_norm), bits(step.largest_error), step.worst});
  }
  if (!proof.first) return json;
  json["first"] = {{"what", proof.first->what},         {"step", proof.first->step},
                   {"where", proof.first->where},       {"error", bits(proof.first->error)},
                   {"others", proof.first->num_others}, {"tensor", proof.first->tensor}};
  if (proof.first->factor) json["first"]["factor"] = bits(*proof.first->factor);
  return json;
}

Proof proof_of(const nlohmann::json& json) {
  Proof proof{
      .num_ranks = json.at("ranks"), .num_parameters = json.at("parameters"), .tolerance = json.at("tolerance")};
  proof.paths = json.at("paths").get<PathCounts>();
  proof.doubt = json.at("doubt");
  for (const nlohmann::json& step : json.at("steps")) {
    proof.steps.push_back({number(step[0]), number(step[1]), number(step[2]), step[3]});
  }
  if (!json.contains("first")) return proof;
  const nlohmann::json& first = json.at("first");
  proof.first = {.what = first.at("what"),
                 .step = first.at("step"),
                 .where = first.at("where"),
                 .error = number(first.at("error")),
                 .num_others = first.at("others"),
                 .tensor = first.at("tensor")};
  if (first.contains("factor")) proof.first->factor = number(first.at("factor"));
  return proof;
}

}  // namespace

std::string ProveCase::to_string() const {
  const char* sharded = dtype == at::kDouble ? "fp64" : "fp32";
  const char* computes = compute_dtype == at::kBFloat16 ? "bf16" : compute_dtype == at::kHalf ? "fp16" : sharded;
  return fmt::format("{} on {}: {}{}{}, {} layers of width {}, {}{}, {} micro-batch{}{}, {} {}{} steps", name,
                     caravan::to_string(axes), model.arch.name, model.tie_embeddings ? " with tied embeddings" : "",
                     has_documents ? ", packed documents" : "", model.layers, model.width, computes,
                     model.dropout > 0 ? fmt::format(", dropout {}", model.dropout) : "", num_micro_batches,
                     num_micro_batches == 1 ? "" : "es",
                     deal.is_even() ? "" : fmt::format(" of {} sequences", join(deal.rows, " and ")), num_steps,
                     clip_norm > 0 ? "clipped " : "", optimizer_name);
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

std::string Proof::Difference::others() const {
  if (num_others == 0) return "";
  if (what != "loss" && what != "gradient norm") return fmt::format(", and {} more differ", num_others);
  return fmt::format(", and {}{} differ{}", tensor, num_others == 1 ? "" : fmt::format(" and {} more", num_others - 1),
                     num_others == 1 ? "s" : "");
}

std::string Proof::to_string() const {
  if (first) {
    const std::string others = first->others();
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

Proof prove_values(const ProveCase& what, const std::shared_ptr<Communicator>& world) {
  check_case(what);
  const std::vector<Trace> ranks = gather_traces(trace_on_ranks(what, world), world);
  const auto compare = [&] { return compared(what, ranks).dump(); };
  return proof_of(nlohmann::json::parse(text_of_rank_0(*world, compare, "proof")));
}

void refuse_doubt(const Proof& proof) {
  if (proof.doubt.empty()) return;
  throw UsageError({"prove", proof.first->what, fmt::format("{}: {}", proof.first->fact(), proof.doubt), "",
                    "prove it in a wider type, on fewer ranks or in fewer micro-batches"});
}

Proof prove(const ProveCase& what, const std::shared_ptr<Communicator>& world) {
  Proof proof = prove_values(what, world);
  refuse_doubt(proof);
  return proof;
}

Proof prove(const ProveCase& what) {
  check_case(what);
  int num_ranks = 1;
  for (const AxisSize& axis : what.axes) num_ranks *= axis.size;
  Proof proof;
  run_thread_ranks(num_ranks,
                   [&](const std::shared_ptr<Communicator>& world) {
                     Proof own = prove(what, world);
                     if (world->rank() == 0) proof = std::move(own);
                   },
                   {.timeout = std::chrono::seconds(60)});
  return proof;
}

}  // namespace caravan
