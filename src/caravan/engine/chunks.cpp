#include "caravan/engine/chunks.h"

#include <algorithm>
#include <set>
#include <vector>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/engine/flat/flat.h"
#include "caravan/engine/groups.h"
#include "caravan/engine/strategy.h"
#include "caravan/memory/chunks/chunk_layout.h"
#include "caravan/schedule/chunk_order.h"

namespace caravan {
namespace {

/// A parameter in forward order.
struct ChunkedParameter {
  Parameter* parameter = nullptr;
  int64_t share = 0;  ///< elements of one rank, rounded up
  int64_t row = 0;    ///< elements; 0: it is not cut
};

/// The most elements of the unsharded parameter that a rank has, the same on every rank.
ChunkedParameter measure(Parameter* parameter, const Strategy& strategy, const Mesh& mesh, int num_parts) {
  std::vector<int64_t> shape(parameter->global_shape().begin(), parameter->global_shape().end());
  for (const auto& [axis, placement] : layouts_of(strategy, *parameter).unsharded.entries()) {
    if (!placement.is_shard() || axis == strategy.pipeline_axis) continue;
    int64_t& rows = shape[static_cast<size_t>(placement.dim())];
    const std::vector<int64_t>& sizes = placement.sizes();
    rows = sizes.empty() ? (rows + mesh[axis].size() - 1) / mesh[axis].size() : *std::ranges::max_element(sizes);
  }
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  const bool is_cut = num_parts > 1 && !shape.empty() && shape.front() > 0;
  return {parameter, (FlatLayout::aligned(count) + (is_cut ? num_parts : 1) - 1) / (is_cut ? num_parts : 1),
          is_cut ? count / shape.front() : 0};
}

/// Lists of parameters in forward order that are moved alike and are on one coordinate of the pipeline.
std::vector<std::vector<ChunkedParameter>> lists_of(const Strategy& strategy, const Strategy& even, const Mesh& mesh,
                                                    int num_parts) {
  const Groups groups = groups_of(strategy, mesh);
  std::vector<std::pair<std::string, std::vector<ChunkedParameter>>> lists;
  std::set<int> seen;
  for (const Units::Unit& unit : groups.units.units) {
    for (const int group : unit.groups) {
      if (groups.units.groups[static_cast<size_t>(group)].is_joint || !seen.insert(group).second) continue;
      for (Parameter* parameter : groups.parameters[static_cast<size_t>(group)]) {
        const std::string way = fmt::format("{} {}", strategy.coord_of(unit.stage), way_of(*parameter, even, mesh));
        auto list = std::ranges::find_if(lists, [&](const auto& one) { return one.first == way; });
        if (list == lists.end()) list = lists.insert(lists.end(), {way, {}});
        list->second.push_back(measure(parameter, strategy, mesh, num_parts));
      }
    }
  }
  std::vector<std::vector<ChunkedParameter>> result;
  for (auto& [way, list] : lists) result.push_back(std::move(list));
  return result;
}

std::vector<ChunkTensor> tensors_of(const std::vector<ChunkedParameter>& list) {
  std::vector<ChunkTensor> tensors;
  for (const ChunkedParameter& one : list) tensors.push_back({one.parameter->name(), one.share});
  return tensors;
}

}  // namespace

int ParameterChunks::slots(const Schedule& table, const Units& units, int prefetch) const {
  if (num_chunks == 0) return 0;
  if (device_bytes == 0) return least_slots(table, units, prefetch);
  return static_cast<int>(std::min<int64_t>(device_bytes / slot_bytes, num_chunks));
}

void lay_out_chunks(Strategy& strategy, const Strategy& even, const Mesh& mesh, int num_parts) {
  ParameterChunks& chunks = strategy.chunks;
  if (!chunks.is_used || chunks.elems > 0) return;
  const auto lists = lists_of(strategy, even, mesh, num_parts);
  std::vector<ChunkTensor> all;
  const ChunkedParameter* largest = nullptr;
  int64_t row = 0;  // parts are equal up to a row
  for (const auto& list : lists) {
    for (const ChunkedParameter& one : list) {
      if (largest == nullptr || one.share > largest->share) largest = &one;
      row = std::max(row, one.row > 0 ? FlatLayout::aligned(one.row) + FlatLayout::kAlignment : 0);
    }
    const std::vector<ChunkTensor> tensors = tensors_of(list);
    all.insert(all.end(), tensors.begin(), tensors.end());
  }
  if (largest == nullptr) return;
  const auto element = static_cast<int64_t>(c10::elementSize(strategy.compute_dtype));
  const int64_t least = FlatLayout::aligned(largest->share);
  int64_t room = chunks.bytes / element / FlatLayout::kAlignment * FlatLayout::kAlignment - row;  // for shares
  if (chunks.bytes == 0) {
    const int64_t step = FlatLayout::aligned(std::max<int64_t>(least / 64, 1));
    room = search_chunk_size(all, {.smallest = least, .largest = 2 * least, .step = step}).chunk_elems;
  } else if (room < least) {
    throw UsageError({"chunks", "chunks.size",
                      fmt::format("{} cannot hold the part of '{}' that one rank has: {}", format_bytes(chunks.bytes),
                                  largest->parameter->name(), format_bytes((least + row) * element)),
                      mesh.where(),
                      fmt::format("use at least {}, \"auto\", or cut this layer into tiles (tiling.tiles)",
                                  (least + row) * element)});
  }
  chunks.elems = room + row;
  chunks.slot_bytes = chunks.elems * element;
  chunks.num_parts = num_parts;
  for (const auto& list : lists) {
    const ChunkLayout layout = lay_out_chunks(tensors_of(list), room);
    for (size_t i = 0; i < list.size(); ++i) {
      chunks.chunk_of.emplace(list[i].parameter->name(), chunks.num_chunks + layout.slots[i].chunk);
    }
    chunks.num_chunks += layout.num_chunks;
  }
}

}  // namespace caravan
