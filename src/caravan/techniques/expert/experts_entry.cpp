#include <fmt/format.h>

#include "caravan/base/divisors.h"
#include "caravan/base/text.h"
#include "caravan/registry/registry.h"

namespace caravan {
namespace {

/// `others` split the layers of experts too, even if this split has one rank.
std::optional<Misfit> misfit_of_experts(const Setting&, int64_t ranks, const ModelConfig& model,
                                        const SplitParts& others) {
  const int64_t experts = model.moe.experts;
  if (experts == 0) {
    if (ranks == 1) return std::nullopt;
    return Misfit{"mesh.ep", fmt::format("{} ranks share the experts of a model that has none", ranks),
                  "use 1, or set moe.experts"};
  }
  const int64_t all = ranks * others.experts;
  if (experts % all == 0) return std::nullopt;
  std::string right;
  if (experts % others.experts == 0) right = join(divisors(experts / others.experts, 2, experts), " or ");
  if (right.empty()) {
    right = fmt::format("a degree of tensor parallelism that divides {}, or moe.experts = {}", experts,
                        (experts / all + 1) * all);
  }
  return Misfit{ranks > 1 ? "mesh.ep" : "mesh.tp",
                fmt::format("{} experts do not divide among {} ranks{}", experts, all,
                            others.experts > 1 ? fmt::format(" ({} of tensor parallelism)", others.experts) : ""),
                "use " + right};
}

}  // namespace

Entry experts_entry() {
  return {.family = "expert_parallel",
          .name = "experts",
          .summary = "each rank has a part of a micro-batch and of the experts, to which tokens are sent",
          .paper = "Lepikhin et al., arXiv 2006.16668; Gale et al., arXiv 2211.15841",
          .parts = [](const Setting&, int64_t ranks) { return SplitParts{.experts = ranks, .rows = ranks}; },
          .check_model = misfit_of_experts};
}

}  // namespace caravan
