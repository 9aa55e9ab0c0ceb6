#include "caravan/formats/huggingface/huggingface.h"

#include <algorithm>
#include <cmath>
#include <gmock/gmock.h>
#include <map>

#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/comm/record.h"
#include "caravan/data/tokenizer/bpe_trainer.h"
#include "caravan/formats/huggingface/load_model.h"
#include "caravan/formats/safetensors/tensor_file.h"
#include "caravan/models/model.h"
#include "caravan/recipe/init_from.h"
#include "caravan/train/model/import.h"
#include "tests/data/support.h"
#include "tests/formats/pieces.h"
#include "tests/formats/small_models.h"

namespace caravan::testing::huggingface_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

Mesh one_rank() { return Mesh::create(make_record_world(0, 1), {{"dp", 1}}); }

struct Exported {
  ModelConfig config;
  NamedTensors parameters;
  Tokenizer tokenizer;
};

Exported export_to(const fs::path& folder, Architecture kind, bool tied = true) {
  const std::string text = "the whale and the sea and the whale and the ship";
  const std::vector<std::string_view> documents{text};
  Exported out{{.arch = kind, .layers = 2, .width = 12, .heads = 3, .context = 8, .vocabulary = 261},
               {},
               train_bpe(documents, 260)};
  if (kind == Architecture::llama()) out.config.kv_heads = 1;
  out.config.tie_embeddings = tied;
  out.config.hidden = out.config.hidden_width();  // as a config.json says it
  Model model(out.config);
  model.materialise(one_rank(), {}, {.seed = 3});
  for (const Parameter* parameter : model.parameters()) {
    out.parameters.emplace_back(parameter->name(), parameter->sharded().detach().clone());
  }
  write_huggingface(folder, out.config, out.parameters, out.tokenizer, {special_tokens(out.tokenizer), {}});
  return out;
}

TEST(HuggingFaceFolder, ComesBackBitForBit) {
  for (const Architecture& kind : {Architecture::gpt2(), Architecture::llama()}) {
    for (const bool tied : {true, false}) {
      const TemporaryFolder folder;
      const Exported out = export_to(folder / "new", kind, tied);
      const HuggingFaceModel in = read_huggingface(folder / "new");
      EXPECT_EQ(in.config, out.config);
      EXPECT_EQ(in.tokenizer.hash(), out.tokenizer.hash());
      ASSERT_EQ(in.parameters.size(), out.parameters.size());
      for (size_t i = 0; i < in.parameters.size(); ++i) {
        EXPECT_EQ(in.parameters[i].first, out.parameters[i].first);
        EXPECT_TRUE(at::equal(in.parameters[i].second, out.parameters[i].second)) << in.parameters[i].first;
      }
    }
  }
}

NamedTensors starting_values(const ModelConfig& config) {
  Model model(config);
  model.materialise(one_rank(), {}, {.seed = 3});
  NamedTensors values;
  for (const Parameter* parameter : model.parameters()) {
    values.emplace_back(parameter->name(), parameter->sharded().detach().clone());
  }
  return values;
}

/// As transformers 5 reads one, and writes T5 v1.1.
TEST(HuggingFaceFolder, AHeadWithOtherValuesThanTheEmbeddingIsNotTied) {
  for (const char* name : {"gpt2", "llama", "t5"}) {
    ModelConfig config =
        small_model(*find_architecture(name),
                    {.layers = 2, .width = 48, .heads = 6, .context = 8, .vocabulary = 261, .hidden = 20});
    config.tie_embeddings = config.arch.scales_head = false;
    config = parse_huggingface_config(huggingface_config(config), name);  // with its defaults
    const TemporaryFolder folder;
    NamedTensors values = starting_values(config);
    const auto say_tied = [&] {
      write_huggingface(folder / "m", config, values, Tokenizer::bytes(), {});
      std::string json = read_file(folder / "m/config.json");
      const std::string says = R"("tie_word_embeddings": false)";
      ASSERT_NE(json.find(says), std::string::npos) << name;
      json.replace(json.find(says), says.size(), R"("tie_word_embeddings": true)");
      write_file(folder / "m/config.json", json);
    };
    say_tied();
    const HuggingFaceModel in = read_huggingface(folder / "m");
    EXPECT_EQ(in.config, config) << name;
    for (size_t i = 0; i < values.size(); ++i) {
      EXPECT_TRUE(at::equal(in.parameters[i].second, values[i].second)) << name << " " << values[i].first;
    }
    EXPECT_EQ(read_init_source(folder / "m").model, config) << name;
    const auto head = std::ranges::find(values, "head.weight", [](const auto& value) { return value.first; });
    ASSERT_NE(head, values.end());
    head->second = values.front().second;  // it repeats the embedding
    say_tied();
    EXPECT_TRUE(read_huggingface(folder / "m").config.tie_embeddings) << name;
  }
}

/// What a model with such weights says is nothing but NaN.
TEST(HuggingFaceFolder, WeightsThatAreNotFiniteAreNamed) {
  const TemporaryFolder folder;
  Exported out = export_to(folder / "new", Architecture::llama());
  out.parameters[3].second.view(-1)[5].fill_(std::nan(""));
  write_huggingface(folder / "new", out.config, out.parameters, out.tokenizer, {});
  const std::string fact = out.parameters[3].first + " has values that are not finite";
  EXPECT_THAT(message_of<DataError>([&] { load_model(folder / "new", one_rank()); }), HasSubstr(fact));
  EXPECT_THAT(message_of<DataError>([&] { read_huggingface(folder / "new"); }), HasSubstr(fact));  // import, init_from
}

ModelConfig small_mixtral() {
  return {.arch = Architecture::llama(),
          .layers = 2,
          .width = 12,
          .heads = 3,
          .kv_heads = 1,
          .context = 8,
          .vocabulary = 261,
          .hidden = 5,
          .tie_embeddings = false,
          .moe = {.experts = 4}};
}

TEST(HuggingFaceFolder, ExpertsComeBackByteForByte) {
  ModelConfig qwen2_moe = small_mixtral();
  qwen2_moe.arch.qkv_bias = true;
  qwen2_moe.moe = {.experts = 4, .normalize = false, .shared_hidden = 6, .shared_gate = true};
  for (const ModelConfig& config : {small_mixtral(), qwen2_moe}) {
    const TemporaryFolder folder;
    const NamedTensors values = starting_values(config);
    write_huggingface(folder / "one", config, values, Tokenizer::bytes(), {});
    const HuggingFaceModel in = read_huggingface(folder / "one");
    EXPECT_EQ(in.config, config);
    write_huggingface(folder / "two", in.config, in.parameters, in.tokenizer, in.text);
    for (const char* name : {"config.json", "model.safetensors"}) {
      EXPECT_EQ(read_file(folder / "one" / name), read_file(folder / "two" / name)) << name;
    }
    for (size_t i = 0; i < values.size(); ++i) {
      EXPECT_TRUE(at::equal(in.parameters[i].second, values[i].second)) << values[i].first;
    }
  }
}

TEST(HuggingFaceFolder, AModelThatTransformersLacksLeavesNoFolder) {
  const TemporaryFolder folder;
  ModelConfig config = small_mixtral();
  config.moe.gates = Gates::sigmoid;
  EXPECT_THAT(message_of<UsageError>(
                  [&] { write_huggingface(folder / "new", config, starting_values(config), Tokenizer::bytes(), {}); }),
              HasSubstr("moe.gates"));
  EXPECT_FALSE(fs::exists(folder / "new"));
}

TEST(HuggingFaceFolder, ReadsShardsAndHalfPrecision) {
  const TemporaryFolder folder;
  const Exported out = export_to(folder.path(), Architecture::llama());
  NamedTensors theirs = to_huggingface(out.config, out.parameters);
  for (auto& [name, tensor] : theirs) tensor = tensor.to(at::kBFloat16);
  const NamedTensors first(theirs.begin(), theirs.begin() + 3), second(theirs.begin() + 3, theirs.end());
  fs::remove(folder / "model.safetensors");
  write_tensors(folder / "a.safetensors", first);
  write_tensors(folder / "b.safetensors", second);
  std::string map;
  for (const auto& [name, tensor] : first) map += "\"" + name + "\": \"a.safetensors\", ";
  for (const auto& [name, tensor] : second) map += "\"" + name + "\": \"b.safetensors\", ";
  map.resize(map.size() - 2);
  write_file(folder / "model.safetensors.index.json", "{\"weight_map\": {" + map + "}}");
  const HuggingFaceModel in = read_huggingface(folder.path());
  for (size_t i = 0; i < in.parameters.size(); ++i) {
    EXPECT_EQ(in.parameters[i].second.scalar_type(), at::kFloat);
    EXPECT_TRUE(at::equal(in.parameters[i].second, out.parameters[i].second.to(at::kBFloat16).to(at::kFloat)));
  }
}

TEST(HuggingFaceFolder, NamesWhatIsMissingOrDamaged) {
  const TemporaryFolder folder;
  export_to(folder.path(), Architecture::gpt2());
  const auto refusal = [&] { return message_of<DataError>([&] { read_huggingface(folder.path()); }); };
  const std::string weights = read_file(folder / "model.safetensors");

  write_file(folder / "model.safetensors", weights.substr(0, weights.size() - 4));
  EXPECT_THAT(refusal(), HasSubstr("model.safetensors"));
  fs::remove(folder / "model.safetensors");
  EXPECT_THAT(refusal(), HasSubstr("has no model.safetensors"));
  write_file(folder / "model.safetensors.index.json", "[]");
  EXPECT_THAT(refusal(), HasSubstr("has no weight_map"));
  write_file(folder / "model.safetensors.index.json", R"({"weight_map": {"w": "../../secret"}})");
  EXPECT_THAT(refusal(), HasSubstr("w has no file name"));
  write_file(folder / "model.safetensors", weights);

  const std::string tokenizer = read_file(folder / "tokenizer.json");
  write_file(folder / "tokenizer.json", "hello");
  EXPECT_THAT(refusal(), HasSubstr("tokenizer.json"));
  const std::string text = "abcabcabcabcabcabdabdabd bcdbcdbcd cdecdecde";
  train_bpe(std::vector<std::string_view>{text}, 270).save(folder / "tokenizer.json");
  EXPECT_THAT(refusal(), HasSubstr("the model 261"));
  fs::remove(folder / "tokenizer.json");
  EXPECT_THAT(refusal(), HasSubstr("tokenizer.json"));
  write_file(folder / "tokenizer.json", tokenizer);
  fs::remove(folder / "config.json");
  EXPECT_THAT(refusal(), HasSubstr("config.json"));
}

/// The folder's tokenizer does not name its end-of-text token: only the other files do.
TEST(HuggingFaceFolder, SpecialTokensAndTextFilesPassThroughARun) {
  const TemporaryFolder folder;
  const Exported out = export_to(folder / "made", Architecture::llama());
  const std::map<std::string, std::string> files{
      {"generation_config.json", "{ \"eos_token_id\": [97, 98],\n\"do_sample\": true, \"vendor\": {\"x\": 1}}"},
      {"tokenizer_config.json", R"({"eos_token": {"content": "a"}, "chat_template": "{{ m }}"})"},
      {"special_tokens_map.json", "{\"pad_token\": \"!\"}\n"},
      {"chat_template.jinja", "{% for m in messages %}\xc3\xa9\n"}};
  const SpecialTokens tokens{.begin = 65, .end = {97, 99}, .pad = 33};
  const auto expect_kept = [&](const SpecialTokens& got_tokens, const std::map<std::string, std::string>& got_files,
                               const Tokenizer& tokenizer) {
    EXPECT_EQ(got_tokens, tokens);
    EXPECT_EQ(got_files, files);
    EXPECT_EQ(tokenizer.end_of_text(), 97);
  };
  write_huggingface(folder / "theirs", out.config, out.parameters, Tokenizer::bytes(), {tokens, files});
  const HuggingFaceModel read = read_huggingface(folder / "theirs");
  expect_kept(read.text.tokens, read.text.files, read.tokenizer);
  EXPECT_EQ(read.text.generation().end, (std::vector<int64_t>{97, 98}));

  on_ranks({{"dp", 1}}, [&](const Mesh& mesh) { import_run(read, folder / "run", mesh); });
  const LoadedModel run = load_model(folder / "run", one_rank());
  expect_kept(run.text.tokens, run.text.files, run.tokenizer);
  write_huggingface(folder / "again", run.model->config(), read.parameters, run.tokenizer, run.text);
  for (const auto& entry : fs::directory_iterator(folder / "theirs")) {
    const fs::path name = entry.path().filename();
    EXPECT_EQ(read_file(folder / "again" / name), read_file(entry.path())) << name;
  }

  write_file(folder / "theirs/generation_config.json", "{");
  EXPECT_THAT(message_of<DataError>([&] { read_huggingface(folder / "theirs"); }), HasSubstr("generation_config.json"));
  fs::remove(folder / "theirs/generation_config.json");
  write_file(folder / "theirs/tokenizer_config.json", "[]");
  EXPECT_THAT(message_of<DataError>([&] { read_huggingface(folder / "theirs"); }), HasSubstr("tokenizer_config.json"));
}

/// Only config.json names the token. A run that is trained further must know it from its own files.
TEST(HuggingFaceFolder, ARunKnowsTheEndOfTextThatOnlyConfigJsonNames) {
  const TemporaryFolder folder;
  const Exported out = export_to(folder / "theirs", Architecture::gpt2());
  write_huggingface(folder / "theirs", out.config, out.parameters, Tokenizer::bytes(), {{.end = {98}}, {}});
  fs::remove(folder / "theirs/tokenizer_config.json");
  on_ranks({{"dp", 1}},
           [&](const Mesh& mesh) { import_run(read_huggingface(folder / "theirs"), folder / "run", mesh); });
  EXPECT_EQ(Tokenizer::load(folder / "run/tokenizer.json").end_of_text(), 98);
  EXPECT_EQ(load_model(folder / "run", one_rank()).text.tokens, (SpecialTokens{.end = {98}}));
}

TEST(LoadModel, TakesAFolderOfHuggingFaceARunAndACheckpoint) {
  const TemporaryFolder folder;
  const Exported out = export_to(folder / "theirs", Architecture::llama(), false);
  for (const int ranks : {1, 3}) {
    on_ranks({{"dp", ranks}},
             [&](const Mesh& mesh) { import_run(read_huggingface(folder / "theirs"), folder / "run", mesh); });
    for (const char* source : {"theirs", "run", "run/step_000000", "run/step_000000/"}) {
      const LoadedModel loaded = load_model(folder / source, one_rank());
      EXPECT_EQ(loaded.model->config(), out.config) << source;
      EXPECT_EQ(loaded.tokenizer.hash(), out.tokenizer.hash());
      const auto parameters = loaded.model->parameters();
      for (size_t i = 0; i < parameters.size(); ++i) {
        EXPECT_TRUE(at::equal(parameters[i]->sharded(), out.parameters[i].second)) << source << " " << i;
      }
    }
  }
  Tokenizer::bytes().save(folder / "run/tokenizer.json");
  EXPECT_THAT(message_of<DataError>([&] { load_model(folder / "run", one_rank()); }),
              HasSubstr("is not the tokenizer the model was trained with"));
  EXPECT_THAT(message_of<DataError>([&] { load_model(folder / "nothing", one_rank()); }), HasSubstr("is not there"));
}

/// As when a job that goes on prunes its checkpoints. On 2 ranks, of which one alone sees that the folder is gone.
TEST(LoadModel, TakesTheNextCheckpointOfARunWhoseNewestIsRemoved) {
  const TemporaryFolder folder;
  export_to(folder / "theirs", Architecture::llama(), false);
  const HuggingFaceModel theirs = read_huggingface(folder / "theirs");
  on_ranks({{"dp", 1}}, [&](const Mesh& mesh) { import_run(theirs, folder / "run", mesh); });
  fs::copy(folder / "run/step_000000", folder / "run/step_000005", fs::copy_options::recursive);
  const DataError error({"load", "weights", "are gone", "", ""});
  on_ranks({{"dp", 2}}, [&](const Mesh& mesh) {
    std::vector<std::string> used;
    with_model_folder(folder / "run", mesh.world(), [&](const fs::path& checkpoint) {
      used.push_back(checkpoint.filename());
      if (used.size() > 1) return;
      mesh.world().barrier();
      if (mesh.rank() == 1) fs::rename(checkpoint, folder / "run/.step_000005.pruned");
      throw error;
    });
    EXPECT_EQ(used, (std::vector<std::string>{"step_000005", "step_000000"}));
    int calls = 0;
    const auto fail = [&](const fs::path&) {
      ++calls;
      throw error;
    };
    EXPECT_THROW(with_model_folder(folder / "run", mesh.world(), fail), DataError);
    EXPECT_EQ(calls, 1) << "of a checkpoint that is there";
  });
}

TEST(LoadModel, TakesACheckpointOfAModelThatTransformersLacks) {
  ModelConfig config = small_mixtral();
  config.moe.gates = Gates::sigmoid;
  config.moe.z_loss = 0.001;
  const TemporaryFolder folder;
  const HuggingFaceModel model{config, starting_values(config), Tokenizer::bytes(), {}};
  on_ranks({{"dp", 2}}, [&](const Mesh& mesh) { import_run(model, folder / "run", mesh); });
  const LoadedModel loaded = load_model(folder / "run", one_rank());
  EXPECT_EQ(loaded.model->config(), config);
  const auto parameters = loaded.model->parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    EXPECT_TRUE(at::equal(parameters[i]->sharded(), model.parameters[i].second)) << model.parameters[i].first;
  }
}

TEST(LoadModel, RefusesAModelThatTheCheckpointCannotHold) {
  const TemporaryFolder run;
  const Tokenizer tokenizer = Tokenizer::bytes();
  tokenizer.save(run / "tokenizer.json");
  const ModelConfig config{.layers = 60'000, .width = 1 << 16, .heads = 64, .vocabulary = 256};
  on_ranks({{"dp", 1}}, [&](const Mesh& mesh) {
    save_checkpoint(run.path(), {.model = huggingface_config(config), .tokenizer_hash = tokenizer.hash().hex()},
                    invariant_pieces({{"w", at::ones({3})}}, mesh), mesh.world(), 0);
  });
  EXPECT_THAT(message_of<DataError>([&] { load_model(run.path(), one_rank()); }),
              HasSubstr("holds 3 numbers, but its model has"));
}

}  // namespace
}  // namespace caravan::testing::huggingface_test
