#include "caravan/registry/registry.h"
#include "caravan/techniques/context/exchange_heads.h"

namespace caravan {

/// A ring deals out two chunks of a sequence to each rank (techniques/context/ring_order.h).
Entry ring_entry() {
  return {.family = "context_parallel",
          .name = "ring",
          .summary = "queries stay, keys and values go around; each rank has an early and a late chunk of a sequence",
          .paper = "Liu et al., arXiv 2310.01889",
          .parts = [](const Setting&, int64_t ranks) { return SplitParts{.stream = ranks, .pieces = 2 * ranks}; },
          .check_model = [](const Setting&, int64_t ranks, const ModelConfig& model,
                            const SplitParts&) { return misfit_of_text(model, ranks, /*has_ring=*/true); }};
}

}  // namespace caravan
