// load: a language model over ranks, from a folder in Hugging Face's format and from a checkpoint.
#include "caravan/generate/load.h"

#include <array>
#include <gmock/gmock.h>
#include <mutex>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/base/memory/memory_counter.h"
#include "caravan/comm/backends/shared/thread_ranks.h"
#include "caravan/formats/huggingface/huggingface.h"
#include "caravan/train/model/import.h"
#include "tests/data/support.h"
#include "tests/formats/small_models.h"
#include "tests/nn/tiny.h"

namespace caravan::testing::load_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

const char* const kPrompt = "Call me Ishmael";
const ContinuationOptions kGreedy{.num_tokens = 32, .sampling = {.temperature = 0}};
const ContinuationOptions kDrawn{.num_tokens = 32, .sampling = {.temperature = 1.3, .top_k = 0, .seed = 5}};

ModelConfig small_model(const std::string& name) {
  ModelConfig config = testing::small_model(*find_architecture(name), {.layers = 4,
                                                                       .width = 32,
                                                                       .heads = 4,
                                                                       .context = 64,
                                                                       .vocabulary = 256,
                                                                       .hidden = 37});  // does not divide among ranks
  config.kv_heads = name == "gpt2" || name == "gpt_neox" ? 0 : 2;
  if (name == "gemma2") config.window = 3;
  return config;
}

/// A model in memory, computed without any reader, and the folder that has it.
struct Original {
  explicit Original(ModelConfig config, const fs::path& folder) : model(whole_model(config, 3)) {
    const at::NoGradGuard no_grad;
    NamedTensors values;
    for (Parameter* parameter : model->parameters()) {
      if (parameter->sharded().dim() >= 2) parameter->sharded().mul_(8);  // else every token is followed by itself
      values.emplace_back(parameter->name(), parameter->sharded().detach());
    }
    write_huggingface(folder, config, values, Tokenizer::bytes(), {});
  }
  std::string text(const ContinuationOptions& options) const {
    const Prompt prompt{kPrompt, options};
    return Generator(*model, Tokenizer::bytes()).run({&prompt, 1}).front().text;
  }
  std::unique_ptr<Model> model;
};

at::Tensor prompt_logits(const TextModel& model) {
  const at::NoGradGuard no_grad;
  std::vector<int64_t> ids;
  for (const char c : std::string(kPrompt)) ids.push_back(c);
  ForwardContext context{.phase = Phase::generate};
  context.positions = at::arange(static_cast<int64_t>(ids.size()), at::kLong);
  return model.logits(at::tensor(ids, at::kLong).unsqueeze(0), context);
}

void on_ranks(int ranks, const std::function<void(const Mesh&)>& body) {
  run_thread_ranks(ranks,
                   [&](const auto& world) {
                     body(Mesh::create(world, {{"dp", ranks}}));
                   },
                   {.timeout = std::chrono::seconds(60)});
}

class LoadSplit : public ::testing::TestWithParam<std::string> {};

TEST_P(LoadSplit, ComputesTheLogitsAndTokensOfTheWhole) {
  const TemporaryFolder folder;
  const ModelConfig config = small_model(GetParam());
  const Original original(config, folder / "model");
  const at::Tensor wanted = prompt_logits(*original.model);
  const std::string greedy = original.text(kGreedy), drawn = original.text(kDrawn);
  const std::vector<Prompt> both{{kPrompt, kGreedy}, {kPrompt, kDrawn}, {"a", kDrawn}};
  std::vector<LoadOptions> splits{{.tp = 1}, {.tp = 2}, {.tp = 4}, {.tp = 1, .pp = 2}, {.tp = 2, .pp = 2}, {.pp = 4}};
  if (config.num_kv_heads() == 4) splits.push_back({.tp = 3});  // with 2, 1 and 1 heads
  if (config.moe.is_used()) splits.insert(splits.end(), {{.ep = 2}, {.tp = 2, .ep = 2}, {.tp = 1, .pp = 2, .ep = 2}});
  for (const LoadOptions& split : splits) {
    SCOPED_TRACE(::testing::Message() << "tp " << split.tp << " pp " << split.pp << " ep " << split.ep);
    const int ranks = std::max(split.tp, 1) * std::max(split.pp, 1) * std::max(split.ep, 1);
    std::mutex mutex;
    int num_logits = 0;
    on_ranks(ranks, [&](const Mesh& mesh) {
      LanguageModel model = load(folder / "model", mesh, split);
      const at::Tensor logits = prompt_logits(model.text_model());
      const std::string own_greedy = model.generate(kPrompt, kGreedy), own_drawn = model.generate(kPrompt, kDrawn);
      const std::vector<Continuation> all = model.generate(both, {.batch = 3});
      const std::lock_guard lock(mutex);
      EXPECT_EQ(own_greedy, greedy);
      EXPECT_EQ(own_drawn, drawn);
      EXPECT_EQ(all[0].text, greedy);
      EXPECT_EQ(all[1].text, drawn);
      if (!logits.defined()) return;
      ++num_logits;
      // fp32, sums in another order
      EXPECT_LT((logits - wanted.select(1, -1).unsqueeze(1)).abs().max().item<double>(),
                1e-5 * wanted.abs().max().item<double>());
    });
    EXPECT_EQ(num_logits, ranks / std::max(split.pp, 1));
  }
}

INSTANTIATE_TEST_SUITE_P(, LoadSplit, ::testing::Values("llama", "gemma2", "qwen3_moe", "gpt_neox", "gpt2"),
                         [](const auto& info) { return info.param; });

TEST(Load, ARunOverRanksIsTheFolderThatItWasImportedFrom) {
  const TemporaryFolder folder;
  const Original original(small_model("llama"), folder / "model");
  const std::string text = original.text(kGreedy);
  on_ranks(1, [&](const Mesh& mesh) { import_run(read_huggingface(folder / "model"), folder / "run", mesh); });
  on_ranks(2, [&](const Mesh& mesh) {
    LanguageModel model = load(folder / "run", mesh);
    EXPECT_THAT(model.origin(), HasSubstr("step_000000"));
    EXPECT_EQ(model.generate(kPrompt, kGreedy), text);
  });
}

class LoadIn16Bits : public ::testing::TestWithParam<std::string> {};

/// The weights are rounded once, and nothing is kept in fp32.
TEST_P(LoadIn16Bits, ComputesTheLogits) {
  const TemporaryFolder folder;
  const Original original(small_model(GetParam()), folder / "model");
  const at::Tensor wanted = prompt_logits(*original.model);
  int64_t elements = 0;
  for (const Parameter* parameter : original.model->parameters()) elements += parameter->num_elements();
  for (const auto& [dtype, tolerance] : {std::pair{at::kBFloat16, 0x1p-4}, {at::kHalf, 0x1p-7}}) {
    for (const int ranks : {1, 2}) {
      on_ranks(ranks, [&, dtype = dtype, tolerance = tolerance](const Mesh& mesh) {
        LanguageModel model = load(folder / "model", mesh, {.dtype = dtype});
        EXPECT_LT(model.parameter_bytes(), 2 * elements / ranks * 1.05 + 4000);  // norms are whole on each rank
        const at::Tensor logits = prompt_logits(model.text_model());
        EXPECT_EQ(logits.scalar_type(), dtype);
        EXPECT_LT(distance(logits, wanted.select(1, -1).unsqueeze(1)), tolerance);  // a rounding of each activation
        EXPECT_FALSE(model.generate(kPrompt, kGreedy).empty());
      });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, LoadIn16Bits, ::testing::Values("llama", "gemma2", "qwen3_moe", "gpt2"),
                         [](const auto& info) { return info.param; });

TEST(Load, RefusesToComputeInFp64) {
  const TemporaryFolder folder;
  const Original original(small_model("llama"), folder / "model");
  EXPECT_THAT(message_of<UsageError>([&] { load(folder / "model", one_rank(), {.dtype = at::kDouble}); }),
              HasSubstr("use fp32, bf16 or fp16"));
}

TEST(Load, ADraftAndBeamsOverRanks) {
  const TemporaryFolder folder;
  const Original original(small_model("llama"), folder / "model"), draft(small_model("gpt_neox"), folder / "draft");
  const std::string drawn = original.text(kDrawn);
  ContinuationOptions beams = kGreedy;
  beams.beams = 3;
  const std::string likeliest = original.text(beams);
  for (const LoadOptions& split : {LoadOptions{.tp = 2}, LoadOptions{.tp = 1, .pp = 2}}) {
    on_ranks(2, [&](const Mesh& mesh) {
      LanguageModel model = load(folder / "model", mesh, split), proposing = load(folder / "draft", mesh, split);
      const Prompt prompt{kPrompt, kDrawn};
      EXPECT_EQ(model.generate({&prompt, 1}, {.draft = proposing.text_model()}).front().text, drawn);
      EXPECT_EQ(model.generate(kPrompt, beams), likeliest);
    });
  }
}

TEST(Load, UsesTheAxesOfTheMeshUnlessOptionsAreGiven) {
  const TemporaryFolder folder;
  const Original original(small_model("llama"), folder / "model");
  run_thread_ranks(4, [&](const auto& world) {
    const Mesh mesh = Mesh::create(world, {{"pp", 2}, {"dp", 1}, {"tp", 2}});
    EXPECT_EQ(load(folder / "model", mesh).mesh()["pp"].size(), 2);
    EXPECT_EQ(load(folder / "model", mesh, {.pp = 4}).mesh()["pp"].size(), 4);
    EXPECT_EQ(load(folder / "model", Mesh::create(world, {{"dp", 4}})).mesh()["tp"].size(), 4);
  });
}

TEST(Load, MemoryIsTheShareAndPartOfOneTensor) {
  const TemporaryFolder folder;
  ModelConfig config = small_model("llama");
  config.vocabulary = 20'000;  // 2.6 MB, most of the model
  config.tie_embeddings = false;
  const Original original(config, folder / "model");
  int64_t whole = 0;
  for (const Parameter* parameter : original.model->parameters()) whole += parameter->num_elements() * 4;
  const int64_t largest = config.vocabulary * config.width * 4;
  on_ranks(4, [&](const Mesh& mesh) {
    MemoryCounter& counter = MemoryCounter::current();
    mesh.world().barrier();
    const int64_t before = counter.live_bytes();
    counter.reset_peak();
    const LanguageModel model = load(folder / "model", mesh);
    const int64_t held = counter.live_bytes() - before;
    EXPECT_LT(model.parameter_bytes(), whole / 4 * 1.05);  // norms are whole on each rank
    EXPECT_LT(held, model.parameter_bytes() * 1.05);       // flat memory is aligned
    EXPECT_EQ(counter.live_bytes(MemoryKind::gradients), 0);
    EXPECT_LT(counter.peak_bytes() - before, held + largest / 2);
  });
}

TEST(Load, RefusesRanksThatCannotShareTheModel) {
  const TemporaryFolder folder;
  const Original original(small_model("llama"), folder / "model");
  const auto refusal = [&](int ranks, const LoadOptions& options) {
    std::string text;
    std::mutex mutex;
    on_ranks(ranks, [&](const Mesh& mesh) {
      const std::string own = message_of<UsageError>([&] { load(folder / "model", mesh, options); });
      const std::lock_guard lock(mutex);
      text = own;
    });
    return text;
  };
  EXPECT_THAT(refusal(3, {}), AllOf(HasSubstr("3 ranks cannot share 4 heads"), HasSubstr("tp = 2 or 4")));
  EXPECT_THAT(refusal(4, {.tp = 2}),
              AllOf(HasSubstr("there are 4 ranks"), HasSubstr("use 2 ranks (--ranks 2), or tp = 4")));
  EXPECT_THAT(refusal(3, {.pp = 2}), HasSubstr("use 4 ranks (--ranks 4)"));
  EXPECT_THAT(refusal(2, {.ep = 2}), AllOf(HasSubstr("a model that has none"), HasSubstr("use ep = 1")));
  EXPECT_THAT(refusal(5, {.pp = 5}), AllOf(HasSubstr("5 stages for 4 layers"), HasSubstr("use pp = 4")));
  EXPECT_THAT(refusal(1, {.tp = -1}), HasSubstr("-1 is negative"));
}

TEST(Load, EveryRankThrowsWhatOneFinds) {
  const TemporaryFolder folder;
  const Original a(small_model("llama"), folder / "a"), b(small_model("gpt2"), folder / "b");
  on_ranks(2, [&](const Mesh& mesh) {
    const fs::path own = folder / (mesh.rank() == 0 ? "a" : "b");
    EXPECT_THAT(message_of<UsageError>([&] { load(own, mesh); }), HasSubstr("the model"));
    const fs::path missing = folder / (mesh.rank() == 0 ? "a" : "none");
    EXPECT_THAT(message_of<DataError>([&] { load(missing, mesh); }), HasSubstr("none"));
  });
  const fs::path weights = folder / "a" / "model.safetensors";
  std::string bytes = read_file(weights);
  bytes.replace(bytes.size() - 4, 4, "\xff\xff\xff\xff");  // a NaN in the last value, which one rank has
  write_file(weights, bytes);
  on_ranks(2, [&](const Mesh& mesh) {
    EXPECT_THAT(message_of<DataError>([&] { load(folder / "a", mesh); }), HasSubstr("not finite"));
  });
}

TEST(Load, APromptLongerThanTheContextIsRefusedUnlessItIsTruncated) {
  const TemporaryFolder folder;
  const Original original(small_model("llama"), folder / "model");
  LanguageModel model = load(folder / "model", one_rank());
  const std::string last(64, 'z');
  ContinuationOptions options = kGreedy;
  EXPECT_NO_THROW(model.generate(last, options));
  EXPECT_THAT(message_of<UsageError>([&] { model.generate("abc" + last, options); }),
              AllOf(HasSubstr("has 67 tokens"), HasSubstr("is 64"), HasSubstr("--truncate")));
  options.truncate = true;
  EXPECT_EQ(model.generate("abc" + last, options), model.generate(last, options));
}

}  // namespace
}  // namespace caravan::testing::load_test
