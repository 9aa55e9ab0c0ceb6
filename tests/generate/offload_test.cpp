// Weights that rest in host memory or on disk: the bits of a model in memory, what the device holds, and what is
// refused.
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/base/memory/memory_counter.h"
#include "caravan/base/trace/path_log.h"
#include "caravan/comm/backends/shared/thread_ranks.h"
#include "caravan/formats/huggingface/huggingface.h"
#include "caravan/generate/load.h"
#include "caravan/train/model/import.h"
#include "tests/data/support.h"
#include "tests/formats/small_models.h"
#include "tests/nn/tiny.h"

namespace caravan::testing::offload_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

const char* const kPrompt = "Call me Ishmael";
const ContinuationOptions kDrawn{.num_tokens = 16, .sampling = {.temperature = 1.3, .top_k = 0, .seed = 5}};
const std::vector<Tier> kTiers{Tier::host, Tier::disk};

ModelConfig small(const std::string& name, int64_t vocabulary = 256) {
  ModelConfig config =
      small_model(*find_architecture(name),
                  {.layers = 4, .width = 32, .heads = 4, .context = 64, .vocabulary = vocabulary, .hidden = 37});
  config.kv_heads = name == "gpt2" ? 0 : 2;
  return config;
}

void write_model(const ModelConfig& config, const fs::path& folder) {
  const at::NoGradGuard no_grad;
  const auto model = whole_model(config, 3);
  NamedTensors values;
  for (Parameter* parameter : model->parameters()) {
    if (parameter->sharded().dim() >= 2) parameter->sharded().mul_(8);  // else every token is followed by itself
    values.emplace_back(parameter->name(), parameter->sharded().detach());
  }
  write_huggingface(folder, config, values, Tokenizer::bytes(), {});
}

LoadOptions on(LoadOptions options, Tier tier, const fs::path& disk) {
  options.parameters = tier;
  if (tier == Tier::disk) options.disk_dirs = {disk};
  return options;
}

void on_ranks(int ranks, const std::function<void(const Mesh&)>& body) {
  run_thread_ranks(ranks,
                   [&](const auto& world) {
                     body(Mesh::create(world, {{"dp", ranks}}));
                   },
                   {.timeout = std::chrono::seconds(60)});
}

at::Tensor prompt_logits(const TextModel& model) {
  const at::NoGradGuard no_grad;
  std::vector<int64_t> ids;
  for (const char c : std::string(kPrompt)) ids.push_back(c);
  ForwardContext context{.phase = Phase::generate};
  context.positions = at::arange(static_cast<int64_t>(ids.size()), at::kLong);
  const at::Tensor logits = model.logits(at::tensor(ids, at::kLong).unsqueeze(0), context);
  return logits.defined() ? logits.clone() : logits;
}

/// Of one way to load a model.
struct Made {
  at::Tensor logits;
  std::vector<std::string> texts;
};

Made made_by(LanguageModel& model) {
  Made made{prompt_logits(model.text_model()), {}};
  ContinuationOptions beams{.num_tokens = 8};
  beams.beams = 2;
  const std::vector<Prompt> prompts{{kPrompt, kDrawn}, {"a", kDrawn}, {"sea", beams}};
  for (const Continuation& one : model.generate(prompts, {.batch = 2})) made.texts.push_back(one.text);
  return made;
}

class OffloadedModel : public ::testing::TestWithParam<std::string> {};

TEST_P(OffloadedModel, HasTheBitsOfOneInMemory) {
  const TemporaryFolder folder;
  const ModelConfig config = small(GetParam());
  write_model(config, folder / "model");
  std::vector<LoadOptions> splits{{.tp = 1}, {.tp = 2}, {.tp = 1, .pp = 2}, {.tp = 1, .dtype = at::kBFloat16}};
  splits.push_back({.tp = 1, .dtype = at::kHalf});
  if (config.moe.is_used()) splits.push_back({.ep = 2});
  for (const LoadOptions& split : splits) {
    const int ranks = std::max(split.tp, 1) * std::max(split.pp, 1) * std::max(split.ep, 1);
    on_ranks(ranks, [&](const Mesh& mesh) {
      LanguageModel in_memory = load(folder / "model", mesh, split);
      const Made wanted = made_by(in_memory);
      for (const Tier tier : kTiers) {
        SCOPED_TRACE(::testing::Message() << "tp " << split.tp << " pp " << split.pp << " ep " << split.ep << " "
                                          << c10::toString(split.dtype) << " on " << name(tier));
        LanguageModel model = load(folder / "model", mesh, on(split, tier, folder / "disk"));
        EXPECT_EQ(model.parameter_bytes(), in_memory.parameter_bytes());
        const Made made = made_by(model);
        ASSERT_EQ(made.logits.defined(), wanted.logits.defined());
        EXPECT_TRUE(!made.logits.defined() || at::equal(made.logits, wanted.logits));
        EXPECT_EQ(made.texts, wanted.texts);
      }
    });
  }
  EXPECT_EQ(std::distance(fs::directory_iterator(folder / "disk"), fs::directory_iterator()), 0);
}

// Tied and untied embeddings, biases, norms with an offset, experts.
INSTANTIATE_TEST_SUITE_P(, OffloadedModel, ::testing::Values("llama", "gemma2", "qwen3_moe", "gpt2"),
                         [](const auto& info) { return info.param; });

TEST(Offload, ADraftInMemoryProposes) {
  const TemporaryFolder folder;
  write_model(small("llama"), folder / "model");
  write_model(small("gpt2"), folder / "draft");
  LanguageModel in_memory = load(folder / "model", one_rank()), draft = load(folder / "draft", one_rank());
  LanguageModel model = load(folder / "model", one_rank(), on({}, Tier::disk, folder / "disk"));
  const Prompt prompt{kPrompt, kDrawn};
  EXPECT_EQ(model.generate({&prompt, 1}, {.draft = draft.text_model()}).front().text,
            in_memory.generate(kPrompt, kDrawn));
}

TEST(Offload, ACheckpointIsReadToo) {
  const TemporaryFolder folder;
  write_model(small("llama"), folder / "model");
  import_run(read_huggingface(folder / "model"), folder / "run", one_rank());
  on_ranks(2, [&](const Mesh& mesh) {
    LanguageModel in_memory = load(folder / "run", mesh);
    LanguageModel model = load(folder / "run", mesh, on({}, Tier::disk, folder / "disk"));
    EXPECT_EQ(made_by(model).texts, made_by(in_memory).texts);
  });
}

/// Beside activations the device holds two units: the one that runs and the next one.
TEST(Offload, TheDeviceHoldsTwoUnits) {
  const TemporaryFolder folder;
  ModelConfig config = small("llama");
  config.tie_embeddings = false;
  config.layers = 8;
  config.width = 64;
  config.hidden = 4096;  // layers are most of the model
  write_model(config, folder / "model");
  for (const Tier tier : kTiers) {
    on_ranks(1, [&](const Mesh& mesh) {
      MemoryCounter& counter = MemoryCounter::current();
      counter.reset_peak();
      const int64_t before = counter.live_bytes();
      LanguageModel model = load(folder / "model", mesh, on({}, tier, folder / "disk"));
      const int64_t layer = model.parameter_bytes() / config.layers;  // and more
      EXPECT_LT(counter.peak_bytes() - before, layer) << "while the pieces of a layer are read";
      EXPECT_GT(counter.live_bytes(tier), model.parameter_bytes() * 0.99);
      PathLog paths;
      {
        const PathScope scope(&paths);
        prompt_logits(model.text_model());
      }
      EXPECT_EQ(paths.counts().at("parameters loaded from " + std::string(name(tier))), config.layers + 2);
      EXPECT_LT(counter.peak_bytes() - before, 2.5 * layer);
      EXPECT_GT(counter.peak_bytes() - before, 1.9 * layer) << "the next unit is loaded ahead";
    });
  }
}

TEST(Offload, StopsOnRequestAndRemovesItsFiles) {
  const TemporaryFolder folder;
  write_model(small("llama"), folder / "model");
  on_ranks(2, [&](const Mesh& mesh) {
    bool is_asked = false;
    LoadOptions options = on({}, Tier::disk, folder / "disk");
    options.should_stop = [&] { return is_asked && mesh.rank() == 1; };
    {
      LanguageModel model = load(folder / "model", mesh, options);
      EXPECT_GT(std::distance(fs::directory_iterator(folder / "disk"), fs::directory_iterator()), 0);
      is_asked = true;
      EXPECT_THROW(model.generate(kPrompt, kDrawn), Interrupted);
    }
    EXPECT_THROW(load(folder / "model", mesh, options), Interrupted);
  });
  EXPECT_EQ(std::distance(fs::directory_iterator(folder / "disk"), fs::directory_iterator()), 0);
}

TEST(Offload, RefusesFoldersThatDoNotFit) {
  const TemporaryFolder folder;
  write_model(small("llama"), folder / "model");
  const auto refused = [&](const LoadOptions& options) {
    return message_of<Error>([&] { load(folder / "model", one_rank(), options); });
  };
  EXPECT_THAT(refused({.parameters = Tier::disk}), AllOf(HasSubstr("disk_dirs"), HasSubstr("folders on local disks")));
  EXPECT_THAT(refused({.disk_dirs = {folder / "disk"}}), HasSubstr("the weights rest on the device"));
  EXPECT_THAT(refused({.parameters = Tier::host, .disk_dirs = {folder / "disk"}}),
              HasSubstr("use parameters = Tier::disk"));
  EXPECT_THAT(refused(on({}, Tier::disk, folder / "none" / "disk")), HasSubstr("none is not a folder"));
  write_file(folder / "file", "");
  EXPECT_THAT(refused(on({}, Tier::disk, folder / "file")), HasSubstr("is not a folder"));
  EXPECT_THAT(refused(on({.tp = 2}, Tier::disk, folder / "disk")), HasSubstr("there is 1 rank"));
  if (::geteuid() == 0) return;  // who may write anywhere
  fs::create_directory(folder / "locked");
  fs::permissions(folder / "locked", fs::perms::owner_read | fs::perms::owner_exec);
  EXPECT_THAT(refused(on({}, Tier::disk, folder / "locked")), HasSubstr("cannot be written"));
}

TEST(Offload, EveryRankThrowsWhatOneDiskLacks) {
  const TemporaryFolder folder;
  write_model(small("llama"), folder / "model");
  on_ranks(2, [&](const Mesh& mesh) {
    const fs::path own = mesh.rank() == 0 ? folder / "disk" : folder / "none" / "disk";
    EXPECT_THAT(message_of<UsageError>([&] { load(folder / "model", mesh, on({}, Tier::disk, own)); }),
                HasSubstr("none is not a folder"));
  });
}

}  // namespace
}  // namespace caravan::testing::offload_test
