#include "caravan/registry/registry.h"
#include "caravan/techniques/context/exchange_heads.h"

namespace caravan {

Entry ulysses_entry() {
  return {.family = "context_parallel",
          .name = "ulysses",
          .summary = "attention exchanges sequence for heads: whole sequences of some heads on each rank",
          .paper = "Jacobs et al., arXiv 2309.14509",
          .parts = [](const Setting&,
                      int64_t ranks) { return SplitParts{.heads = ranks, .stream = ranks, .pieces = ranks}; },
          .check_model = [](const Setting&, int64_t ranks, const ModelConfig& model,
                            const SplitParts& others) { return misfit_of_heads(model, ranks, others); }};
}

}  // namespace caravan
