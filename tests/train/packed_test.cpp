#include <gmock/gmock.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/comm/record.h"
#include "caravan/nn/loss/ignored_label.h"
#include "caravan/step/batch.h"
#include "caravan/train/evaluation/evaluate.h"
#include "caravan/train/folder/run_state.h"
#include "tests/train/tiny_run.h"

namespace caravan::testing::packed_test {
namespace {

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

/// Documents that share a row give the same loss and gradients as separate ones.
TEST_P(Packed, DocumentsMatchSeparateOnes) {
  const Recipe made = recipe("none", {"model.dropout=0"});
  const Dataset data = open_dataset(made.data, runs_.folders());
  const TrainWindows windows = data.train_windows(8, 3);
  const TrainBatch batch = make_batch(windows, 72, 36);
  const Apart apart(batch.ids, batch.labels, batch.documents);
  ASSERT_GT(apart.ids.size(), 45U);
  EXPECT_EQ(batch.num_targets, batch.labels.ne(kIgnoredLabel).sum().item<int64_t>());
  EXPECT_LT(batch.num_targets, 36 * 8);
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
}

TEST(PackKeys, AreCheckedAndBelongTogether) {
  EXPECT_TRUE(parse_recipe("", "r", {"data.pack=documents"}).data.packs_documents());
  EXPECT_EQ(parse_recipe("", "r", {"data.pack=documents", "data.positions=continue"}).data.positions, "continue");
  EXPECT_THAT(message_of<UsageError>([] { parse_recipe("", "r", {"data.pack=document"}); }), HasSubstr("'documents'"));
  EXPECT_THAT(message_of<UsageError>([] { parse_recipe("", "r", {"data.positions=restart"}); }),
              HasSubstr("data.pack = \"documents\" only"));
}

}  // namespace
}  // namespace caravan::testing::packed_test
