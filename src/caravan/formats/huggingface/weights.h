#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "caravan/base/content_hash.h"
#include "caravan/formats/huggingface/hf_names.h"
#include "caravan/formats/safetensors/safetensors.h"
#include "caravan/mesh/layout.h"

namespace caravan {

/// The weights of a Hugging Face folder, model.safetensors or the shards of model.safetensors.index.json, read by
/// piece: of the mapped files, each call reads the bytes of its piece alone, whatever the form of the weight (fused,
/// transposed, by head, a tensor for each expert). Beside the caller's tensor it takes 8 MiB, or a row of one.
class HuggingfaceWeights {
 public:
  /// Maps the files. Throws DataError, naming file and tensor, for what is missing, unexpected, damaged or of another
  /// shape than a Model of this config has: all that headers tell, before anything is allocated by them.
  /// `may_lack_head`: see find_parameters.
  HuggingfaceWeights(const std::filesystem::path& folder, const ModelConfig& config, bool may_lack_head = false);

  /// Whether the files have the parameter: all but those of a head, which may be missing.
  bool has(const std::string& name) const;

  /// Fills `out`, of the shape of `box` and any floating dtype and strides, with that box of the parameter of Model
  /// with this name, which they have; bf16 and fp16 are converted. Throws DataError for values that are not finite, and
  /// for a tied head that differs from this piece of the embedding.
  void read(const std::string& name, const Box& box, const at::Tensor& out);
  /// The same for a piece of several boxes.
  void read(const std::string& name, const std::vector<PieceBox>& boxes, const at::Tensor& out);
  /// The whole parameter, in fp32.
  at::Tensor read(const std::string& name);

  /// A hash of the names and sizes of the files, their headers, and the first 256 bytes of each tensor: cheap, and
  /// different for two folders whose weights were trained apart. A value changed further inside a tensor is not seen.
  ContentHash fingerprint() const;
  /// Bytes of values that read() has taken from the files.
  int64_t bytes_read() const noexcept { return bytes_read_; }

 private:
  struct Place {
    size_t file = 0;
    std::string name;
  };
  at::Tensor take(const Place& place, const Box& box);
  void fill(const std::string& name, const TheirRows& range, const Box& box, const at::Tensor& out);
  void check_tied_head(const Box& theirs, const at::Tensor& embedding);

  std::filesystem::path folder_;
  TensorShapes shapes_;  ///< of ours
  HuggingfaceTable table_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, Place> places_;                       ///< by their name in the table
  std::map<std::string, std::pair<size_t, size_t>> of_ours_;  ///< row of the table and index in its `ours`
  std::string tied_head_;                                     ///< key of places_; "": none
  int64_t bytes_read_ = 0;
};

}  // namespace caravan
