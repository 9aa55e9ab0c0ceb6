#pragma once

#include <cstdint>
#include <vector>

#include "caravan/nn/config.h"

namespace caravan {

/// What determines the rotary angles of a layer.
struct RopeSettings {
  int64_t rotated = 0;  ///< features of a head that are rotated
  double theta = 10000;
  RopeScaling scaling{};
  int64_t context = 0;  ///< of the model
  bool operator==(const RopeSettings&) const = default;
};

/// Those of a layer that rotates.
RopeSettings rope_settings(const ModelConfig& config, int64_t layer);

struct RopeFrequencies {
  std::vector<float> radians;  ///< by which a pair of features turns from one position to the next
  double factor = 1;           ///< of cosines and sines
};
/// For a sequence of `length` positions. In fp32, as transformers computes them. (The formulas are those of the papers
/// and models that RopeScalingKind names.)
RopeFrequencies rope_frequencies(const RopeSettings& settings, int64_t length);

}  // namespace caravan
