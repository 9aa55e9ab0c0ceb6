#include "caravan/parallel/grid.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "caravan/base/text.h"

namespace caravan {
namespace {

int64_t power(std::string_view kind, int64_t side, int64_t depth) {
  return kind == "3d" ? side * side * side : depth * side * side;
}

/// By how much the widths of the model are divided.
int64_t parts_of_width(std::string_view kind, int64_t side) { return kind == "3d" ? side * side : side; }

bool fits(std::string_view kind, const ModelConfig& config, int64_t side) {
  const int64_t parts = parts_of_width(kind, side);
  return config.heads % side == 0 && config.num_kv_heads() % side == 0 && config.width % parts == 0 &&
         config.hidden_width() % parts == 0 && (config.vocabulary == 0 || config.vocabulary >= side);
}

std::string sides_text(std::string_view kind, const ModelConfig& config) {
  std::vector<std::string> sides;
  for (int64_t side = 2; side <= config.heads; ++side) {
    if (fits(kind, config, side)) sides.push_back(std::to_string(side));
  }
  return sides.empty() ? "1" : join(sides, " or ");
}

/// Rows near `rows` that `parts` divides.
std::string multiples_text(int64_t rows, int64_t parts) {
  const int64_t below = rows / parts * parts;
  return below == 0 ? fmt::format("{}", parts) : fmt::format("{} or {}", below, below + parts);
}

}  // namespace

int64_t grid_side(std::string_view kind, int64_t ranks, int64_t depth) {
  for (int64_t side = 1; power(kind, side, depth) <= ranks; ++side) {
    if (power(kind, side, depth) == ranks) return side;
  }
  return 0;
}

std::optional<Misfit> misfit_of_ranks(std::string_view kind, int64_t ranks, int64_t depth) {
  if (depth < 1) return Misfit{"tensor_parallel.depth", fmt::format("a depth of {}", depth), "use 1 or more"};
  if (grid_side(kind, ranks, depth) > 0) return std::nullopt;
  int64_t side = 1;
  while (power(kind, side + 1, depth) <= ranks) ++side;
  const int64_t below = power(kind, side, depth);
  const int64_t above = power(kind, side + 1, depth);
  const std::string what = kind == "3d"   ? "cube"
                           : kind == "2d" ? "square"
                                          : fmt::format("square times a depth of {}", depth);
  return Misfit{"mesh.tp", fmt::format("{} ranks are not a {}", ranks, what),
                below > ranks ? fmt::format("use {}", below) : fmt::format("use {} or {}", below, above)};
}

std::optional<Misfit> misfit_of_grid(std::string_view kind, const ModelConfig& config, int64_t side) {
  const int64_t parts = parts_of_width(kind, side);
  const auto wrong = [&](const char* what, int64_t count, int64_t divisor) {
    return Misfit{"mesh.tp", fmt::format("a grid of side {} divides {} {} by {}", side, count, what, divisor),
                  "use a side of " + sides_text(kind, config)};
  };
  if (config.heads % side != 0) return wrong("heads", config.heads, side);
  if (config.num_kv_heads() % side != 0) return wrong("heads of keys and values", config.num_kv_heads(), side);
  if (config.width % parts != 0) return wrong("features", config.width, parts);
  if (config.hidden_width() % parts != 0) return wrong("features of the MLP", config.hidden_width(), parts);
  if (config.vocabulary > 0 && config.vocabulary < side)
    return wrong("rows of the vocabulary", config.vocabulary, side);
  if (config.lora.is_used() && kind == "3d") {
    return Misfit{"tensor_parallel.kind",
                  "a layer of 3d hands its output on over other axes than its input, and an adapter is two layers",
                  "use 2d"};
  }
  if (config.lora.rank % side != 0) {
    return Misfit{"lora.rank", fmt::format("a grid of side {} divides adapters of rank {}", side, config.lora.rank),
                  "use a rank of " + multiples_text(config.lora.rank, side)};
  }
  return std::nullopt;
}

std::optional<Misfit> misfit_of_rows(std::string_view kind, int64_t rows, int64_t side, int64_t depth) {
  const int64_t parts = kind == "3d" ? side * side : side * depth;
  if (rows > 0 && rows % parts == 0) return std::nullopt;
  return Misfit{"train.micro_batch", fmt::format("{} sequences of a micro-batch are split in {} parts", rows, parts),
                "use " + multiples_text(rows, parts)};
}

}  // namespace caravan
