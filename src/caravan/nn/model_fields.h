#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "caravan/nn/config.h"

namespace caravan {

/// What a setting of a model determines.
enum class FieldRole : uint8_t {
  size,      ///< of tensors, whatever the architecture
  shape,     ///< of which tensors there are: a part of the architecture
  function,  ///< what is computed with them: a part of the architecture
  training,  ///< what training does: a part of the architecture
  history,   ///< what training does, whatever the architecture
};

/// Accesses a setting, for reading and writing.
template <class T>
using FieldAccess = T& (*)(ModelConfig&);
template <class T>
const T& value_of(FieldAccess<T> access, const ModelConfig& config) {
  return access(const_cast<ModelConfig&>(config));  // NOLINT: only read
}

/// A setting of a ModelConfig by name. The names are those of recipe keys; checkpoints hold all settings by name, and
/// messages about two models that differ name the first one. The settings of lora are not among them.
struct ModelField {
  /// An enumeration, layers or a list of numbers, as text.
  struct Text {
    std::string (*get)(const ModelConfig& config);
    /// Returns false for a text that is none of `choices`; the others throw UsageError, as LayerSet::parse.
    bool (*set)(ModelConfig& config, std::string_view text);
    std::vector<std::string> choices{};  ///< empty: layers, numbers
  };
  using Access = std::variant<FieldAccess<int64_t>, FieldAccess<double>, FieldAccess<bool>, Text>;

  std::string key;  ///< "model.window"
  FieldRole role;
  std::string help;
  Access access;
  double least = 0;  ///< of numbers
  double most = 0;

  bool is_architecture() const noexcept { return role != FieldRole::size && role != FieldRole::history; }
  bool changes_logits() const noexcept { return role != FieldRole::training && role != FieldRole::history; }
  /// For messages: "0", "true", "rotary".
  std::string text_of(const ModelConfig& config) const;
  bool is_same(const ModelConfig& a, const ModelConfig& b) const { return text_of(a) == text_of(b); }
  void copy(const ModelConfig& from, ModelConfig& to) const;
};

/// In the order of documentation; model.kind, the name of the row, is not among them.
const std::vector<ModelField>& model_fields();

}  // namespace caravan
