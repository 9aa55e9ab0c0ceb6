#include "caravan/registry/registry.h"
#include "caravan/techniques/context/exchange_heads.h"

namespace caravan {

/// Sends and holds as much as a ring.
Entry striped_entry() {
  return {.family = "context_parallel",
          .name = "striped",
          .summary = "a ring in which token i is on rank i mod n, so that all blocks are triangles",
          .paper = "Brandon et al., arXiv 2311.09431",
          .parts = [](const Setting&, int64_t ranks) { return SplitParts{.stream = ranks, .pieces = ranks}; },
          .check_model = [](const Setting&, int64_t ranks, const ModelConfig& model,
                            const SplitParts&) { return misfit_of_text(model, ranks, /*has_ring=*/true); }};
}

}  // namespace caravan
