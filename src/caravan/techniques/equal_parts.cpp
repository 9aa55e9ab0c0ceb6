#include "caravan/techniques/equal_parts.h"

#include <algorithm>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "caravan/base/text.h"

namespace caravan {
namespace {

std::string wrong_with_parts(const ModelConfig& config, int64_t degree) {
  if (config.heads % degree != 0 && config.num_kv_heads() < degree) {
    return config.num_kv_heads() == config.heads ? fmt::format("{} ranks share {} heads", degree, config.heads)
                                                 : fmt::format("{} ranks cannot share {} heads of {} groups", degree,
                                                               config.heads, config.num_kv_heads());
  }
  const int64_t hidden = std::min(config.hidden_width(), config.dense_width());
  if (hidden < degree) return fmt::format("{} ranks share an MLP of {} features", degree, hidden);
  if (config.arch.qk_norm == QkNorm::whole && config.num_kv_heads() % degree != 0) {
    return fmt::format("{} ranks cannot share {} heads of keys equally, whose norm is of all of them", degree,
                       config.num_kv_heads());
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
