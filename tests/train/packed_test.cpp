#include <gmock/gmock.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/base/numeric/random.h"
#include "caravan/comm/record.h"
#include "caravan/nn/loss/ignored_label.h"
#include "caravan/step/batch.h"
#include "caravan/train/dataset/task_dataset.h"
#include "caravan/train/evaluation/evaluate.h"
#include "caravan/train/folder/run_state.h"
#include "tests/train/tiny_run.h"

namespace caravan::testing::packed_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// A text of documents of 1 to 12 tokens or so, some longer than a sequence of 8.
class Packed : public ::testing::TestWithParam<Architecture> {
 protected:
  Packed() {
    std::string text = read_file(runs_ / "text.txt");
    for (size_t at = 40; at < text.size(); at += 23 + at % 60) text.insert(at, "<|endoftext|>");
    write_file(runs_ / "documents.txt", text);
  }

  Recipe recipe(const std::string& dir, std::vector<std::string> set = {}) const {
    for (const char* more : {"data.text=documents.txt", "data.tokenizer={train = 300}", "data.pack=documents"}) {
      set.emplace_back(more);
    }
    return runs_.recipe(GetParam(), dir, set);
  }

  const TinyRuns runs_;
};

INSTANTIATE_TEST_SUITE_P(Models, Packed, ::testing::Values(Architecture::gpt2(), Architecture::llama()),
                         [](const auto& info) { return info.param.name; });

/// Gives each document its own row.
struct Apart {
  std::vector<at::Tensor> ids, labels;

  Apart(const at::Tensor& rows, const at::Tensor& targets, const at::Tensor& documents) {
    for (int64_t row = 0; row < rows.size(0); ++row) {
      int64_t first = 0;
      for (int64_t t = 1; t <= rows.size(1); ++t) {
        const bool goes_on = t < rows.size(1) && documents[row][t].equal(documents[row][first]);
        if (goes_on) continue;
        ids.push_back(rows.narrow(0, row, 1).narrow(1, first, t - first));
        labels.push_back(targets.narrow(0, row, 1).narrow(1, first, t - first));
        first = t;
      }
    }
  }
};

/// The documents of a batch in fp64, together and each in a row of its own: the sums of losses and gradients.
void expect_like_separate_ones(const Recipe& made, const Dataset& data, const TrainBatch& batch) {
  const Apart apart(batch.ids, batch.labels, batch.documents);
  ASSERT_GT(std::ssize(apart.ids), batch.ids.size(0) * 5 / 4);
  EXPECT_EQ(batch.num_targets, batch.labels.ne(kIgnoredLabel).sum().item<int64_t>());
  Model model(model_config(made, data.tokenizer));
  const Mesh mesh = Mesh::create(make_record_world(0, 1), {{"dp", 1}});
  model.materialise(mesh, {}, {.seed = 5, .allocate = [](const Parameter&, const std::vector<int64_t>& shape) {
                                 return at::empty(shape, at::kDouble);
                               }});
  const auto gradients = [&] {
    std::map<std::string, at::Tensor> all;
    for (const Parameter* parameter : model.parameters()) {
      all[parameter->name()] = parameter->sharded().grad().clone();
      parameter->sharded().mutable_grad().zero_();
    }
    return all;
  };
  const at::Tensor loss =
      model.run({batch.ids, batch.labels}, {.positions = batch.positions, .documents = batch.documents}).front();
  loss.backward();
  const auto got = gradients();
  double want = 0;
  for (size_t i = 0; i < apart.ids.size(); ++i) {
    const at::Tensor one = model.run({apart.ids[i], apart.labels[i]}, {}).front();
    one.backward();
    want += one.item<double>();
  }
  EXPECT_NEAR(loss.item<double>() / want, 1, 1e-12);
  const auto [far, worst] = distance(got, gradients());
  EXPECT_LE(far, 1e-10) << worst;
}

/// Documents that share a row give the same loss and gradients as separate ones.
TEST_P(Packed, DocumentsMatchSeparateOnes) {
  const Recipe made = recipe("none", {"model.dropout=0"});
  const Dataset data = open_dataset(made.data, runs_.folders());
  const TrainBatch batch = make_batch(data.train_windows(8, 3), 72, 36);
  EXPECT_LT(batch.num_targets, 36 * 8);
  expect_like_separate_ones(made, data, batch);
}

/// Rows, labels, positions, documents and the count of targets equal those of one rank, for every split.
TEST_P(Packed, RowsOfTheBatchMatchOneRank) {
  for (const char* positions : {"restart", "continue"}) {
    const Recipe made = recipe("none", {std::string("data.positions=") + positions});
    const Dataset data = open_dataset(made.data, runs_.folders());
    const TrainWindows windows = data.train_windows(8, 3);
    TrainBatch whole = make_batch(windows, 36, 36);
    const at::Tensor along = at::arange(8).expand({36, 8});
    EXPECT_EQ(whole.positions.equal(along), std::string(positions) == "continue");
    run_thread_ranks(3,
                     [&](const std::shared_ptr<Communicator>& world) {
                       const Mesh mesh = Mesh::create(world, {{"dp", 3}});
                       RunState state(made, data.tokenizer, mesh);
                       TrainBatch part = make_rank_batch(state.engine(), windows, 1, 36);
                       EXPECT_EQ(part.num_targets, whole.num_targets);
                       ASSERT_EQ(part.tensors().size(), 4U);
                       for (size_t i = 0; i < 4; ++i) {
                         EXPECT_TRUE(part.tensors()[i]->equal(whole.tensors()[i]->narrow(0, world->rank() * 12, 12)));
                       }
                     },
                     {.timeout = std::chrono::seconds(20)});
  }
}

/// Losses of training and evaluation, on 1 to 3 ranks with and without accumulation.
TEST_P(Packed, TrainsLikeOneRank) {
  const auto run = [&](int ranks, int accumulation, const char* technique) {
    const std::string dir = std::to_string(ranks) + "x" + std::to_string(accumulation) + technique;
    train_on(ranks,
             {.recipe = recipe(dir, {"train.steps=4", "optimizer.kind=sgd", micro_batch(ranks, accumulation),
                                     std::string("data_parallel.technique=") + technique, "comm.backend=thread"}),
              .folders = runs_.folders()});
    std::vector<double> all = losses(runs_ / dir);
    const std::string last = log_lines(runs_ / dir).back();
    all.push_back(std::stod(last.substr(last.find("\"val_loss\":") + 11)));
    return all;
  };
  const std::vector<double> want = run(1, 1, "ddp");
  ASSERT_EQ(want.size(), 5U);
  for (const auto& got : {run(2, 3, "ddp"), run(3, 1, "zero3"), run(2, 1, "replicas")}) {
    for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i] / want[i], 1, 1e-5) << i;
  }
}

TEST_P(Packed, EvaluatesDocumentsAlone) {
  const Recipe made = recipe("none");
  const Dataset data = open_dataset(made.data, runs_.folders());
  const ValidationWindows windows = data.validation_windows(8);
  const Mesh mesh = Mesh::create(make_record_world(0, 1), {{"dp", 1}});
  RunState state(made, data.tokenizer, mesh);
  const auto shape = std::vector<int64_t>{windows.size(), 8};
  std::vector<at::Tensor> all;
  for (int i = 0; i < 4; ++i) all.push_back(at::empty(shape, at::kLong));
  const auto span = [&](size_t i) {
    return std::span(all[i].mutable_data_ptr<int64_t>(), static_cast<size_t>(all[i].numel()));
  };
  windows.fill(0, span(0), span(1), span(2), span(3));
  const at::NoGradGuard no_grad;
  double nats = 0;
  const Apart apart(all[0], all[1], all[2]);
  for (size_t i = 0; i < apart.ids.size(); ++i) {
    nats += state.model().run({apart.ids[i], apart.labels[i]}, {.phase = Phase::evaluate}).front().item<double>();
  }
  const double want = nats / static_cast<double>(all[1].ne(kIgnoredLabel).sum().item<int64_t>());
  for (const int64_t rows : {1, 5}) {
    EXPECT_NEAR(evaluate(state.engine(), windows, {.rows = rows})->loss / want, 1, 1e-6);
  }
}

TEST_P(Packed, TheDumpHasPositionsAndDocuments) {
  const auto dump = runs_ / "dump";
  train_on(
      2, {.recipe = recipe("run", {"train.steps=1"}), .folders = runs_.folders(), .dump_dir = dump, .dump_steps = {0}});
  const auto batch = tensors_of(dump / "step_0/batch.safetensors");
  ASSERT_EQ(batch.size(), 4U);
  EXPECT_EQ(batch.at("position_ids").sizes(), (std::vector<int64_t>{36, 8}));
  EXPECT_GT(batch.at("document_ids").max().item<int64_t>(), 0);
}

TEST_P(Packed, NeedsATokenThatEndsDocuments) {
  const Recipe made = runs_.recipe(GetParam(), "none", {"data.pack=documents"});  // bytes
  EXPECT_THAT(message_of<UsageError>([&] { open_dataset(made.data, runs_.folders()); }),
              HasSubstr("the tokenizer has none"));
  const Recipe filled = runs_.recipe(GetParam(), "none", {"data.fill=best_fit"});
  EXPECT_THAT(message_of<UsageError>([&] { open_dataset(filled.data, runs_.folders()); }),
              AllOf(HasSubstr("data.fill"), HasSubstr("data.fill = \"stream\"")));
}

/// Shards have documents of their own; ranks and accumulation do not change the rows.
TEST_P(Packed, StreamedWholeDocumentsTrainLikeOneRank) {
  const auto run = [&](int ranks, int accumulation) {
    const std::string dir = "streamed" + std::to_string(ranks);
    TrainOptions options{.recipe = recipe(dir, {"data.streaming=true", "data.fill=best_fit", "train.steps=6",
                                                micro_batch(ranks, accumulation), "model.context=16"}),
                         .folders = runs_.folders()};
    options.folders.shard_bytes = 700;
    options.folders.cache = runs_ / ("cache-" + dir);
    train_on(ranks, options);
    return losses(runs_ / dir);
  };
  const std::vector<double> want = run(1, 1);
  ASSERT_EQ(want.size(), 6U);
  for (const auto& got : {run(2, 3), run(3, 1)}) {
    for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i] / want[i], 1, 1e-5) << i;
  }
}

/// Chats of one to three turns, 5 to 99 bytes and as many tokens, in rows of 32.
class WholeChats : public ::testing::TestWithParam<Architecture> {
 protected:
  WholeChats() {
    write_file(runs_ / "chat.jinja",
               "{% for m in messages %}{% if m.role != 'assistant' %}u{{ m.content }}{% else %}a{{ m.content }}."
               "{% endif %}{% endfor %}{% if add_generation_prompt %}a{% endif %}");
    write_file(runs_ / "chats.jsonl", lines(120, 1));
    write_file(runs_ / "more.jsonl", lines(50, 2));
  }
  Recipe recipe(const std::string& dir, std::vector<std::string> set = {}) const {
    const std::vector<std::string> common{
        "data.text=chats.jsonl", "data.format=chat",
        "data.pack=documents",   "model.context=32",
        "model.dropout=0",       "train.global_batch=12",
        "train.steps=6",         "data.chat_template=" + (runs_ / "chat.jinja").string()};
    set.insert(set.begin(), common.begin(), common.end());
    return runs_.recipe(GetParam(), dir, set);
  }
  TrainOptions options(const std::string& dir, std::vector<std::string> set = {}) const {
    return {.recipe = recipe(dir, std::move(set)), .folders = runs_.folders()};
  }
  /// Stops after three steps and resumes with `again`.
  void run_twice(TrainOptions first, TrainOptions again) const {
    first.stop_after = 3;
    train_on(2, first);
    again.resume = true;
    train_on(2, again);
  }

  const TinyRuns runs_;

 private:
  static std::string lines(int count, uint64_t seed) {
    const RandomStream random(seed, "chats");
    const std::string letters = "the whale and the sea and the ship of Ahab and Ishmael ";
    uint64_t drawn = 0;
    const auto words = [&](uint32_t most) {
      const uint32_t first = random.bits(drawn++) % 25;
      return letters.substr(first, 1 + random.bits(drawn++) % most);
    };
    std::string all;
    for (int i = 0; i < count; ++i) {
      all += R"({"messages": [)";
      for (int turn = i % 3; turn >= 0; --turn) {
        const std::string question = words(12);
        const std::string answer = words(18);
        all += R"({"role": "user", "content": ")" + question + R"("}, {"role": "assistant", "content": ")" + answer +
               R"("})" + (turn > 0 ? ", " : "]}\n");
      }
    }
    return all;
  }
};

INSTANTIATE_TEST_SUITE_P(Models, WholeChats, ::testing::Values(Architecture::gpt2(), Architecture::llama()),
                         [](const auto& info) { return info.param.name; });

TEST_P(WholeChats, MatchSeparateOnes) {
  const Recipe made = recipe("none");
  const Dataset data = open_dataset(made.data, runs_.folders());
  const auto rows = train_rows(data, made.data, row_settings(made), 3);
  ASSERT_NE(rows->whole_documents(0), nullptr) << "the default of chats";
  EXPECT_GT(rows->whole_documents(0)->counts().cut, 5);
  const TrainBatch batch = make_batch(*rows, 3, 16);
  ASSERT_TRUE(batch.documents.defined());
  EXPECT_GT(batch.ids.eq(0).sum().item<int64_t>(), 5) << "padding";
  expect_like_separate_ones(made, data, batch);
}

/// Losses, and the step of plain descent: the gradient.
TEST_P(WholeChats, HaveTheSameGradientsInEveryArrangement) {
  const auto run = [&](int ranks, const std::string& dir, const std::vector<std::string>& more) {
    train_on(ranks,
             options(dir, together({{"train.steps=1", "optimizer.kind=sgd", "optimizer.schedule=constant",
                                     "optimizer.warmup_steps=0", "optimizer.clip_norm=0", "optimizer.weight_decay=0"},
                                    more})));
    return checkpoint_tensors(runs_ / dir);
  };
  const auto before = run(1, "before", {"optimizer.lr=0"});
  const auto step_of = [&](std::map<std::string, at::Tensor> tensors) {
    for (auto& [name, tensor] : tensors) tensor = tensor - before.at(name);
    return tensors;
  };
  const auto want = step_of(run(1, "one", {"optimizer.lr=5"}));
  for (const std::string axis : {"mesh.dp=2", "mesh.cp=2", "mesh.pp=2", "mesh.tp=2"}) {
    const auto [far, worst] = distance(step_of(run(2, axis, {"optimizer.lr=5", axis})), want);
    EXPECT_LE(far, 1e-5) << axis << ": " << worst;
    EXPECT_NEAR(losses(runs_ / axis).front() / losses(runs_ / "one").front(), 1, 1e-5) << axis;
  }
}

/// In the middle of an epoch, of a text and of a mixture.
TEST_P(WholeChats, AResumedRunEqualsAnUninterruptedOne) {
  for (const std::string dir : {"text", "mixture"}) {
    const auto of = [&](const std::string& part) {
      TrainOptions made = options(dir + part);
      if (dir == "text") return made;
      made.recipe.data.text = Recipe{}.data.text;
      made.recipe.locations.erase("data.text");
      made.recipe.data.sources = {{.path = "chats.jsonl", .weight = 2}, {.path = "more.jsonl"}};
      return made;
    };
    train_on(2, of("whole"));
    run_twice(of("parts"), of("parts"));
    EXPECT_EQ(log_lines(runs_ / (dir + "parts")), log_lines(runs_ / (dir + "whole")));
    EXPECT_EQ(
        first_difference(checkpoint_tensors(runs_ / (dir + "parts")), checkpoint_tensors(runs_ / (dir + "whole"))), "");
  }
}

/// Of a text that is one shard the losses are those of the whole text; shards, ranks and a stop in the middle change
/// nothing else.
TEST_P(WholeChats, AreStreamed) {
  write_file(runs_ / "held.jsonl", read_file(runs_ / "more.jsonl"));
  const auto of = [&](const std::string& dir, std::vector<std::string> set, int64_t shard_bytes) {
    const std::vector<std::string> common{"data.validation=held.jsonl", "train.eval_every=2"};
    set.insert(set.end(), common.begin(), common.end());
    TrainOptions made = options(dir, set);
    made.folders.shard_bytes = shard_bytes;
    made.folders.cache = runs_ / ("cache-" + dir);
    return made;
  };
  for (const std::string fill : {"best_fit", "stream"}) {
    const std::string key = "data.fill=" + fill, streamed = "data.streaming=true";
    train_on(1, of(fill + "-whole", {key}, 1 << 20));
    train_on(2, of(fill + "-shard", {key, streamed}, 1 << 20));
    const std::vector<double> want = losses(runs_ / (fill + "-whole")), found = losses(runs_ / (fill + "-shard"));
    ASSERT_EQ(found.size(), 6U);
    for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(found[i] / want[i], 1, 1e-5) << fill << i;
  }
  const auto run = [&](int ranks) {
    const std::string dir = "on" + std::to_string(ranks);
    train_on(ranks, of(dir, {"data.streaming=true"}, 900));
    return losses(runs_ / dir);
  };
  const std::vector<double> one = run(1);
  for (const std::vector<double>& found : {run(2), run(3)}) {
    for (size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(found[i] / one[i], 1, 1e-5) << i;
  }
  for (const std::string dir : {"text", "mixture"}) {
    const auto part = [&](const std::string& name) {
      TrainOptions made = of(dir + name, {"data.streaming=true"}, 900);
      if (dir == "text") return made;
      made.recipe.data.text = Recipe{}.data.text;
      made.recipe.locations.erase("data.text");
      made.recipe.data.sources = {{.path = "chats.jsonl", .weight = 2}, {.path = "more.jsonl"}};
      return made;
    };
    train_on(2, part("-whole"));
    run_twice(part("-parts"), part("-parts"));
    EXPECT_EQ(log_lines(runs_ / (dir + "-parts")), log_lines(runs_ / (dir + "-whole")));
    EXPECT_EQ(
        first_difference(checkpoint_tensors(runs_ / (dir + "-parts")), checkpoint_tensors(runs_ / (dir + "-whole"))),
        "");
  }
}

/// A run from before data.fill existed has windows, and keeps them, whichever recipe resumes it.
TEST_P(WholeChats, ARunOfWindowsKeepsThem) {
  train_on(2, options("whole", {"data.fill=stream"}));
  const TrainOptions windows = options("parts", {"data.fill=stream"});
  run_twice(windows, options("parts"));
  EXPECT_EQ(log_lines(runs_ / "parts"), log_lines(runs_ / "whole"));
  std::string old = read_file(runs_ / "parts/recipe.toml");
  const std::string line = "fill = \"stream\"\n";
  ASSERT_NE(old.find(line), std::string::npos);
  write_file(runs_ / "parts/recipe.toml", old.erase(old.find(line), line.size()));
  EXPECT_FALSE(load_recipe(runs_ / "parts/recipe.toml", {}).data.fills_best());
  EXPECT_TRUE(parse_recipe(old, "copied.toml").data.fills_best()) << "a new run";
  TrainOptions other = options("parts", {"data.fill=best_fit", "train.steps=8"});
  other.resume = true;
  EXPECT_THAT(message_of<UsageError>([&] { train_on(1, other); }),
              HasSubstr("data.fill: is \"best_fit\", but the run was trained with \"stream\""));
}

TEST(PackKeys, AreCheckedAndBelongTogether) {
  EXPECT_TRUE(parse_recipe("", "r", {"data.pack=documents"}).data.packs_documents());
  EXPECT_EQ(parse_recipe("", "r", {"data.pack=documents", "data.positions=continue"}).data.positions, "continue");
  EXPECT_THAT(message_of<UsageError>([] { parse_recipe("", "r", {"data.pack=document"}); }), HasSubstr("'documents'"));
  EXPECT_FALSE(parse_recipe("", "r").data.fills_best());
  EXPECT_TRUE(parse_recipe("", "r", {"data.format=chat"}).data.fills_best());
  EXPECT_THAT(to_toml(parse_recipe("", "r", {"data.format=chat"})), HasSubstr("fill = \"best_fit\""));
  EXPECT_FALSE(parse_recipe("", "r", {"data.format=chat", "data.fill=stream"}).data.fills_best());
  // The fill of a run of texts, or of an imported model, is not that of chats.
  const std::string of_texts = to_toml(parse_recipe("", "r"));
  const auto again = [&](const std::vector<std::string>& set) {
    return parse_recipe(of_texts, "r", set, RecipeWriter::run).data.fills_best();
  };
  EXPECT_FALSE(again({}));
  EXPECT_TRUE(again({"data.format=chat"}));
  EXPECT_FALSE(again({"data.format=chat", "data.fill=stream"}));
  EXPECT_TRUE(parse_recipe("", "r", {"data.fill=best_fit"}).data.fills_best());
  EXPECT_THAT(message_of<UsageError>([] { parse_recipe("", "r", {"data.fill=best"}); }), HasSubstr("'best_fit'"));
  EXPECT_THAT(message_of<UsageError>([] { parse_recipe("", "r", {"data.positions=restart"}); }),
              HasSubstr("data.pack = \"documents\" only"));
}

}  // namespace
}  // namespace caravan::testing::packed_test
