#pragma once

#include <cstdint>
#include <string>

namespace caravan {

/// The section precision of a recipe: names of dtypes, known without libtorch. Parameters and moments rest in fp32.
struct PrecisionChoice {
  std::string compute = "fp32";    ///< of the layers' arithmetic: fp32, bf16, fp16
  std::string gradients = "fp32";  ///< in which gradients are kept: fp32, bf16
  std::string reduce = "auto";     ///< in which they are reduced: fp32, bf16, fp16; auto: as they are kept
  /// fp16: what the loss is multiplied by, so that small gradients are not rounded to 0; 0: adapted as training goes.
  double loss_scale = 0;

  bool scales_loss() const { return compute == "fp16"; }
  const std::string& reduced_in() const { return reduce == "auto" ? gradients : reduce; }
  static int64_t bytes(const std::string& dtype) { return dtype == "fp32" ? 4 : 2; }
  bool operator==(const PrecisionChoice&) const = default;
};

}  // namespace caravan
