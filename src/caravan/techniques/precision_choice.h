#pragma once

#include <cstdint>
#include <string>

namespace caravan {

/// The section precision of a recipe: names of dtypes, known without libtorch. Sharded parameters and moments are fp32.
struct PrecisionChoice {
  std::string compute = "fp32";    ///< dtype of the layers' arithmetic: fp32, bf16, fp16
  std::string gradients = "fp32";  ///< dtype in which gradients are kept: fp32, bf16
  std::string reduce = "auto";     ///< dtype in which they are reduced: fp32, bf16, fp16; auto: as they are kept
  /// fp16: factor of the loss that keeps small gradients from being rounded to 0; 0: adapted during training.
  double loss_scale = 0;

  bool scales_loss() const { return compute == "fp16"; }
  const std::string& reduced_in() const { return reduce == "auto" ? gradients : reduce; }
  static int64_t bytes(const std::string& dtype) { return dtype == "fp32" ? 4 : 2; }
  bool operator==(const PrecisionChoice&) const = default;
};

}  // namespace caravan
