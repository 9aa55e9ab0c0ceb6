#include "caravan/formats/huggingface/hf_generation.h"

#include <limits>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "caravan/base/error.h"
#include "caravan/base/json_reader.h"

namespace caravan {
namespace {

using nlohmann::json;

constexpr int64_t kLargestId = std::numeric_limits<int32_t>::max();

double real(const JsonReader& in) {
  if (!in.value().is_number()) in.refuse("is not a number", "give a number");
  return in.value().get<double>();
}

/// Settings that change the text, with the value that, like null, means "off".
const std::vector<std::pair<const char*, json>>& unsupported_settings() {
  static const std::vector<std::pair<const char*, json>> settings{
      {"epsilon_cutoff", 0},
      {"eta_cutoff", 0},
      {"top_h", nullptr},
      {"encoder_repetition_penalty", 1},
      {"no_repeat_ngram_size", 0},
      {"num_beams", 1},
      {"num_beam_groups", 1},
      {"num_return_sequences", 1},
      {"diversity_penalty", 0},
      {"penalty_alpha", 0},
      {"guidance_scale", 1},
      {"early_stopping", false},
      {"max_length", 20},
      {"min_length", 0},
      {"min_new_tokens", 0},
      {"bad_words_ids", nullptr},
      {"force_words_ids", nullptr},
      {"suppress_tokens", nullptr},
      {"begin_suppress_tokens", nullptr},
      {"forced_bos_token_id", nullptr},
      {"forced_eos_token_id", nullptr},
      {"exponential_decay_length_penalty", nullptr},
      {"sequence_bias", nullptr},
      {"constraints", nullptr},
      {"watermarking_config", nullptr},
  };
  return settings;
}

}  // namespace

GenerationConfig parse_generation_config(std::string_view text, std::string_view file) {
  check_json_depth(text, file, "generate");
  const json parsed = json::parse(text, nullptr, /*allow_exceptions=*/false);
  const JsonReader in(parsed, "", file, "generate");
  if (!parsed.is_object()) in.refuse("is not a JSON object", "restore the file from the model's folder");
  GenerationConfig config;
  if (const auto begin = in["bos_token_id"]; !begin.is_null()) config.begin = begin.integer(0, kLargestId);
  if (const auto end = in["eos_token_id"]; end.value().is_array()) {
    config.end.emplace();
    for (size_t i = 0; i < end.size(); ++i) config.end->push_back(end.element(i).integer(0, kLargestId));
  } else if (!end.is_null()) {
    config.end = {end.integer(0, kLargestId)};
  }
  if (const auto sample = in["do_sample"]; !sample.is_null()) config.do_sample = sample.boolean();
  if (const auto temperature = in["temperature"]; !temperature.is_null()) config.temperature = real(temperature);
  if (const auto top_k = in["top_k"]; !top_k.is_null()) config.top_k = top_k.integer(0, kLargestId);
  if (const auto top_p = in["top_p"]; !top_p.is_null()) config.top_p = real(top_p);
  if (const auto min_p = in["min_p"]; !min_p.is_null()) config.min_p = real(min_p);
  if (const auto typical_p = in["typical_p"]; !typical_p.is_null()) config.typical_p = real(typical_p);
  if (const auto penalty = in["repetition_penalty"]; !penalty.is_null()) config.repetition_penalty = real(penalty);
  if (const auto penalty = in["length_penalty"]; !penalty.is_null()) config.length_penalty = real(penalty);
  if (const auto most = in["max_new_tokens"]; !most.is_null()) config.max_new_tokens = most.integer(1, kLargestId);
  if (const auto stop = in["stop_strings"]; stop.value().is_array()) {
    for (size_t i = 0; i < stop.size(); ++i) config.stop_strings.push_back(stop.element(i).string());
  } else if (!stop.is_null()) {
    config.stop_strings = {stop.string()};
  }
  for (const auto& [key, off] : unsupported_settings()) {
    const JsonReader setting = in[key];
    if (setting.is_null() || setting.value() == off) continue;
    const bool is_long = setting.value().is_structured();
    config.ignored.push_back(is_long ? std::string(key) : fmt::format("{} = {}", key, setting.value().dump()));
  }
  return config;
}

SpecialTokens generation_tokens(const SpecialTokens& config, const GenerationConfig& generation) {
  SpecialTokens tokens = config;
  if (generation.begin) tokens.begin = generation.begin;
  if (generation.end) tokens.end = *generation.end;
  return tokens;
}

}  // namespace caravan
