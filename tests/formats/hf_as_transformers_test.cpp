#include <gmock/gmock.h>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "caravan/base/error.h"
#include "caravan/formats/huggingface/hf_config.h"
#include "caravan/formats/huggingface/text_settings.h"
#include "tests/data/support.h"
#include "tests/ranks/rank_case.h"

namespace caravan::hf_as_transformers_test {
namespace {

using nlohmann::json;
using testing::error_of;
using ::testing::HasSubstr;

/// The model of a small config.json of that type with `keys`. The expectations are what transformers reads.
ModelConfig read(const std::string& type, const json& keys) {
  json file{{"model_type", type},       {"num_hidden_layers", 3},        {"hidden_size", 16},
            {"num_attention_heads", 2}, {"num_key_value_heads", 2},      {"intermediate_size", 24},
            {"vocab_size", 9},          {"max_position_embeddings", 256}};
  file.update(keys);
  return parse_huggingface_config(file.dump(), "config.json");
}

std::string refusal(const std::string& type, const json& keys) {
  return error_of<DataError>([&] { read(type, keys); });
}

TEST(AsTransformers, TheOriginalContextBesideTheScalingGoesFirst) {
  for (const char* type : {"llama3", "yarn", "longrope"}) {
    json scaling{{"rope_type", type}, {"factor", 4.0}, {"short_factor", {1, 1, 1, 1}}, {"long_factor", {2, 2, 2, 2}}};
    json keys{{"original_max_position_embeddings", 32}, {"rope_scaling", scaling}};
    EXPECT_EQ(read("llama", keys).rope_scaling.original_context, 32) << type;
    keys["rope_scaling"]["original_max_position_embeddings"] = 64;
    EXPECT_EQ(read("llama", keys).rope_scaling.original_context, 32) << type;
    keys.erase("original_max_position_embeddings");
    EXPECT_EQ(read("llama", keys).rope_scaling.original_context, 64) << type;
  }
  const json of_layers{{"rope_type", "yarn"}, {"factor", 2.0}, {"original_max_position_embeddings", 64}};
  const ModelConfig gemma = read(
      "gemma3_text", {{"original_max_position_embeddings", 32}, {"rope_parameters", {{"full_attention", of_layers}}}});
  EXPECT_EQ(gemma.rope_scaling.original_context, 64);
}

TEST(AsTransformers, TheOlderKeyOfTheScalingGoesFirst) {
  const json linear{{"rope_type", "linear"}, {"factor", 2.0}}, other{{"rope_type", "linear"}, {"factor", 8.0}};
  EXPECT_EQ(read("llama", {{"rope_scaling", linear}, {"rope_parameters", other}}).rope_scaling.factor, 2);
  EXPECT_EQ(read("llama", {{"rope_scaling", json::object()}, {"rope_parameters", other}}).rope_scaling.factor, 8);
  const ModelConfig without_kind = read("llama", {{"rope_scaling", {{"factor", 2.0}}}, {"rope_parameters", other}});
  EXPECT_FALSE(without_kind.rope_scaling.is_used());
  EXPECT_EQ(read("llama", {{"rope_scaling", {{"rope_theta", 5e5}}}}).rope_theta, 5e5);
}

TEST(AsTransformers, AScalingOfGemma3IsOfItsFullLayers) {
  const json linear{{"rope_type", "linear"}, {"factor", 8.0}};
  EXPECT_EQ(read("gemma3_text", {{"rope_scaling", linear}}).rope_scaling.factor, 8);
  EXPECT_EQ(read("gemma3_text", {{"rope_parameters", {{"full_attention", linear}}}}).rope_scaling.factor, 8);
  const auto factor_with = [&](const json& old) {
    return read("gemma3_text", {{"rope_scaling", old}, {"rope_parameters", {{"full_attention", linear}}}})
        .rope_scaling.factor;
  };
  EXPECT_EQ(factor_with(json::object()), 8) << "member by member";
  EXPECT_EQ(factor_with({{"rope_type", "linear"}}), 8);
  EXPECT_EQ(factor_with({{"factor", 4.0}}), 4);
  EXPECT_EQ(factor_with({{"type", "linear"}, {"factor", 4.0}}), 4);
  EXPECT_THAT(refusal("gemma3_text", {{"rope_parameters", linear}}), HasSubstr("into a member full_attention"));
  EXPECT_THAT(refusal("gemma3_text", {{"rope_scaling", {{"type", "linear"}, {"factor", 8.0}}}}),
              HasSubstr("rename it to rope_type"));
  EXPECT_EQ(read("gemma3_text", {{"attn_logit_softcapping", 3.0}}).attention_cap, 0) << "which it does not use";
}

TEST(AsTransformers, ValuesOfAScalingThatSayNothing) {
  const ModelConfig yarn =
      read("llama", {{"rope_scaling", {{"rope_type", "yarn"}, {"factor", 2.0}, {"beta_fast", 0}, {"beta_slow", 0}}}});
  EXPECT_EQ(yarn.rope_scaling.beta_fast, RopeScaling().beta_fast);
  EXPECT_EQ(yarn.rope_scaling.beta_slow, RopeScaling().beta_slow);
  const json factors{{"rope_type", "longrope"}, {"short_factor", {1, 1, 1, 1}}, {"long_factor", {2, 2, 2, 2}}};
  EXPECT_EQ(read("phi3", {{"rope_parameters", factors}}).rope_scaling.factor, 1)
      << "its context is 4096 before scaling";
}

TEST(AsTransformers, AMistralWithTypesOfLayersHasTheirWindows) {
  const json types{"sliding_attention", "full_attention", "sliding_attention"};
  const ModelConfig mixed = read("mistral", {{"sliding_window", 8}, {"layer_types", types}});
  EXPECT_EQ(mixed.window, 8);
  EXPECT_EQ(mixed.full_layers, LayerSet::every(2));
  EXPECT_EQ(json::parse(huggingface_config(mixed)).at("layer_types"), types);
  const json full(3, "full_attention");
  EXPECT_EQ(read("mistral", {{"sliding_window", 8}, {"layer_types", full}}).window, 0);
  EXPECT_FALSE(json::parse(huggingface_config(read("mistral", {{"sliding_window", 8}}))).contains("layer_types"));
}

TEST(AsTransformers, ABloomThatMultipliesInPartsIsRefused) {
  const json parts{{"n_layer", 1}, {"n_head", 2}, {"slow_but_exact", true}};
  json of_two = parts;
  of_two["pretraining_tp"] = 2;
  EXPECT_NO_THROW(read("bloom", parts));
  EXPECT_THAT(refusal("bloom", of_two), HasSubstr("slow_but_exact"));
}

/// Its generic tokenizer tells the texts of a pair apart only if the file says so.
TEST(AsTransformers, ATokenizerOfTypesOfTextsSaysSo) {
  const TemporaryFolder folder;
  const auto written = [&](int64_t token_types) {
    ModelConfig model = read("llama", json::object());
    model.token_types = token_types;
    write_text_files(folder.path(), {}, Tokenizer::bytes(), model);
    return json::parse(read_file(folder / "tokenizer_config.json"));
  };
  EXPECT_FALSE(written(0).contains("model_input_names"));
  EXPECT_EQ(written(2).at("model_input_names").at(1), "token_type_ids");
}

}  // namespace
}  // namespace caravan::hf_as_transformers_test
