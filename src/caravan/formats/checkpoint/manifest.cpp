#include "caravan/formats/checkpoint/manifest.h"

#include <nlohmann/json.hpp>

#include "caravan/base/content_hash.h"
#include "caravan/formats/checkpoint/manifest_json.h"

namespace caravan {
namespace {

using nlohmann::json;

json optimizer_json(const OptimizerRecord& optimizer) {
  json groups = json::array();
  for (const OptimizerRecord::Group& group : optimizer.groups) {
    groups.push_back({{"options", group.options}, {"parameters", group.parameters}});
  }
  return {{"kind", optimizer.kind}, {"groups", groups}, {"schedulers", optimizer.schedulers}};
}

}  // namespace

std::string manifest_hash(const json& root) { return content_hash(root.dump()).hex(); }

std::string Manifest::to_json() const {
  json out{{"version", kManifestVersion},
           {"step", info.step},
           {"position", info.position},
           {"optimizer_steps", info.optimizer_steps},
           {"recipe", info.recipe},
           {"model", info.model},
           {"tokenizer_hash", info.tokenizer_hash},
           {"data", {{"train", info.train_hash}, {"validation", info.validation_hash}}},
           {"numerics",
            {{"ranks", info.numerics.ranks},
             {"threads_per_rank", info.numerics.threads_per_rank},
             {"products", info.numerics.products}}},
           {"tensors", json::object()},
           {"files", json::array()}};
  if (!info.clocks.empty()) out["clocks"] = info.clocks;
  if (!info.counters.empty()) out["counters"] = info.counters;
  if (info.optimizer != OptimizerRecord{}) out["optimizer"] = optimizer_json(info.optimizer);
  std::map<std::string, size_t> numbers;
  for (const auto& [name, file] : files) {
    numbers.emplace(name, numbers.size());
    out["files"].push_back({{"name", name}, {"bytes", file.bytes}, {"hash", file.hash}});
  }
  for (const auto& [name, tensor] : tensors) {
    json pieces = json::array();
    for (const ManifestPiece& piece : tensor.pieces) {
      pieces.push_back(json::array({numbers.at(piece.file), piece.box.offset, piece.box.size}));
      if (!piece.key.empty()) pieces.back().push_back(piece.key);
    }
    out["tensors"][name] = {{"shape", tensor.shape}, {"dtype", tensor.dtype}, {"pieces", std::move(pieces)}};
  }
  out["hash"] = manifest_hash(out);
  return out.dump() + "\n";  // without line breaks: thousands of ranks have a million pieces
}

}  // namespace caravan
