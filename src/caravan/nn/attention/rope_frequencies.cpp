#include "caravan/nn/attention/rope_frequencies.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace caravan {
namespace {

constexpr double kTurn = 2 * std::numbers::pi;

int64_t original_context(const RopeSettings& settings) {
  return settings.scaling.original_context > 0 ? settings.scaling.original_context : settings.context;
}

/// theta^(-2i / rotated) of every pair.
std::vector<double> plain_frequencies(const RopeSettings& settings, double theta) {
  const auto rotated = static_cast<double>(settings.rotated);
  std::vector<double> all;
  for (int64_t i = 0; i < settings.rotated / 2; ++i) {
    all.push_back(1 / std::pow(theta, static_cast<double>(2 * i) / rotated));
  }
  return all;
}

/// A larger base, so that the lowest frequency falls with the length.
double dynamic_theta(const RopeSettings& settings, int64_t length) {
  const auto context = static_cast<double>(original_context(settings));
  const auto rotated = static_cast<double>(settings.rotated);
  const double factor = settings.scaling.factor, longest = std::max(static_cast<double>(length), context);
  return settings.theta * std::pow(factor * longest / context - (factor - 1), rotated / (rotated - 2));
}

void scale_as_llama3(std::vector<double>& frequencies, const RopeSettings& settings) {
  const RopeScaling& scaling = settings.scaling;
  const auto context = static_cast<double>(original_context(settings));
  for (double& frequency : frequencies) {
    const double periods = context * frequency / kTurn;  // in the original context
    if (periods > scaling.high_frequency) continue;
    const double divided = frequency / scaling.factor;
    const double kept = (periods - scaling.low_frequency) / (scaling.high_frequency - scaling.low_frequency);
    frequency = periods < scaling.low_frequency ? divided : (1 - kept) * divided + kept * frequency;
  }
}

/// The pair, not rounded, that turns `turns` times in the original context.
double pair_of_turns(double turns, const RopeSettings& settings) {
  const auto context = static_cast<double>(original_context(settings));
  return static_cast<double>(settings.rotated) * std::log(context / (turns * kTurn)) / (2 * std::log(settings.theta));
}

void scale_as_yarn(std::vector<double>& frequencies, const RopeSettings& settings) {
  const RopeScaling& scaling = settings.scaling;
  double low = pair_of_turns(scaling.beta_fast, settings), high = pair_of_turns(scaling.beta_slow, settings);
  if (scaling.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(settings.rotated - 1));
  if (low == high) high += 0.001;  // no division by zero
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const double divided = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    frequencies[i] *= divided / scaling.factor + (1 - divided);
  }
}

double yarn_factor(const RopeScaling& scaling) {
  const auto of = [&](double mscale) { return scaling.factor <= 1 ? 1 : 0.1 * mscale * std::log(scaling.factor) + 1; };
  return scaling.mscale > 0 && scaling.mscale_all > 0 ? of(scaling.mscale) / of(scaling.mscale_all) : of(1);
}

double longrope_factor(const RopeSettings& settings) {
  const double factor = settings.scaling.factor, context = static_cast<double>(original_context(settings));
  return factor <= 1 ? 1 : std::sqrt(1 + std::log(factor) / std::log(context));
}

}  // namespace

RopeSettings rope_settings(const ModelConfig& config, int64_t layer) {
  RopeSettings settings{config.rotated_width(), config.rope_theta, config.rope_scaling, config.context};
  if (config.window_of(layer) == 0 || config.local_rope_theta == 0) return settings;
  settings.theta = config.local_rope_theta;
  settings.scaling = {};
  return settings;
}

RopeFrequencies rope_frequencies(const RopeSettings& settings, int64_t length) {
  const RopeScaling& scaling = settings.scaling;
  const bool is_dynamic = scaling.kind == RopeScalingKind::dynamic && settings.rotated > 2;
  std::vector<double> frequencies =
      plain_frequencies(settings, is_dynamic ? dynamic_theta(settings, length) : settings.theta);
  RopeFrequencies result;
  switch (scaling.kind) {
    case RopeScalingKind::none:
    case RopeScalingKind::dynamic: break;
    case RopeScalingKind::linear:
      for (double& frequency : frequencies) frequency /= scaling.factor;
      break;
    case RopeScalingKind::llama3: scale_as_llama3(frequencies, settings); break;
    case RopeScalingKind::yarn:
      scale_as_yarn(frequencies, settings);
      result.factor = scaling.attention_factor > 0 ? scaling.attention_factor : yarn_factor(scaling);
      break;
    case RopeScalingKind::longrope: {
      const bool is_long = length > original_context(settings);
      const std::vector<double>& factors = is_long ? scaling.long_factors : scaling.short_factors;
      for (size_t i = 0; i < frequencies.size(); ++i) frequencies[i] /= factors.at(i);
      result.factor = scaling.attention_factor > 0 ? scaling.attention_factor : longrope_factor(settings);
      break;
    }
  }
  for (const double frequency : frequencies) result.radians.push_back(static_cast<float>(frequency));
  return result;
}

}  // namespace caravan
