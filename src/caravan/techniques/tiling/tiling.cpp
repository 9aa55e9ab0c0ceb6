#include "caravan/techniques/tiling/tiling.h"

#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/pattern.h"
#include "caravan/nn/linear.h"
#include "caravan/nn/lora.h"
#include "caravan/nn/tiles.h"
#include "caravan/techniques/tiling/tile_rows.h"

namespace caravan {
namespace {

[[noreturn]] void refuse_tiling(const std::string& subject, const std::string& fact, const std::string& action) {
  throw UsageError({"tiling", subject, fact, "", action});
}

struct TiledLayer {
  Module* module = nullptr;
  Tileable* tileable = nullptr;
};

/// The layers that can be cut: those that share no weight with one that cannot (Head with a bias).
std::vector<TiledLayer> all_layers(Module& model) {
  std::vector<TiledLayer> layers;
  std::set<const Parameter*> whole;
  for (Module* module : model.modules()) {
    auto* tileable = dynamic_cast<Tileable*>(module);
    if (tileable == nullptr || is_of_adapter(module->name() + ".")) continue;
    layers.push_back({module, tileable});
    if (!tileable->weights_to_cut().empty()) continue;
    const std::vector<Parameter*> own = module->own_parameters();
    whole.insert(own.begin(), own.end());
  }
  std::erase_if(layers, [&](const TiledLayer& layer) {
    const std::vector<Tileable::Weight> weights = layer.tileable->weights_to_cut();
    const auto is_whole = [&](const Tileable::Weight& weight) { return whole.contains(weight.parameter); };
    return weights.empty() || std::ranges::any_of(weights, is_whole);
  });
  return layers;
}

void refuse_magnitudes(const Module& layer) {
  const auto* linear = dynamic_cast<const Linear*>(&layer);
  if (linear == nullptr || !linear->has_magnitudes()) return;
  refuse_tiling(layer.name(), "has magnitudes (lora.dora), which need the norms of whole rows at once",
                "use lora.dora = false, or leave the layer out of lora.targets or of the layers in tiles");
}

/// The layers that the patterns choose, and those that share a weight with one of them.
std::vector<TiledLayer> chosen_layers(Module& model, const std::vector<std::string>& patterns) {
  const std::vector<TiledLayer> all = all_layers(model);
  std::set<std::string> unused(patterns.begin(), patterns.end());
  std::set<const Parameter*> weights;
  std::vector<std::string> names;
  for (const TiledLayer& layer : all) {
    names.push_back(layer.module->name());
    for (const std::string& pattern : patterns) {
      if (!matches_pattern(pattern, layer.module->name())) continue;
      refuse_magnitudes(*layer.module);
      unused.erase(pattern);
      for (const Tileable::Weight& weight : layer.tileable->weights_to_cut()) weights.insert(weight.parameter);
    }
  }
  if (names.empty()) {
    refuse_tiling("the model", "has no layer that can be cut into tiles", "use models of this library, or 1 tile");
  }
  if (!unused.empty()) {
    const std::string nearest = nearest_pattern(*unused.begin(), names);
    refuse_tiling(*unused.begin(), "fits no layer that can be cut into tiles", "the nearest is '" + nearest + "'");
  }
  std::vector<TiledLayer> chosen;
  for (const TiledLayer& layer : all) {
    if (weights.contains(layer.tileable->weights_to_cut().front().parameter)) chosen.push_back(layer);
  }
  return chosen;
}

/// Whether backward reaches a layer of this unit (Units::Unit::has_backward): something before it is trained, or what
/// the unit holds besides tiles.
bool follows_trained(const Strategy& strategy, const TiledLayer& layer, const std::set<const Parameter*>& cut) {
  for (const Strategy::Unit& unit : strategy.units) {
    const std::vector<Module*> inside = unit.module->modules();
    const std::vector<Parameter*> parameters = unit.module->parameters();
    const bool is_its = std::ranges::find(inside, layer.module) != inside.end();
    if (!is_its && std::ranges::any_of(parameters, &Parameter::requires_grad)) return true;
    if (!is_its) continue;
    return std::ranges::any_of(parameters,
                               [&](const Parameter* slot) { return slot->requires_grad() && !cut.contains(slot); });
  }
  return false;
}

class Cutter {
 public:
  Cutter(Strategy& strategy, const Mesh& mesh, int64_t tiles) : strategy_(strategy), mesh_(mesh), tiles_(tiles) {}

  /// Returns the tiles; none if the weights have rows for one only.
  std::vector<Module*> cut(const TiledLayer& layer, const std::set<const Parameter*>& all) {
    const std::vector<Tileable::Weight> weights = layer.tileable->weights_to_cut();
    std::vector<RowsOfTiles> rows;
    int64_t count = tiles_;
    for (const Tileable::Weight& weight : weights) {
      check(*weight.parameter);
      rows.emplace_back(*weight.parameter, strategy_.layouts.at(weight.parameter->name()), mesh_, weight.row_unit);
      count = std::min(count, rows.back().most_tiles());
    }
    if (count < 2) return {};
    std::vector<std::vector<TileCut>> cuts(static_cast<size_t>(count));
    for (size_t t = 0; t < cuts.size(); ++t) {
      for (const RowsOfTiles& of : rows) cuts[t].push_back(of.cut(static_cast<int64_t>(t), count));
    }
    share(cuts, weights);
    const std::vector<Module*> tiles = layer.tileable->cut(cuts, follows_trained(strategy_, layer, all));
    for (size_t t = 0; t < tiles.size(); ++t) {
      for (size_t i = 0; i < weights.size(); ++i) {
        Parameter& tile = *tiles[t]->own_parameters()[i];
        known_[weights[i].parameter].push_back(&tile);
        tile.set_requires_grad(weights[i].parameter->requires_grad());
        strategy_.layouts.emplace(tile.name(), rows[i].layouts(static_cast<int64_t>(t), count));
      }
    }
    for (const Tileable::Weight& weight : weights) done_.push_back(weight.parameter->name());
    return tiles;
  }

  /// Called once all layers are cut.
  void finish() {
    for (const std::string& name : done_) strategy_.layouts.erase(name);
  }

 private:
  void check(const Parameter& weight) const {
    const bool is_cut = !strategy_.layouts.contains(weight.name());
    if (!weight.sharded().defined() && !weight.is_derived() && !is_cut) return;
    if (weight.is_derived()) refuse_grid(weight);
    refuse_tiling(weight.name(), is_cut ? "is cut into tiles already" : "has memory", "cut a new model, once");
  }

  /// Tied embeddings.
  void share(std::vector<std::vector<TileCut>>& cuts, const std::vector<Tileable::Weight>& weights) const {
    for (size_t i = 0; i < weights.size(); ++i) {
      const auto known = known_.find(weights[i].parameter);
      if (known == known_.end()) continue;
      for (size_t t = 0; t < cuts.size(); ++t) cuts[t][i].shared = known->second[t];
    }
  }

  Strategy& strategy_;
  const Mesh& mesh_;
  int64_t tiles_;
  std::map<const Parameter*, std::vector<Parameter*>> known_;  ///< the tiles of weights
  std::vector<std::string> done_;
};

}  // namespace

void add_tiling(Strategy& strategy, Module& model, const Mesh& mesh, const TilingOptions& options) {
  if (options.tiles < 1) {
    refuse_tiling("tiles", fmt::format("{} is below 1", options.tiles), "use 1 for whole layers, or more");
  }
  if (options.tiles == 1) return;
  const std::vector<TiledLayer> layers = chosen_layers(model, options.modules);
  std::set<const Parameter*> all;
  for (const TiledLayer& layer : layers) {
    for (const Tileable::Weight& weight : layer.tileable->weights_to_cut()) all.insert(weight.parameter);
  }
  Cutter cutter(strategy, mesh, options.tiles);
  std::set<const Module*> tiles;
  for (const TiledLayer& layer : layers) {
    for (const Module* tile : cutter.cut(layer, all)) tiles.insert(tile);
  }
  cutter.finish();
  add_units(strategy, tiles);
}

}  // namespace caravan
