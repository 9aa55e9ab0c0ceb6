#include <algorithm>
#include <functional>
#include <numeric>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "caravan/base/content_hash.h"
#include "caravan/base/error.h"
#include "caravan/base/file.h"
#include "caravan/checkpoint/checkpoint.h"
#include "caravan/checkpoint/publish.h"
#include "caravan/checkpoint/safetensors.h"
#include "caravan/comm/agree.h"
#include "caravan/comm/tensor.h"

namespace caravan {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// The pieces that this rank writes. Of the replicas of a piece, the one with the fewest bytes so far writes it; all
/// ranks compute the same assignment.
std::vector<const CheckpointPiece*> my_share(const std::vector<CheckpointPiece>& pieces) {
  std::map<int, std::vector<int64_t>> load;  // by number of replicas
  std::vector<const CheckpointPiece*> mine;
  for (const CheckpointPiece& piece : pieces) {
    auto& bytes = load.try_emplace(piece.num_replicas, static_cast<size_t>(piece.num_replicas)).first->second;
    const auto least = std::min_element(bytes.begin(), bytes.end());
    *least += static_cast<int64_t>(piece.tensor.nbytes());
    if (least - bytes.begin() == piece.replica) mine.push_back(&piece);
  }
  return mine;
}

ContentHash hash_of(const fs::path& path) { return content_hash(MappedFile(path, "checkpoint").bytes()); }

/// Writes this rank's shard into `folder`. Returns its entry in the manifest, as JSON.
std::string write_shard(const fs::path& folder, const std::vector<const CheckpointPiece*>& pieces, int rank) {
  json report{{"pieces", json::array()}};
  if (pieces.empty()) return report.dump();
  const std::string name = fmt::format("rank_{:05}.safetensors", rank);
  std::vector<SafetensorsSpec> specs;
  for (const CheckpointPiece* piece : pieces) {
    specs.push_back({piece->name, to_dtype(piece->tensor.scalar_type()), piece->box.size});
  }
  OutputFile file(folder / name, "checkpoint");
  SafetensorsWriter writer(file, std::move(specs));
  for (const CheckpointPiece* piece : pieces) {
    writer.append(piece->name, {static_cast<const std::byte*>(piece->tensor.const_data_ptr()), piece->tensor.nbytes()});
    report["pieces"].push_back({{"name", piece->name},
                                {"shape", piece->shape},
                                {"dtype", safetensors_name(to_dtype(piece->tensor.scalar_type()))},
                                {"offset", piece->box.offset},
                                {"size", piece->box.size}});
  }
  writer.finish();
  file.finish();
  report["file"] = name;
  report["bytes"] = fs::file_size(folder / name);
  report["hash"] = hash_of(folder / name).hex();
  return report.dump();
}

Manifest assemble(const CheckpointInfo& info, const std::vector<std::string>& reports) {
  Manifest manifest;
  manifest.info = info;
  for (const std::string& text : reports) {
    const json report = json::parse(text);
    if (!report.contains("file")) continue;
    const auto file = report["file"].get<std::string>();
    manifest.files[file] = {report["bytes"].get<int64_t>(), report["hash"].get<std::string>()};
    for (const json& piece : report["pieces"]) {
      const auto name = piece["name"].get<std::string>();
      ManifestTensor& tensor = manifest.tensors[name];
      tensor.shape = piece["shape"].get<std::vector<int64_t>>();
      tensor.dtype = piece["dtype"].get<std::string>();
      tensor.pieces.push_back(
          {{piece["offset"].get<std::vector<int64_t>>(), piece["size"].get<std::vector<int64_t>>()}, file, name});
    }
  }
  return manifest;
}

/// Runs `work` on every rank and gathers the results. If it fails anywhere, all ranks throw the error of the lowest
/// rank that failed.
std::vector<std::string> all_or_none(Communicator& world, const std::function<std::string()>& work) {
  std::string mine;
  std::string failure;
  std::string action = "free space or name another folder: checkpoint.dir";
  try {
    mine = work();
  } catch (const Error& error) {
    const ErrorText& text = error.text();
    failure = fmt::format("rank {}: {}{}{}", world.rank(), text.subject, text.subject.empty() ? "" : ": ", text.fact);
    if (!text.action.empty()) action = text.action;
  } catch (const std::exception& error) {
    failure = fmt::format("rank {}: {}", world.rank(), error.what());
  }
  const std::vector<std::string> failures = gather_texts(world, failure, "checkpoint");
  const auto first = std::ranges::find_if(failures, [](const std::string& text) { return !text.empty(); });
  if (first != failures.end()) {
    const std::vector<std::string> actions = gather_texts(world, action, "checkpoint");
    throw ResourceError({"checkpoint", "", "was not written; earlier ones are untouched", *first,
                         actions[static_cast<size_t>(first - failures.begin())]});
  }
  return gather_texts(world, mine, "checkpoint");
}

/// The new checkpoint exists by now, so a failure does not end the run. Returns it as a warning.
std::string try_prune(const fs::path& run, int64_t keep) {
  try {
    prune_checkpoints(run, keep);
  } catch (const Error& error) {
    const ErrorText& text = error.text();
    return fmt::format("older checkpoints were not removed: {}: {}", text.subject, text.fact);
  } catch (const std::exception& error) {
    return fmt::format("older checkpoints were not removed: {}", error.what());
  }
  return "";
}

}  // namespace

CheckpointPiece checkpoint_piece(std::string name, const Parameter& parameter, const at::Tensor& tensor,
                                 const Mesh& mesh) {
  CheckpointPiece piece{.name = std::move(name),
                        .shape = parameter.global_shape(),
                        .box = local_box(parameter.global_shape(), parameter.rest_layout(), mesh, parameter.name()),
                        .tensor = tensor};
  for (const MeshAxis& axis : mesh.axes()) {
    if (parameter.rest_layout().has(axis.name()) && parameter.rest_layout()[axis.name()].is_shard()) continue;
    piece.replica = piece.replica * axis.size() + axis.coord();
    piece.num_replicas *= axis.size();
  }
  return piece;
}

SavedCheckpoint save_checkpoint(const fs::path& run, const CheckpointInfo& info,
                                const std::vector<CheckpointPiece>& pieces, Communicator& world, int64_t keep) {
  const fs::path target = run / checkpoint_name(info.step);
  const bool is_first = world.rank() == 0;
  fs::path aside;
  try {
    const auto asides =
        all_or_none(world, [&] { return is_first ? make_checkpoint_aside(run, info.step).string() : std::string(); });
    aside = asides.front();
    const auto reports = all_or_none(world, [&] { return write_shard(aside, my_share(pieces), world.rank()); });
    all_or_none(world, [&] {
      if (!is_first) return std::string();
      OutputFile file(aside / "manifest.json", "checkpoint");
      file.append(assemble(info, reports).to_json());
      file.finish();
      publish_checkpoint(aside, target);
      return std::string();
    });
  } catch (const ResourceError&) {
    std::error_code error;
    if (is_first && !aside.empty()) fs::remove_all(aside, error);
    throw;
  }
  return {.folder = target, .warning = is_first ? try_prune(run, keep) : ""};
}

}  // namespace caravan
