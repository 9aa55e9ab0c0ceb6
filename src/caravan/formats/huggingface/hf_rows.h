#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "caravan/formats/huggingface/architectures/architecture_row.h"
#include "caravan/nn/config.h"

namespace caravan {

using TensorShapes = std::map<std::string, std::vector<int64_t>>;  ///< by name
using NamedShapes = std::vector<std::pair<std::string, std::vector<int64_t>>>;

/// A WeightColumn of one layer of one model: tensors of a Hugging Face file and of Model with the same elements.
/// Theirs, concatenated on dim 0, equal ours put together by the form. At least one of the lists has a single name.
struct HuggingfaceRow {
  std::vector<std::string> theirs;  ///< all of one shape
  std::vector<std::string> ours;
  WeightColumn::Form form;
  double offset;
  int64_t unused_rows;
  int64_t groups;  ///< heads of keys, of form by_head

  /// Whether tensors of so many dims are transposed: biases are not.
  bool is_transposed(size_t dims) const noexcept { return form == WeightColumn::Form::transposed && dims == 2; }
};

struct HuggingfaceTable {
  std::string prefix;  ///< of the names of their base model, which a file of a base model alone omits
  std::string head{};  ///< their name of the output layer
  std::vector<HuggingfaceRow> rows{};
  std::vector<std::string> outside{};  ///< names of tensors outside of the base model
  std::vector<std::string> unused{};   ///< full names of tensors that are not parameters
  /// Full names of the tensors of the other head: that of classes, or of a model that has some the one without.
  std::vector<std::string> other_head{};
};

/// The rows of all tensors of the model, in forward order. `ours`: the shapes of its parameters. Throws UsageError for
/// a model that transformers does not have (architecture_of).
HuggingfaceTable huggingface_table(const ModelConfig& config, const TensorShapes& ours);

/// Throws DataError for a head, by its name in the table, that differs from the embedding that it repeats.
[[noreturn]] void refuse_tied_head(const std::string& name);

/// Throws DataError, beginning with `op`, that lists the tensors which are missing, unexpected, named twice, or of
/// another shape than `wanted`.
void check_tensors(std::string_view op, const NamedShapes& found, const TensorShapes& wanted);

/// The tensors of a file that hold parameters.
struct HuggingfaceNames {
  std::map<std::string, std::string> of_file;  ///< name in the file, by the name in the table
  std::string tied_head{};                     ///< name in the file of a head that repeats the embedding; "": none
};
/// Finds the parameters of the model among the tensors of a file, which may lack the prefix and include tensors that
/// are not parameters. `may_lack_head`: those of the head need not be there, and the other head may. Throws as
/// check_tensors.
HuggingfaceNames find_parameters(const ModelConfig& config, const HuggingfaceTable& table, const TensorShapes& ours,
                                 const NamedShapes& theirs, bool may_lack_head = false);

/// Rows of a parameter that are consecutive in one of their tensors.
struct TheirRows {
  size_t tensor = 0;  ///< index in HuggingfaceRow::theirs
  int64_t begin = 0;  ///< its first row there, without unused_rows; of form transposed, the first column
  int64_t to = 0;     ///< among the rows asked for
  int64_t rows = 0;
};
/// Where the rows from `begin` of row.ours[part] are.
std::vector<TheirRows> ranges_of(const HuggingfaceRow& row, const TensorShapes& ours, size_t part, int64_t begin,
                                 int64_t rows);

}  // namespace caravan
