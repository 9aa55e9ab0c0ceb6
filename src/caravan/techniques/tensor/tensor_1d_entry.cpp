#include "caravan/registry/registry.h"
#include "caravan/techniques/equal_parts.h"

namespace caravan {
namespace {

/// 4 ranks if they share heads of keys and values unequally.
int64_t shrink_1d(Setting&, int64_t ranks, const ModelConfig& model) {
  return model.num_kv_heads() % ranks != 0 && ranks > 3 ? 4 : few_ranks(ranks);
}

}  // namespace

Entry tensor_1d_entry() {
  SettingKey sequence{{"sequence", OnResume::free},
                      "norms and the residual stream are split too, over the sequence",
                      false,
                      true_or_false()};
  return {.family = "tensor_parallel",
          .name = "1d",
          .summary = "by columns and then by rows: whole heads, and parts of the MLP, on each rank",
          .paper = "Shoeybi et al., arXiv 1909.08053; Korthikanti et al., arXiv 2205.05198",
          .keys = {sequence},
          .parts =
              [](const Setting& setting, int64_t ranks) {
                return SplitParts{.heads = ranks, .experts = ranks, .stream = setting.flag("sequence") ? ranks : 1};
              },
          .check_model = [](const Setting& setting, int64_t ranks, const ModelConfig& model,
                            const SplitParts&) -> std::optional<Misfit> {
            if (ranks > 1 && setting.flag("sequence") && model.has_encoder()) {
              return Misfit{"tensor_parallel.sequence", "a row of an encoder and a decoder is of two texts",
                            "use tensor_parallel.sequence = false"};
            }
            return misfit_of_degree(model, ranks);
          },
          .shrink = shrink_1d};
}

}  // namespace caravan
