#include "caravan/generate/beams.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "caravan/base/error.h"
#include "caravan/formats/huggingface/hf_config.h"
#include "caravan/formats/huggingface/hf_names.h"
#include "caravan/generate/generator.h"
#include "tests/nn/tiny.h"
#include "tests/ranks/rank_case.h"

namespace caravan::beams_test {
namespace {

std::unique_ptr<Model> model_of_fixture(const std::string& name) {
  const testing::Fixture fixture = testing::read_fixture(name);
  ModelConfig config = parse_huggingface_config(fixture.config, name);
  if (name != "gpt2_untied") config.context = 64;  // as make_beams.py has it
  auto model = testing::whole_model(config);
  testing::set_parameters(*model, from_huggingface(config, fixture.below("parameter.", at::kFloat)));
  return model;
}

/// What transformers finds: fixtures/make_beams.py.
TEST(Beams, FindTheTextsThatTransformersFinds) {
  const std::filesystem::path file = std::filesystem::path(CARAVAN_SOURCE_DIR) / "tests/generate/fixtures/beams.json";
  std::ifstream in(file);
  const nlohmann::json cases = nlohmann::json::parse(in);
  ASSERT_GT(cases.size(), 200U);
  const at::NoGradGuard no_grad;
  std::map<std::string, std::unique_ptr<Model>> models;
  std::map<std::string, std::unique_ptr<TextWindows>> windows;
  for (const auto& of : cases) {
    SCOPED_TRACE(of.dump());
    const std::string name = of.at("model");
    if (!models.contains(name)) {
      models[name] = model_of_fixture(name);
      windows[name] = std::make_unique<TextWindows>(*models[name]);
    }
    const BeamSearch::Options options{.beams = of.at("beams"),
                                      .length_penalty = of.at("length_penalty"),
                                      .num_tokens = of.at("tokens"),
                                      .end_tokens = of.at("ends")};
    const BeamSearch::Beam found = search_beams(*windows[name], {}, of.at("prompt").get<std::vector<int64_t>>(),
                                                options, of.at("repetition_penalty"));
    auto wanted = of.at("generated").get<std::vector<int64_t>>();
    const bool ends = std::ranges::find(options.end_tokens, wanted.back()) != options.end_tokens.end();
    if (ends) wanted.pop_back();
    EXPECT_EQ(found.ids, wanted);
    EXPECT_EQ(found.log_probabilities.size(), wanted.size());
    const double score = of.at("score");
    EXPECT_NEAR(found.score, score, 2e-5 + 1e-6 * std::abs(score));  // it has 5 digits, and is a sum in fp32
    EXPECT_EQ(windows[name]->cache().num_blocks(), 0);
  }
}

TEST(Beams, AreATextOfTheGenerator) {
  const auto model = testing::whole_model(
      {.layers = 2, .width = 16, .heads = 4, .context = 24, .vocabulary = 256, .tie_embeddings = false});
  const at::NoGradGuard no_grad;
  for (Parameter* parameter : model->parameters()) {
    if (parameter->sharded().dim() == 2) parameter->sharded().mul_(6);
  }
  std::vector<Prompt> prompts{{"abc", {.num_tokens = 9, .sampling = {.temperature = 0}}}};
  prompts.push_back(prompts.front());
  prompts.back().options.beams = 4;
  Generator generator(*model, Tokenizer::bytes());
  const auto made = generator.run(prompts);
  const auto sum = [&](size_t i) {
    double all = 0;
    for (const double one : made[i].log_probabilities) all += one;
    return all;
  };
  EXPECT_GT(sum(1), sum(0)) << "likelier than the greedy text";
  EXPECT_EQ(made[1].num_tokens, 9);
  EXPECT_EQ(made[1].ending, Ending::length);
  prompts.back().options.num_tokens = 30;
  EXPECT_THAT(testing::error_of<UsageError>([&] { generator.run(prompts); }),
              ::testing::HasSubstr("a prompt of 3 tokens and 30 more exceed the context of 24"));
  // The last 19 tokens of the prompt leave room for 6 more, of which the last is not seen.
  Prompt longer{"0123456789" + std::string("abcdefghijklmnopqrs"), {.num_tokens = 6, .beams = 4, .truncate = true}};
  const Prompt cut{"abcdefghijklmnopqrs", longer.options};
  EXPECT_EQ(generator.run({&longer, 1}).front().text, generator.run({&cut, 1}).front().text);
  longer.options.truncate = false;
  EXPECT_THAT(testing::error_of<UsageError>([&] { generator.run({&longer, 1}); }), ::testing::HasSubstr("--truncate"));
  prompts.back().options.sampling.presence_penalty = 1;
  EXPECT_THAT(testing::error_of<UsageError>([&] { generator.run(prompts); }),
              ::testing::HasSubstr("are not searched with"));
}

}  // namespace
}  // namespace caravan::beams_test
