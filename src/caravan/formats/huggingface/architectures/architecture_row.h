#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "caravan/formats/huggingface/hf_reader.h"
#include "caravan/nn/config.h"

namespace caravan {

/// A setting of a config.json, in both directions. Columns of a row are read and written in order: sizes come first.
struct ConfigColumn {
  std::function<void(const ConfigReader& in, ModelConfig& config)> read;
  std::function<void(const ModelConfig& config, nlohmann::ordered_json& out)> write;
};

/// A tensor of their files, and the parameters of Model that it holds. It does not apply to a model without them.
struct WeightColumn {
  enum class Form : uint8_t {
    plain,       ///< ours one after another on dim 0
    transposed,  ///< of these, [in, out]
    by_head,     ///< for each head of keys the rows of its queries, its keys and its values
  };
  std::string theirs;  ///< with a star: one of the same shape for each expert. "/name" stands outside the base model
  std::vector<std::string> ours;
  Form form = Form::plain;
  double offset = 0;        ///< ours = theirs + offset: norms of Gemma multiply by 1 + weight
  int64_t unused_rows = 0;  ///< of theirs, before those of ours; written as zeros
  bool (*applies)(const ModelConfig& config) = nullptr;  ///< null: to every model that has the parameters
};

/// The names of all tensors. Names of a layer are relative to `blocks.N.` (ours) and to PREFIX LAYERS `.N.` (theirs).
struct WeightTable {
  std::string prefix;  ///< of the base model, which a file of a base model alone omits: "model."
  std::string layers;  ///< "layers"
  std::vector<WeightColumn> first;
  std::vector<WeightColumn> layer;
  std::vector<WeightColumn> last;
  std::vector<WeightColumn> classes{};  ///< in place of the last ones, of models that tell classes apart; {}: none do
  std::string encoder_layers{};         ///< of an encoder: "encoder.block"; the layers above are then the decoder's
  std::vector<WeightColumn> encoder_layer{};
  /// Full names of tensors that are not parameters here; others that are not only in a model without classes.
  std::vector<std::string> unused{};
  std::vector<std::string> unused_without_classes{};
};

/// One architecture: what it computes, and how transformers' files write it. A row is data: the interpreter (Model),
/// the plans of techniques, costs, import and export read it. docs/models.md lists the rows.
struct ArchitectureRow {
  std::string name;         ///< model.kind of recipes, model_type of config.json
  std::string their_class;  ///< "LlamaForCausalLM"; with classes "LlamaForSequenceClassification"
  /// The architecture and its usual numbers, for recipes that name it. Sizes do not matter. Settings that config.json
  /// does not have are always these.
  ModelConfig base;
  std::vector<ConfigColumn> columns;
  WeightTable weights;
  std::optional<int64_t> begin{};  ///< transformers' defaults of bos_token_id and eos_token_id
  std::optional<int64_t> end{};
  std::optional<int64_t> pad{};            ///< of pad_token_id
  std::optional<int64_t> decoder_start{};  ///< of decoder_start_token_id, with an encoder
};

/// All rows. References to them stay valid.
const std::deque<ArchitectureRow>& architectures();
/// The row of this name, or null.
const ArchitectureRow* find_architecture(std::string_view name);
/// Adds a row, or replaces the one of its name, for the programs of this process: call it before anything reads a
/// config. Throws UsageError for a row whose base is impossible, or that does not read back what it writes.
void add_architecture(ArchitectureRow row);

/// Applies `row.base` to a config: all that belongs to the architecture, and nothing of its sizes.
void set_architecture(ModelConfig& config, const ArchitectureRow& row);

/// The row that computes the same logits as `config`: the one it is named after, else another. Throws UsageError naming
/// the setting that no row has, and the nearest row.
const ArchitectureRow& architecture_of(const ModelConfig& config);

/// The difference between `config` and what the row reads from the config.json that it writes for it, "" for none:
/// "model.window: 4, but llama has 0". Settings that do not change logits are ignored.
std::string difference_to(const ModelConfig& config, const ArchitectureRow& row);

}  // namespace caravan
