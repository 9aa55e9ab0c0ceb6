#include "caravan/techniques/context/exchange_heads.h"

#include <numeric>

#include <fmt/format.h>

#include "caravan/base/divisors.h"
#include "caravan/base/text.h"
#include "caravan/registry/registry.h"

namespace caravan {

std::optional<Misfit> misfit_of_text(const ModelConfig& model, int64_t ranks, bool has_ring) {
  if (ranks == 1) return std::nullopt;
  if (model.has_encoder()) {
    return Misfit{"mesh.cp", "a row of an encoder and a decoder is of two texts, which are not split",
                  "use mesh.cp = 1, and mesh.tp or mesh.pp"};
  }
  if (has_ring && !model.arch.is_causal) {
    return Misfit{"context_parallel.kind", "a ring is causal, and tokens of this model see all of their text",
                  "use kind \"ulysses\""};
  }
  return std::nullopt;
}

std::optional<Misfit> misfit_of_heads(const ModelConfig& model, int64_t ranks, const SplitParts& others) {
  if (auto misfit = misfit_of_text(model, ranks, /*has_ring=*/false)) return misfit;
  if (model.arch.positions == Positions::buckets && others.heads > 1 && ranks > 1) {
    return Misfit{"mesh.cp", "biases of distances, whose heads are split by tensor parallelism and by this",
                  "use one of them"};
  }
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
