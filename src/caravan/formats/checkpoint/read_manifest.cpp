#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "caravan/base/error.h"
#include "caravan/base/json_reader.h"
#include "caravan/base/system/file.h"
#include "caravan/base/text.h"
#include "caravan/formats/checkpoint/box_cover.h"
#include "caravan/formats/checkpoint/manifest.h"
#include "caravan/formats/checkpoint/manifest_json.h"

namespace caravan {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr int64_t kLastOfNamedPieces = 2;

/// Reads fields of a manifest. Errors name the folder and the field.
class Fields {
 public:
  explicit Fields(const fs::path& folder) : folder_(folder) {}

  [[noreturn]] void refuse(const std::string& field, const std::string& fact) const {
    throw DataError({.op = "checkpoint",
                     .subject = (folder_ / kManifestName).string(),
                     .fact = field + " " + fact,
                     .action = "the checkpoint is damaged: use an older one of the same run"});
  }

  /// Throws unless `object` has exactly these keys.
  void check_keys(const json& object, const std::string& field, const std::vector<std::string>& keys) const {
    if (!object.is_object()) refuse(field, "is not an object");
    for (const std::string& key : keys) {
      if (!object.contains(key)) refuse(field, "has no '" + key + "'");
    }
    for (const auto& [key, value] : object.items()) {
      if (std::find(keys.begin(), keys.end(), key) == keys.end()) refuse(field, "has an unknown key '" + key + "'");
    }
  }

  int64_t number(const json& value, const std::string& field) const {
    if (!value.is_number_unsigned() || value.get<uint64_t>() > uint64_t{INT64_MAX}) {
      refuse(field, "is not a whole number of at least 0");
    }
    return value.get<int64_t>();
  }

  std::string text(const json& value, const std::string& field) const {
    if (!value.is_string()) refuse(field, "is not a string");
    return value.get<std::string>();
  }

  std::string file_name(const json& value, const std::string& field) const {
    const std::string name = text(value, field);
    if (name.empty() || name.front() == '.' || name.find('/') != std::string::npos)
      refuse(field, "is not a plain file name");
    return name;
  }

  /// Numbers of either sign, by name.
  std::map<std::string, int64_t> counters(const json& value, const std::string& field) const {
    if (!value.is_object()) refuse(field, "is not an object");
    std::map<std::string, int64_t> out;
    for (const auto& [name, count] : value.items()) {
      if (!count.is_number_integer() || (count.is_number_unsigned() && count.get<uint64_t>() > uint64_t{INT64_MAX})) {
        refuse(field + "." + name, "is not a whole number");
      }
      out[name] = count.get<int64_t>();
    }
    return out;
  }

  std::vector<int64_t> numbers(const json& value, const std::string& field) const {
    if (!value.is_array()) refuse(field, "is not a list");
    std::vector<int64_t> out;
    for (const json& item : value) out.push_back(number(item, field));
    return out;
  }

 private:
  const fs::path& folder_;
};

/// The number of elements of a shape; -1 if it is absurd.
int64_t volume(const std::vector<int64_t>& shape) {
  int64_t product = 1;
  for (const int64_t size : shape) {
    if (__builtin_mul_overflow(product, size, &product) || product > (int64_t{1} << 56)) return -1;
  }
  return product;
}

void check_cover(const Fields& fields, const std::string& name, const ManifestTensor& tensor) {
  const int64_t whole = volume(tensor.shape);
  if (whole < 0) fields.refuse(name, "has an impossible shape");
  int64_t covered = 0;
  std::vector<Box> boxes;
  std::vector<std::pair<std::string_view, std::string_view>> places;
  for (const ManifestPiece& piece : tensor.pieces) {
    const Box& box = piece.box;
    if (box.offset.size() != tensor.shape.size() || box.size.size() != tensor.shape.size()) {
      fields.refuse(name, "has a piece with a different number of dims");
    }
    for (size_t d = 0; d < tensor.shape.size(); ++d) {
      if (box.offset[d] > tensor.shape[d] || box.size[d] > tensor.shape[d] - box.offset[d]) {
        fields.refuse(name, "has a piece outside its shape");
      }
    }
    if (__builtin_add_overflow(covered, volume(box.size), &covered)) fields.refuse(name, "has pieces that overlap");
    boxes.push_back(box);
    places.emplace_back(piece.file, piece.key);
  }
  if (cut_dims(tensor.shape, boxes).size() > kMostCutDims) {
    fields.refuse(name, fmt::format("is cut along more than {} dims", kMostCutDims));
  }
  if (!covers_once(tensor.shape, boxes)) {
    if (covered >= whole) fields.refuse(name, "has pieces that overlap");
    fields.refuse(name, fmt::format("has pieces of {} elements, but its shape has {}", covered, whole));
  }
  std::ranges::sort(places);
  const auto twice = std::ranges::adjacent_find(places);
  if (twice != places.end()) fields.refuse(name, fmt::format("has two pieces in {}", twice->first));
}

/// A piece in the format of versions 1 and 2.
ManifestPiece read_named_piece(const Fields& fields, const std::string& name, const json& piece) {
  fields.check_keys(piece, name, {"offset", "size", "file", "key"});
  const std::string key = fields.text(piece["key"], name);
  if (key != name) fields.refuse(name, "is stored as '" + key + "'");
  return {{fields.numbers(piece["offset"], name), fields.numbers(piece["size"], name)},
          fields.file_name(piece["file"], name),
          ""};
}

ManifestPiece read_piece(const Fields& fields, const std::string& name, const json& piece,
                         const std::vector<std::string>& files) {
  if (!piece.is_array() || piece.size() < 3 || piece.size() > 4) {
    fields.refuse(name, "has a piece that is not [file, offset, size] or [file, offset, size, key]");
  }
  const int64_t file = fields.number(piece[0], name);
  if (file >= static_cast<int64_t>(files.size())) {
    fields.refuse(name, fmt::format("is in file {}, but {} are listed", file, files.size()));
  }
  return {{fields.numbers(piece[1], name), fields.numbers(piece[2], name)},
          files[static_cast<size_t>(file)],
          piece.size() == 4 ? fields.text(piece[3], name) : ""};
}

/// `files`: the names in the order of the manifest; null if pieces name their file.
ManifestTensor read_tensor(const Fields& fields, const std::string& name, const json& value,
                           const std::vector<std::string>* files) {
  fields.check_keys(value, name, {"shape", "dtype", "pieces"});
  ManifestTensor tensor{fields.numbers(value["shape"], name), fields.text(value["dtype"], name), {}};
  if (!value["pieces"].is_array()) fields.refuse(name, "has no list of pieces");
  for (const json& piece : value["pieces"]) {
    tensor.pieces.push_back(files == nullptr ? read_named_piece(fields, name, piece)
                                             : read_piece(fields, name, piece, *files));
  }
  check_cover(fields, name, tensor);
  return tensor;
}

void add_file(const Fields& fields, Manifest& manifest, const std::string& name, const json& value) {
  const bool is_new =
      manifest.files.emplace(name, ManifestFile{fields.number(value["bytes"], name), fields.text(value["hash"], name)})
          .second;
  if (!is_new) fields.refuse("files", "lists " + name + " twice");
}

/// The format of versions 1 and 2.
void read_named_files(const Fields& fields, const json& files, Manifest& manifest) {
  if (!files.is_object()) fields.refuse("files", "is not an object");
  for (const auto& [name, value] : files.items()) {
    fields.check_keys(value, name, {"bytes", "hash"});
    add_file(fields, manifest, fields.file_name(name, "files"), value);
  }
}

/// Returns the names in their order.
std::vector<std::string> read_files(const Fields& fields, const json& files, Manifest& manifest) {
  if (!files.is_array()) fields.refuse("files", "is not a list");
  std::vector<std::string> names;
  for (const json& value : files) {
    fields.check_keys(value, "files", {"name", "bytes", "hash"});
    names.push_back(fields.file_name(value["name"], "files"));
    add_file(fields, manifest, names.back(), value);
  }
  return names;
}

OptimizerRecord read_optimizer(const Fields& fields, const json& value) {
  fields.check_keys(value, "optimizer", {"kind", "groups", "schedulers"});
  OptimizerRecord optimizer{.kind = fields.text(value["kind"], "optimizer.kind"),
                            .groups = {},
                            .schedulers = fields.numbers(value["schedulers"], "optimizer.schedulers")};
  if (!value["groups"].is_array()) fields.refuse("optimizer.groups", "is not a list");
  for (const json& group : value["groups"]) {
    fields.check_keys(group, "optimizer.groups", {"options", "parameters"});
    if (!group["options"].is_object() || !group["parameters"].is_array()) {
      fields.refuse("optimizer.groups", "has a group without options or parameters");
    }
    OptimizerRecord::Group& own = optimizer.groups.emplace_back();
    for (const auto& [name, option] : group["options"].items()) {
      if (!option.is_number()) fields.refuse("optimizer." + name, "is not a number");
      own.options[name] = option.get<double>();
    }
    for (const json& name : group["parameters"])
      own.parameters.push_back(fields.text(name, "optimizer.groups.parameters"));
  }
  return optimizer;
}

void read_origin(const Fields& fields, const json& root, CheckpointInfo& info) {
  const json& data = root["data"];
  fields.check_keys(data, "data", {"train", "validation"});
  info.train_hash = fields.text(data["train"], "data.train");
  info.validation_hash = fields.text(data["validation"], "data.validation");
  const json& numerics = root["numerics"];
  fields.check_keys(numerics, "numerics", {"ranks", "threads_per_rank", "products"});
  info.numerics = {.ranks = fields.number(numerics["ranks"], "numerics.ranks"),
                   .threads_per_rank = fields.number(numerics["threads_per_rank"], "numerics.threads_per_rank"),
                   .products = fields.text(numerics["products"], "numerics.products")};
}

void check_files(const Fields& fields, const fs::path& folder, const Manifest& manifest) {
  for (const auto& [name, file] : manifest.files) {
    std::error_code error;
    const auto size = fs::file_size(folder / name, error);
    if (error) fields.refuse(name, "cannot be found: " + error.message());
    if (static_cast<int64_t>(size) != file.bytes) {
      fields.refuse(name, fmt::format("has {} bytes, but {} were written", size, file.bytes));
    }
  }
  for (const auto& [name, tensor] : manifest.tensors) {
    for (const ManifestPiece& piece : tensor.pieces) {
      if (!manifest.files.contains(piece.file)) fields.refuse(name, "is in a file that is not listed: " + piece.file);
    }
  }
}

}  // namespace

Manifest Manifest::read(const fs::path& folder) {
  const Fields fields(folder);
  const MappedFile file(folder / kManifestName, "checkpoint");
  if (static_cast<int64_t>(file.bytes().size()) > kMostBytes)
    fields.refuse("the manifest", fmt::format("has {}", format_bytes(static_cast<int64_t>(file.bytes().size()))));
  check_json_depth(file.text(), (folder / kManifestName).string(), "checkpoint");
  json root = json::parse(file.text(), nullptr, false);
  if (root.is_discarded()) fields.refuse("the manifest", "is not JSON");
  if (!root.is_object() || !root.contains("version")) fields.refuse("the manifest", "has no 'version'");
  const int64_t version = fields.number(root["version"], "version");
  if (version < kOldestManifestVersion || version > kManifestVersion) {
    fields.refuse("version",
                  fmt::format("is {}; this program reads {} to {}", version, kOldestManifestVersion, kManifestVersion));
  }
  std::vector<std::string> keys{"version", "step",           "position", "optimizer_steps", "recipe",
                                "model",   "tokenizer_hash", "tensors",  "files",           "hash"};
  if (version > kOldestManifestVersion) keys.insert(keys.end(), {"data", "numerics"});
  for (const char* optional : {"clocks", "counters", "optimizer"}) {
    if (root.contains(optional)) keys.emplace_back(optional);
  }
  fields.check_keys(root, "the manifest", keys);
  const std::string hash = fields.text(root["hash"], "hash");
  root.erase("hash");
  if (hash != manifest_hash(root))
    fields.refuse("the manifest", "does not have the hash that was written: it was altered");

  Manifest manifest;
  manifest.info = {.step = fields.number(root["step"], "step"),
                   .position = fields.number(root["position"], "position"),
                   .optimizer_steps = fields.number(root["optimizer_steps"], "optimizer_steps"),
                   .recipe = fields.text(root["recipe"], "recipe"),
                   .model = fields.text(root["model"], "model"),
                   .tokenizer_hash = fields.text(root["tokenizer_hash"], "tokenizer_hash")};
  if (root.contains("clocks")) manifest.info.clocks = fields.numbers(root["clocks"], "clocks");
  if (root.contains("counters")) manifest.info.counters = fields.counters(root["counters"], "counters");
  if (version > kOldestManifestVersion) read_origin(fields, root, manifest.info);
  if (root.contains("optimizer")) manifest.info.optimizer = read_optimizer(fields, root["optimizer"]);
  std::vector<std::string> files;
  const bool names_files = version <= kLastOfNamedPieces;
  if (!names_files) {
    files = read_files(fields, root["files"], manifest);
  } else {
    read_named_files(fields, root["files"], manifest);
  }
  if (!root["tensors"].is_object()) fields.refuse("tensors", "is not an object");
  for (const auto& [name, value] : root["tensors"].items())
    manifest.tensors[name] = read_tensor(fields, name, value, names_files ? nullptr : &files);
  check_files(fields, folder, manifest);
  return manifest;
}

}  // namespace caravan
