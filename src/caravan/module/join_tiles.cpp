#include "caravan/module/join_tiles.h"

#include <map>

#include <ATen/ops/empty.h>

namespace caravan {

std::vector<std::pair<std::string, at::Tensor>> join_tiles(const std::vector<Parameter*>& parameters,
                                                           const std::vector<at::Tensor>& tensors) {
  std::vector<std::pair<std::string, at::Tensor>> joined;
  std::map<std::string_view, size_t> places;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const TileOf* whole = parameters[i]->tile_of();
    if (whole == nullptr) {
      joined.emplace_back(parameters[i]->name(), tensors[i]);
      continue;
    }
    const auto [place, is_first] = places.emplace(whole->name, joined.size());
    const bool is_there = tensors[i].defined();
    if (is_first)
      joined.emplace_back(whole->name, is_there ? at::empty(whole->shape, tensors[i].options()) : at::Tensor());
    if (!is_there) continue;
    int64_t first = 0;
    for (const TileOf::Part& part : whole->parts) {
      joined[place->second].second.narrow(0, part.begin, part.rows).copy_(tensors[i].narrow(0, first, part.rows));
      first += part.rows;
    }
  }
  return joined;
}

}  // namespace caravan
