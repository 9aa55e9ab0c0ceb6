#include "caravan/nn/init_std.h"

#include <cmath>

#include "caravan/nn/linear.h"

namespace caravan {

namespace {

/// Whether weights are initialised as in T5.
bool has_fan_in_init(const ModelConfig& config) {
  return config.score_width == 1 && config.arch.positions == Positions::buckets;
}

}  // namespace

double input_init_std(const ModelConfig& config, int64_t in) {
  return has_fan_in_init(config) ? 1 / std::sqrt(static_cast<double>(in)) : kInitStd;
}

double output_init_std(const ModelConfig& config, int64_t in) {
  return has_fan_in_init(config) ? input_init_std(config, in) : residual_init_std(config);
}

double query_init_std(const ModelConfig& config) {
  const double std = input_init_std(config, config.width);
  return has_fan_in_init(config) ? std / std::sqrt(static_cast<double>(config.head_width())) : std;
}

double embedding_init_std(const ModelConfig& config) { return has_fan_in_init(config) ? 1 : kInitStd; }

}  // namespace caravan
