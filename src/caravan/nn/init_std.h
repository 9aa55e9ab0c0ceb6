#pragma once

#include "caravan/nn/config.h"

namespace caravan {

// Standard deviations of initial weights: as in GPT-2, 0.02, divided by sqrt(2 layers) for matrices whose output is
// added to the stream. Models with unscaled attention scores use those of T5 (Raffel et al., arXiv 1910.10683): 1 /
// sqrt(input features), so that scores and sums start at unit scale.

/// Of a matrix whose input has `in` features.
double input_init_std(const ModelConfig& config, int64_t in);
/// The same of one whose output is added to the stream.
double output_init_std(const ModelConfig& config, int64_t in);
double query_init_std(const ModelConfig& config);
/// Of token embeddings, and of a head that is not tied to them.
double embedding_init_std(const ModelConfig& config);

}  // namespace caravan
