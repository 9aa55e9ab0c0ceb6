#pragma once

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "caravan/formats/huggingface/architectures/architecture_row.h"
#include "caravan/nn/model_fields.h"

namespace caravan::columns {

// What the columns of several rows are made of. `absent`: transformers' default of a missing key.

template <class T>
using Field = FieldAccess<T>;

/// The number of layers. `other`: another name of the key in some files, or null.
ConfigColumn layers(const char* key, const char* other = nullptr);
/// A count above 0, which must be there.
ConfigColumn count(const char* key, Field<int64_t> field, const char* other = nullptr);
ConfigColumn count_or(const char* key, Field<int64_t> field, int64_t absent);
/// null stands for 0.
ConfigColumn nullable_real(const char* key, Field<double> field, double absent);
/// The width of the MLP, which must be there.
ConfigColumn mlp_width(const char* key);
/// The width of the MLP; null or missing: the architecture's default.
ConfigColumn hidden(const char* key);
/// null: as many as heads; missing: `absent`, 0 for as many as heads.
ConfigColumn kv_heads(const char* key, int64_t absent);
/// `absent`: 0 for width / heads.
ConfigColumn head_width(int64_t absent, const char* key = "head_dim");
ConfigColumn real(const char* key, Field<double> field, double absent);
/// What scores are divided by the square root of.
ConfigColumn score_width(const char* key, double absent);
/// One flag for several settings. Written as the first.
ConfigColumn flag(const char* key, std::vector<Field<bool>> fields, bool absent);
/// attention_bias: of queries, keys, values and the output.
ConfigColumn attention_bias(bool absent);
ConfigColumn tied(bool absent);
/// Keys that all have the value of dropout.
ConfigColumn dropout(std::vector<const char*> keys, double absent);
/// A setting that no other value of is supported; a missing key has that value.
ConfigColumn always(const char* key, bool value);
ConfigColumn words(const char* key, const char* value);
ConfigColumn always(const char* key, double value, const char* meaning);
ConfigColumn activation(const char* key, const char* absent);

struct RopeKeys {
  double theta = 10000;
  double fraction = 1;
  const char* theta_key = "rope_theta";
  /// null: their code rotates whole heads, whatever the file says.
  const char* fraction_key = nullptr;
  /// The key of the original context beside the others (Phi-3), and its default; null: among those of the scaling.
  const char* original_key = nullptr;
  int64_t original = 0;
  /// Layers with a window have a base of their own, under this key in older files (Gemma 3); null: no.
  const char* local_key = nullptr;
  double local_theta = 0;
};
/// rope_parameters, and in older files rope_theta and rope_scaling.
ConfigColumn rope(RopeKeys keys);

/// How config.json says which layers have a window.
enum class WindowRule : uint8_t {
  all,              ///< all layers, if sliding_window is not null
  if_used,          ///< all layers, if use_sliding_window
  types,            ///< layer_types, or by full_layers of the row's base
  types_or_all,     ///< layer_types, or all layers; with layer_types transformers reads a Mistral as a Ministral
  types_if_used,    ///< if use_sliding_window: layer_types, or the layers from max_window_layers on
  types_unrotated,  ///< if use_sliding_window: layer_types, or the layers that do not rotate
  types_early,      ///< if use_sliding_window: layer_types, or every second of those before max_window_layers
};
ConfigColumn window(WindowRule rule, int64_t absent);

/// Of experts: their number and width, top_k and the factor of the balance loss.
struct ExpertKeys {
  const char* experts = "num_experts";
  const char* hidden = "intermediate_size";
  int64_t top_k = 2;
  bool has_dense_layers = false;  ///< decoder_sparse_step and mlp_only_layers
};
ConfigColumn experts(ExpertKeys keys);

/// Weights of a Llama: q, k, v, o, gate, up, down, under its names; norms with an offset.
std::vector<WeightColumn> llama_attention();
std::vector<WeightColumn> llama_mlp();
std::vector<WeightColumn> llama_experts();  ///< mlp.gate, mlp.experts.N
WeightTable llama_weights(std::vector<WeightColumn> layer, double norm_offset = 0);
WeightColumn norm_weight(const std::string& theirs, const std::string& ours, double offset = 0);
/// A single plain column.
std::vector<WeightColumn> columns_of(const std::string& theirs, const std::string& ours);
/// weight and bias.
std::vector<WeightColumn> with_bias(const std::string& theirs, std::vector<std::string> ours,
                                    WeightColumn::Form form = WeightColumn::Form::plain);

/// The columns that Llama and most decoders after it share; window, rope and biases are not among them.
std::vector<ConfigColumn> llama_columns(int64_t kv_heads_absent, double epsilon, bool is_tied);
/// Its layer with this MLP.
std::vector<WeightColumn> llama_layer(std::vector<WeightColumn> mlp);

/// out[key] = value, for rows, which do not include the JSON library.
void set(nlohmann::ordered_json& out, const char* key, int64_t value);
void set(nlohmann::ordered_json& out, const char* key, bool value);
/// A list of 0 and 1 for each layer.
void write_flags(nlohmann::ordered_json& out, const char* key, const LayerSet& layers, int64_t count, int is_member);

template <class T>
std::vector<T> joined(std::initializer_list<std::vector<T>> parts) {
  std::vector<T> all;
  for (const auto& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

}  // namespace caravan::columns

/// Accesses a field of a ModelConfig, for columns.
#define CARAVAN_FIELD(member) \
  [](ModelConfig & config) -> auto& { return config.member; }
