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

std::optional<Misfit> TensorParallelChoice::misfit(const ModelConfig& model) const {
  if (is_1d()) return misfit_of_degree(model, degree);
  if (auto misfit = misfit_of_ranks(kind, degree, has_depth() ? depth : 1)) return misfit;
  if (side() == 1) {
    return Misfit{"tensor_parallel.depth", fmt::format("{} ranks with a depth of {} split no layer", degree, depth),
                  "use a depth of 1"};
  }
  return misfit_of_grid(kind, model, side());
}

std::optional<Misfit> ContextParallelChoice::misfit(const ModelConfig& model, int64_t tensor) const {
  if (has_both() && (exchange < 2 || exchange == degree || degree % exchange != 0)) {
    const std::string proper = join(divisors(degree, 2, degree - 1), " or ");
    return Misfit{"context_parallel.exchange",
                  exchange == 0 ? fmt::format("is needed by kind \"both\": a proper divisor of {} ranks", degree)
                                : fmt::format("{} is not a proper divisor of {} ranks", exchange, degree),
                  proper.empty() ? "use kind \"ring\" or \"ulysses\"" : "use " + proper};
  }
  if (model.heads % (tensor * num_ulysses()) == 0) return std::nullopt;
  const std::string right = join(divisors(model.heads / std::gcd(model.heads, tensor), 2, model.heads), " or ");
  return Misfit{"mesh.cp",
                fmt::format("{} heads do not divide among {} ranks that exchange sequence for heads{}", model.heads,
                            num_ulysses(), tensor > 1 ? fmt::format(" and {} of tensor parallelism", tensor) : ""),
                fmt::format("use {}kind \"ring\"", right.empty() ? "" : right + " of them, or ")};
}

std::optional<Misfit> ExpertParallelChoice::misfit(const ModelConfig& model, const TensorParallelChoice& tensor) const {
  const int64_t experts = model.moe.experts;
  if (experts == 0) {
    if (!is_used()) return std::nullopt;
    return Misfit{"mesh.ep", fmt::format("{} ranks share the experts of a model that has none", degree),
                  "use 1, or set moe.experts"};
  }
  if (tensor.is_used() && !tensor.is_1d()) {
    return Misfit{"tensor_parallel.kind", fmt::format("\"{}\" has no table for experts", tensor.kind), "use \"1d\""};
  }
  const int64_t others = tensor.is_used() ? tensor.degree : 1;
  if (experts % (degree * others) == 0) return std::nullopt;
  std::string right;
  if (experts % others == 0) right = join(divisors(experts / others, 2, experts), " or ");
  if (right.empty()) right = fmt::format("{} experts", (experts / (degree * others) + 1) * degree * others);
  return Misfit{is_used() ? "mesh.ep" : "mesh.tp",
                fmt::format("{} experts do not divide among {} ranks{}", experts, degree * others,
                            others > 1 ? fmt::format(" ({} of tensor parallelism)", others) : ""),
                "use " + right};
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

std::optional<Misfit> misfit_of_degree(const ModelConfig& config, int64_t degree) {
  const std::string wrong = wrong_with_parts(config, degree);
  if (wrong.empty()) return std::nullopt;
  std::vector<std::string> degrees;
  for (int64_t each = 2; each <= config.heads; ++each) {
    if (wrong_with_parts(config, each).empty()) degrees.push_back(std::to_string(each));
  }
  return Misfit{"mesh.tp", wrong, "use " + (degrees.empty() ? "1" : join(degrees, " or "))};
}

}  // namespace caravan
