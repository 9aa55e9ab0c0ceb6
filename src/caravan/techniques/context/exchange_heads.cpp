#include "caravan/techniques/context/exchange_heads.h"

#include <numeric>

#include <fmt/format.h>

#include "caravan/base/divisors.h"
#include "caravan/base/text.h"
#include "caravan/registry/registry.h"

namespace caravan {

std::optional<Misfit> misfit_of_heads(const ModelConfig& model, int64_t ranks, const SplitParts& others) {
  if (model.heads % (others.heads * ranks) == 0) return std::nullopt;
  const std::string right = join(divisors(model.heads / std::gcd(model.heads, others.heads), 2, model.heads), " or ");
  std::vector<std::string> without;  // kinds that leave heads whole
  for (const Entry& entry : entries_of("context_parallel")) {
    const Setting kind("context_parallel", entry.name);
    if (entry.parts(kind, 2).heads == 1) without.push_back("\"" + entry.name + "\"");
  }
  return Misfit{"mesh.cp",
                fmt::format("{} heads do not divide among {} ranks that exchange sequence for heads{}", model.heads,
                            ranks, others.heads > 1 ? fmt::format(" and {} of tensor parallelism", others.heads) : ""),
                fmt::format("use {}kind {}", right.empty() ? "" : right + " of them, or ", join(without, " or "))};
}

}  // namespace caravan
