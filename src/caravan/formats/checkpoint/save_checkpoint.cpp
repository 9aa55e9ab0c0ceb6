#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <string>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "caravan/base/error.h"
#include "caravan/base/system/file.h"
#include "caravan/base/text.h"
#include "caravan/comm/calls/agree.h"
#include "caravan/comm/tensor.h"
#include "caravan/formats/checkpoint/checkpoint.h"
#include "caravan/formats/checkpoint/publish.h"
#include "caravan/formats/checkpoint/save_steps.h"
#include "caravan/formats/safetensors/safetensors.h"
#include "caravan/redistribute/piece.h"

namespace caravan {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

int64_t global_bytes(const CheckpointPiece& piece) {
  const Box whole{std::vector<int64_t>(piece.shape.size(), 0), piece.shape};
  return whole.num_elements() * static_cast<int64_t>(piece.tensor.element_size());
}

struct StoredBox {
  const CheckpointPiece* piece;
  const PieceBox* box;
};

}  // namespace

/// Among the replicas of a piece, the one with the fewest bytes so far writes it. All of them must compute the same
/// assignment, so it depends only on common knowledge: bytes are those of the whole tensors, since ranks may hold more
/// or less of one, and they are added up separately for each set of replica axes, since replica numbers of different
/// sets mean different ranks.
std::vector<const CheckpointPiece*> my_share(const std::vector<CheckpointPiece>& pieces) {
  std::map<std::pair<std::string, int>, std::vector<int64_t>> load;
  std::vector<const CheckpointPiece*> mine;
  for (const CheckpointPiece& piece : pieces) {
    std::vector<int64_t>& bytes = load[{piece.replica_axes, piece.num_replicas}];
    bytes.resize(static_cast<size_t>(piece.num_replicas));
    const auto least = std::min_element(bytes.begin(), bytes.end());
    *least += global_bytes(piece);
    if (least - bytes.begin() == piece.replica) mine.push_back(&piece);
  }
  return mine;
}

std::string write_shard(const fs::path& folder, const std::vector<const CheckpointPiece*>& pieces, int rank,
                        const std::stop_token& stop) {
  json report{{"pieces", json::array()}};
  std::vector<SafetensorsSpec> specs;
  std::map<std::string, StoredBox> by_name;
  for (const CheckpointPiece* piece : pieces) {
    for (const PieceBox& each : piece->boxes) {
      const Box& box = each.global;
      // An empty piece carries no information, unless the tensor has no elements at all.
      if (box.num_elements() == 0 && global_bytes(*piece) != 0) continue;
      const Dtype dtype = to_dtype(piece->tensor.scalar_type());
      // Further boxes of a tensor, of which this rank has several tiles or blocks, are stored under their place in it.
      const bool is_first = !by_name.contains(piece->name) || box.num_elements() == 0;
      const std::string key = is_first ? piece->name : fmt::format("{}@{}", piece->name, join(box.offset));
      report["pieces"].push_back({{"name", piece->name},
                                  {"key", is_first ? "" : key},
                                  {"shape", piece->shape},
                                  {"dtype", safetensors_name(dtype)},
                                  {"offset", box.offset},
                                  {"size", box.size}});
      if (box.num_elements() == 0) continue;
      specs.push_back({key, dtype, box.size});
      by_name[key] = {piece, &each};
    }
  }
  if (specs.empty()) return report.dump();
  const std::string name = fmt::format("rank_{:05}.safetensors", rank);
  OutputFile file(folder / name, "checkpoint");
  SafetensorsWriter writer(file, std::move(specs));
  const CheckpointPiece* last = nullptr;
  at::Tensor whole;  // of the last piece, of which one box follows another
  for (const std::string& tensor : writer.names()) {
    if (stop.stop_requested()) throw ResourceError({"checkpoint", name, "was given up", "", ""});
    const auto& [piece, box] = by_name.at(tensor);
    if (piece != last) {
      whole = at::Tensor();  // free before the next one is read
      whole = piece->read ? piece->read() : piece->tensor;
      last = piece;
    }
    const bool is_all = piece->boxes.size() == 1;
    const at::Tensor data = is_all ? whole : part_of(whole.view(piece->tensor.sizes()), *box).contiguous();
    writer.append(tensor, {static_cast<const std::byte*>(data.const_data_ptr()), data.nbytes()});
  }
  writer.finish();
  file.finish();
  report["file"] = name;
  report["bytes"] = fs::file_size(folder / name);
  report["hash"] = writer.hash().hex();
  return report.dump();
}

Manifest manifest_of(const CheckpointInfo& info, const std::vector<std::string>& reports) {
  Manifest manifest;
  manifest.info = info;
  for (const std::string& text : reports) {
    const json report = json::parse(text);
    const auto file = report.value("file", std::string());
    if (!file.empty()) manifest.files[file] = {report["bytes"].get<int64_t>(), report["hash"].get<std::string>()};
    for (const json& piece : report["pieces"]) {
      ManifestTensor& tensor = manifest.tensors[piece["name"].get<std::string>()];
      tensor.shape = piece["shape"].get<std::vector<int64_t>>();
      tensor.dtype = piece["dtype"].get<std::string>();
      Box box{piece["offset"].get<std::vector<int64_t>>(), piece["size"].get<std::vector<int64_t>>()};
      if (box.num_elements() > 0) tensor.pieces.push_back({std::move(box), file, piece["key"].get<std::string>()});
    }
  }
  return manifest;
}

namespace {

/// The error of a failed save on every rank, because of `fact` on this one.
ResourceError not_written(const Communicator& world, const std::string& fact, const std::string& action) {
  return ResourceError({"checkpoint", "", "was not written; earlier ones are untouched",
                        fmt::format("rank {}: {}", world.rank(), fact),
                        action.empty() ? "free space or name another folder: checkpoint.dir" : action});
}

/// Runs `work` on every rank. If it fails anywhere, all ranks throw the error of the lowest rank that failed.
void save_on_all_ranks(Communicator& world, const std::function<void()>& work) {
  all_or_none(
      world,
      [&] {
        try {
          work();
        } catch (const CommError&) {
          throw;
        } catch (const Error& error) {
          const ErrorText& text = error.text();
          throw not_written(world, fmt::format("{}{}{}", text.subject, text.subject.empty() ? "" : ": ", text.fact),
                            text.action);
        } catch (const std::exception& error) {
          throw not_written(world, error.what(), "");
        }
      },
      "checkpoint");
}

/// The axes on which the ranks hold the same piece of a tensor of this layout.
std::vector<MeshAxis> replica_axes(const Layout& layout, const Mesh& mesh) {
  std::vector<MeshAxis> axes;
  std::set<std::string> used;  // of the listed axes: by one that cuts the tensor, or by a sub-axis
  for (const auto& [name, placement] : layout.entries()) {
    if (!mesh.has(name) || (!placement.is_shard() && mesh[name].parent().empty())) continue;
    used.insert(mesh.made_of(name).begin(), mesh.made_of(name).end());
    if (!placement.is_shard()) axes.push_back(mesh[name]);  // a tensor that only the ranks of a sub-axis have
  }
  for (const MeshAxis& axis : mesh.axes()) {
    if (!used.contains(axis.name())) axes.push_back(axis);
  }
  return axes;
}

}  // namespace

PieceBox of_coordinate(PieceBox box, int64_t coord) {
  box.global.offset.insert(box.global.offset.begin(), coord);
  box.global.size.insert(box.global.size.begin(), 1);
  box.local_offset.insert(box.local_offset.begin(), 0);
  return box;
}

CheckpointPiece checkpoint_piece(std::string name, const Parameter& parameter, const at::Tensor& tensor,
                                 const Mesh& mesh, const std::string& own_axis) {
  CheckpointPiece piece{.name = std::move(name),
                        .shape = parameter.whole_shape(),
                        .boxes = parameter.in_whole(
                            local_boxes(parameter.global_shape(), parameter.sharded_layout(), mesh, parameter.name())),
                        .tensor = tensor};
  for (const MeshAxis& axis : replica_axes(parameter.sharded_layout(), mesh)) {
    if (axis.name() == own_axis) continue;
    piece.replica = piece.replica * axis.size() + axis.coord();
    piece.num_replicas *= axis.size();
    piece.replica_axes += (piece.replica_axes.empty() ? "" : " ") + axis.name();
  }
  if (own_axis.empty()) return piece;
  const MeshAxis& axis = mesh[own_axis];
  piece.shape.insert(piece.shape.begin(), axis.size());
  for (PieceBox& box : piece.boxes) box = of_coordinate(std::move(box), axis.coord());
  piece.tensor = piece.tensor.unsqueeze(0);
  return piece;
}

std::string prune_or_warn(const fs::path& run, int64_t keep) {
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

fs::path begin_save(const fs::path& run, int64_t step, Communicator& world) {
  fs::path aside;
  save_on_all_ranks(world, [&] {
    if (world.rank() == 0) aside = make_checkpoint_aside(run, step);
  });
  return broadcast_text(world, aside.string(), 0, "checkpoint");
}

SavedCheckpoint end_save(const fs::path& run, const fs::path& aside, const CheckpointInfo& info, Communicator& world,
                         const std::function<std::string()>& shard) {
  const fs::path target = run / checkpoint_name(info.step);
  const bool is_first = world.rank() == 0;
  try {
    std::string report;
    save_on_all_ranks(world, [&] { report = shard(); });
    const std::vector<std::string> reports = gather_texts_to(world, report, 0, "checkpoint");
    save_on_all_ranks(world, [&] {
      if (!is_first) return;
      const std::string manifest = manifest_of(info, reports).to_json();
      if (static_cast<int64_t>(manifest.size()) > Manifest::kMostBytes) {
        throw ResourceError(
            {"checkpoint", kManifestName,
             fmt::format("would have {}, more than can be read", format_bytes(static_cast<int64_t>(manifest.size()))),
             "", "shard over fewer ranks: data_parallel.shard"});
      }
      OutputFile file(aside / kManifestName, "checkpoint");
      file.append(manifest);
      file.finish();
      publish_checkpoint(aside, target);
    });
  } catch (const ResourceError&) {
    std::error_code error;
    if (is_first) fs::remove_all(aside, error);
    throw;
  }
  return {.folder = target};
}

SavedCheckpoint save_checkpoint(const fs::path& run, const CheckpointInfo& info,
                                const std::vector<CheckpointPiece>& pieces, Communicator& world, int64_t keep) {
  const fs::path aside = begin_save(run, info.step, world);
  SavedCheckpoint saved =
      end_save(run, aside, info, world, [&] { return write_shard(aside, my_share(pieces), world.rank()); });
  if (world.rank() == 0) saved.warning = prune_or_warn(run, keep);
  return saved;
}

}  // namespace caravan
