#include "caravan/techniques/grid/grid.h"

#include <vector>

#include <fmt/format.h>

#include "caravan/base/divisors.h"
#include "caravan/base/text.h"
#include "caravan/registry/registry.h"

namespace caravan {
namespace {

int64_t num_ranks(const Grid& grid, int64_t side) { return row_parts(grid, side) * side; }

bool fits(const Grid& grid, const ModelConfig& config, int64_t side) {
  const int64_t parts = width_parts(grid, side);
  return config.heads % side == 0 && config.num_kv_heads() % side == 0 && config.width % parts == 0 &&
         config.query_width() % parts == 0 && config.hidden_width() % parts == 0 &&
         (config.vocabulary == 0 || config.vocabulary >= side);
}

constexpr size_t kMostNamed = 4;  ///< of suitable numbers of ranks

std::string sides_text(const Grid& grid, const ModelConfig& config) {
  std::vector<int64_t> ranks;
  for (int64_t side = 2; side <= config.heads && ranks.size() < kMostNamed; ++side) {
    if (fits(grid, config, side)) ranks.push_back(num_ranks(grid, side));
  }
  if (!ranks.empty()) return "use " + join(ranks, " or ");
  return fmt::format("use kind \"{}\", or a model of other sizes", first_of("tensor_parallel").name);
}

}  // namespace

int64_t width_parts(const Grid& grid, int64_t side) { return grid.dims == 3 ? side * side : side; }

int64_t row_parts(const Grid& grid, int64_t side) { return width_parts(grid, side) * grid.depth.value_or(1); }

int64_t grid_side(const Grid& grid, int64_t ranks) {
  for (int64_t side = 1; num_ranks(grid, side) <= ranks; ++side) {
    if (num_ranks(grid, side) == ranks) return side;
  }
  return 0;
}

std::optional<Misfit> misfit_of_ranks(const Grid& grid, int64_t ranks) {
  if (grid_side(grid, ranks) > 0) return std::nullopt;
  int64_t side = 1;
  while (num_ranks(grid, side + 1) <= ranks) ++side;
  const int64_t below = num_ranks(grid, side);
  const int64_t above = num_ranks(grid, side + 1);
  const std::string what = grid.depth       ? fmt::format("square times a depth of {}", *grid.depth)
                           : grid.dims == 3 ? "cube"
                                            : "square";
  return Misfit{"mesh.tp", fmt::format("{} ranks are not a {}", ranks, what),
                side == 1 ? fmt::format("use {}", above) : fmt::format("use {} or {}", below, above)};
}

std::optional<Misfit> misfit_of_grid(const Grid& grid, const ModelConfig& config, int64_t side) {
  const int64_t parts = width_parts(grid, side);
  const auto wrong = [&](const char* what, int64_t count, int64_t divisor) {
    return Misfit{"mesh.tp", fmt::format("a grid of side {} divides {} {} by {}", side, count, what, divisor),
                  sides_text(grid, config)};
  };
  const auto refused = [&](const char* key, const char* fact) {
    return Misfit{key, fact, fmt::format("use tensor_parallel.kind \"{}\"", first_of("tensor_parallel").name)};
  };
  if (config.has_encoder()) return refused("model.encoder_layers", "a grid has no plan for a row of two texts");
  if (config.has_transform() || config.classes > 0) {
    return refused(config.classes > 0 ? "model.classes" : "model.head", "a grid has no plan for such a head");
  }
  if (config.token_types > 0) return refused("model.token_types", "a grid has no plan for types of tokens");
  if (config.arch.positions == Positions::buckets) {
    return refused("model.positions", "a grid has no plan for biases of distances");
  }
  if (config.heads % side != 0) return wrong("heads", config.heads, side);
  if (config.num_kv_heads() % side != 0) return wrong("heads of keys and values", config.num_kv_heads(), side);
  if (config.width % parts != 0) return wrong("features", config.width, parts);
  if (config.hidden_width() % parts != 0) return wrong("features of the MLP", config.hidden_width(), parts);
  if (config.vocabulary > 0 && config.vocabulary < side)
    return wrong("rows of the vocabulary", config.vocabulary, side);
  if (config.arch.qk_norm == QkNorm::whole) {
    return refused("model.qk_norm", "norms of all queries, whose features are split by heads over some axes of a grid");
  }
  if (config.lora.is_used() && config.lora.dora) {
    return Misfit{
        "lora.dora", "a grid cuts rows and columns of a weight, and magnitudes need the norms of whole rows",
        fmt::format("use tensor_parallel.kind \"{}\", or lora.dora = false", first_of("tensor_parallel").name)};
  }
  if (config.lora.rank % parts != 0) {
    return Misfit{"lora.rank",
                  fmt::format("a grid of side {} divides adapters of rank {} by {}", side, config.lora.rank, parts),
                  "use a rank of " + multiples_near(config.lora.rank, parts)};
  }
  return std::nullopt;
}

}  // namespace caravan
