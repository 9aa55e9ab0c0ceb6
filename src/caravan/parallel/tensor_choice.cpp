#include "caravan/parallel/tensor_choice.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "caravan/base/divisors.h"
#include "caravan/base/text.h"
#include "caravan/parallel/grid.h"

namespace caravan {

const std::vector<std::string>& tensor_kinds() {
  static const std::vector<std::string> kinds{"1d", "2d", "2.5d", "3d"};
  return kinds;
}

const std::vector<std::string>& context_kinds() {
  static const std::vector<std::string> kinds{"ring", "ulysses", "both"};
  return kinds;
}

int64_t TensorParallelChoice::side() const {
  return is_1d() ? degree : std::max<int64_t>(grid_side(kind, degree, has_depth() ? depth : 1), 1);
}

int64_t TensorParallelChoice::row_parts() const {
  if (!is_used() || is_1d()) return 1;
  return side() * (kind == "3d" ? side() : has_depth() ? depth : 1);
}

std::string TensorParallelChoice::wrong_with(const ModelConfig& model) const {
  if (is_1d()) return wrong_with_degree(model, degree);
  const std::string wrong = wrong_with_ranks(kind, degree, has_depth() ? depth : 1);
  if (!wrong.empty()) return wrong;
  if (side() == 1) return fmt::format("{} ranks with a depth of {} split no layer: use a depth of 1", degree, depth);
  return wrong_with_grid(kind, model, side());
}

std::string ContextParallelChoice::wrong_with(const ModelConfig& model, int64_t tensor) const {
  if (has_both() && (exchange < 2 || exchange == degree || degree % exchange != 0)) {
    const std::string fact =
        exchange == 0
            ? fmt::format("kind \"both\" needs context_parallel.exchange, a proper divisor of {} ranks", degree)
            : fmt::format("context_parallel.exchange = {} is not a proper divisor of {} ranks", exchange, degree);
    const std::string proper = join(divisors(degree, 2, degree - 1), " or ");
    return fact + (proper.empty() ? ": use kind \"ring\" or \"ulysses\"" : ": use " + proper);
  }
  if (model.heads % (tensor * num_ulysses()) == 0) return "";
  const std::string right = join(divisors(model.heads / std::gcd(model.heads, tensor), 2, model.heads), " or ");
  return fmt::format("{} heads do not divide among {} ranks that exchange sequence for heads{}: use {}kind \"ring\"",
                     model.heads, num_ulysses(), tensor > 1 ? fmt::format(" and {} of tensor parallelism", tensor) : "",
                     right.empty() ? "" : right + " of them, or ");
}

std::string ExpertParallelChoice::wrong_with(const ModelConfig& model, const TensorParallelChoice& tensor) const {
  const int64_t experts = model.moe.experts;
  if (experts == 0) {
    return is_used()
               ? fmt::format("{} ranks share the experts of a model that has none: use 1, or set moe.experts", degree)
               : "";
  }
  if (tensor.is_used() && !tensor.is_1d()) {
    return fmt::format("tensor_parallel.kind \"{}\" has no table for experts: use \"1d\"", tensor.kind);
  }
  const int64_t others = tensor.is_used() ? tensor.degree : 1;
  if (experts % (degree * others) == 0) return "";
  std::string right;
  if (experts % others == 0) right = join(divisors(experts / others, 2, experts), " or ");
  return fmt::format(
      "{} experts do not divide among {} ranks{}: use {}", experts, degree * others,
      others > 1 ? fmt::format(" ({} of tensor parallelism)", others) : "",
      right.empty() ? fmt::format("{} experts", (experts / (degree * others) + 1) * degree * others) : right);
}

std::vector<int64_t> parts_of(int64_t rows, int64_t n) {
  std::vector<int64_t> parts(static_cast<size_t>(n), rows / n);
  for (int64_t i = 0; i < rows % n; ++i) ++parts[static_cast<size_t>(i)];
  return parts;
}

namespace {

std::string wrong_with_parts(const ModelConfig& config, int64_t degree) {
  if (config.heads % degree != 0) return fmt::format("{} ranks cannot share {} heads equally", degree, config.heads);
  if (config.hidden_width() < degree) {
    return fmt::format("{} ranks share an MLP of {} features", degree, config.hidden_width());
  }
  if (config.vocabulary > 0 && config.vocabulary < degree) {
    return fmt::format("{} ranks share a vocabulary of {}", degree, config.vocabulary);
  }
  return "";
}

}  // namespace

std::string wrong_with_degree(const ModelConfig& config, int64_t degree) {
  const std::string wrong = wrong_with_parts(config, degree);
  if (wrong.empty()) return "";
  std::vector<std::string> degrees;
  for (int64_t each = 2; each <= config.heads; ++each) {
    if (wrong_with_parts(config, each).empty()) degrees.push_back(std::to_string(each));
  }
  return wrong + ": use " + (degrees.empty() ? "1" : join(degrees, " or "));
}

}  // namespace caravan
