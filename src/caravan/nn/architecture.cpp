#include "caravan/nn/architecture.h"

#include <tuple>

namespace caravan {
namespace {

auto all_but_name(const Architecture& a) {
  return std::tie(a.norm, a.norm_place, a.is_parallel, a.has_one_norm, a.positions, a.embedding_norm,
                  a.scales_embedding, a.drops_branches, a.qkv_bias, a.output_bias, a.qk_norm, a.is_gated, a.activation,
                  a.mlp_bias, a.is_causal, a.head, a.scales_head, a.drops_output);
}

}  // namespace

bool Architecture::operator==(const Architecture& other) const noexcept {
  return all_but_name(*this) == all_but_name(other);
}

Architecture Architecture::llama() {
  return {.name = "llama",
          .norm = NormKind::rms,
          .positions = Positions::rotary,
          .drops_branches = false,
          .qkv_bias = false,
          .output_bias = false,
          .is_gated = true,
          .activation = Activation::silu,
          .mlp_bias = false};
}

}  // namespace caravan
