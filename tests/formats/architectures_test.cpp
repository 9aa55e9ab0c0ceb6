#include <algorithm>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "caravan/base/error.h"
#include "caravan/formats/huggingface/architectures/columns.h"
#include "caravan/formats/huggingface/architectures/rows.h"
#include "caravan/formats/huggingface/config_text.h"
#include "caravan/nn/model_fields.h"
#include "tests/formats/small_models.h"
#include "tests/ranks/rank_case.h"

namespace caravan::architectures_test {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using testing::error_of;
using ::testing::HasSubstr;

ModelConfig small_model(const ArchitectureRow& row) {
  ModelConfig config =
      testing::small_model(row, {.layers = 6, .width = 24, .heads = 6, .vocabulary = 99, .hidden = 40});
  if (config.arch.scales_embedding) config.score_width = 256;  // their default of query_pre_attn_scalar
  if (row.name == "gemma") config.score_width = 0;
  if (row.name == "gpt_neox") config.heads = 3;  // a quarter of a head is rotated in pairs
  return config;
}

TEST(LayerSet, isTextAndBack) {
  for (const char* text : {"", "every 1", "every 6", "0", "3", "0, 3, 17"}) {
    EXPECT_EQ(LayerSet::parse(text).to_string(), text);
  }
  EXPECT_EQ(LayerSet::parse("3,0 , 3").to_string(), "0, 3");
  EXPECT_EQ(LayerSet::every(3).members(7), (std::vector<bool>{false, false, true, false, false, true, false}));
  EXPECT_EQ(LayerSet::of({false, true, false, true, false}), LayerSet::every(2));
  EXPECT_EQ(LayerSet::of({false, true, false, false}).to_string(), "1") << "not every second";
  EXPECT_EQ(LayerSet::of({true, false}).to_string(), "0");
  EXPECT_TRUE(LayerSet::of({false, false}).empty());
  for (const char* text : {"every", "every 0", "every x", "-1", "1 2", "1,,2", "all", "1,"}) {
    EXPECT_THAT(error_of<UsageError>([&] { LayerSet::parse(text); }), HasSubstr("write \"every 6\"")) << text;
  }
}

TEST(Architectures, writeAConfigThatTheyRead) {
  for (const ArchitectureRow& row : architectures()) {
    SCOPED_TRACE(row.name);
    const ModelConfig config = small_model(row);
    EXPECT_EQ(difference_to(config, row), "");
    const std::string text = huggingface_config(config);
    EXPECT_EQ(json::parse(text)["model_type"], row.name);
    const ModelConfig back = parse_huggingface_config(text, "config.json");
    EXPECT_EQ(huggingface_config(back), text);
    EXPECT_EQ(parse_config_text(config_text(config), "manifest"), config);
    EXPECT_EQ(back.num_parameters(), config.num_parameters());
  }
}

TEST(Architectures, ofAllButT5MayTellClassesApart) {
  for (const ArchitectureRow& row : architectures()) {
    if (row.base.has_encoder()) continue;
    ModelConfig config = small_model(row);
    config.classes = 3;
    const std::string text = huggingface_config(config);
    EXPECT_EQ(json::parse(text)["model_type"], row.name);
    const std::string of_row =
        row.their_class.substr(0, std::min(row.their_class.find("For"), row.their_class.find("LMHead")));
    EXPECT_EQ(json::parse(text)["architectures"][0], of_row + "ForSequenceClassification");
    EXPECT_EQ(huggingface_config(parse_huggingface_config(text, "config.json")), text) << row.name;
  }
}

/// A setting of which a row knows nothing is an error that names it, never lost.
TEST(Architectures, refuseWhatTheirConfigCannotSay) {
  for (const ArchitectureRow& row : architectures()) {
    for (const ModelField& field : model_fields()) {
      if (!field.is_architecture()) continue;
      ModelConfig changed = small_model(row);
      const ModelConfig other = [&] {
        ModelConfig config = small_model(row);
        config.arch = config.arch.is_gated ? Architecture::gpt2() : Architecture::llama();
        config.norm_epsilon = 0.5;
        config.attention_cap = 3;
        config.logits_cap = 4;
        config.score_width = 7;
        config.window = 5;
        config.full_layers = LayerSet::every(3);
        config.rope_theta = 77;
        config.local_rope_theta = 33;
        config.rope_fraction = 0.5;
        config.unrotated_layers = LayerSet::every(5);
        return config;
      }();
      field.copy(other, changed);
      try {
        changed.validate();
        const ModelConfig back = parse_huggingface_config(huggingface_config(changed), "config.json");
        EXPECT_EQ(difference_to(changed, *find_architecture(back.arch.name)), "") << row.name << " " << field.key;
      } catch (const UsageError& error) {
        EXPECT_THAT(error.what(), AnyOf(HasSubstr("no such model"), HasSubstr("model.")));
      }
    }
  }
}

/// A family that this library does not have: a Llama with a window on every third layer, under other names.
TEST(Architectures, aProgramMayAddARow) {
  ArchitectureRow row = llama_row();
  row.name = "my_llama";
  row.their_class = "MyLlamaForCausalLM";
  row.base.window = -9;
  EXPECT_THAT(error_of<UsageError>([&] { add_architecture(row); }), HasSubstr("model.window: -9"));
  EXPECT_EQ(find_architecture("my_llama"), nullptr);
  row.base.window = 9;  // without a column: always 9
  ModelConfig wider;
  set_architecture(wider, row);
  wider.vocabulary = 5;
  wider.window = 10;
  EXPECT_EQ(difference_to(wider, row), "model.window = 10, but my_llama has 9");
  row.columns.push_back(columns::window(columns::WindowRule::types, 9));
  row.base.full_layers = LayerSet::every(3);
  add_architecture(row);
  ModelConfig config = small_model(*find_architecture("my_llama"));
  EXPECT_EQ(json::parse(huggingface_config(config))["model_type"], "my_llama");
  EXPECT_EQ(parse_huggingface_config(huggingface_config(config), "config.json").full_layers, LayerSet::every(3));
  row.base.window = 11;
  add_architecture(row);  // replaces it
  EXPECT_EQ(find_architecture("my_llama")->base.window, 11);
}

}  // namespace
}  // namespace caravan::architectures_test
