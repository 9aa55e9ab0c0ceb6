#include <gmock/gmock.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "caravan/base/error.h"
#include "caravan/comm/record.h"
#include "caravan/nn/loss/ignored_label.h"
#include "caravan/train/dataset/task_dataset.h"
#include "caravan/train/evaluation/evaluate.h"
#include "caravan/train/folder/run_state.h"
#include "tests/train/tiny_run.h"

namespace caravan::testing::task_runs_test {
namespace {

using ::testing::HasSubstr;

/// Runs of models of today on tasks of others: what is learned makes no sense, how it is computed does.
class TaskRuns : public ::testing::TestWithParam<std::string> {
 protected:
  TaskRuns() {
    std::filesystem::create_directory(runs_ / "bert");
    std::filesystem::copy_file(fixture("families/bert_uncased.json"), runs_ / "bert/tokenizer.json");
    std::string records;
    for (int i = 0; i < 90; ++i) {
      const std::string text = "the landlord " + std::string(i % 2 == 0 ? "would look" : "could go") + " over";
      const char* label = i % 5 == 0 ? "c" : i % 2 == 0 ? "a" : "b";
      records +=
          nlohmann::json{{"text", text}, {"label", label}, {"source", text}, {"target", "the room"}}.dump() + "\n";
    }
    write_file(runs_ / "records.jsonl", records);
  }

  Recipe recipe(const std::string& dir, std::vector<std::string> set = {}) const {
    const bool has_records = GetParam() == "classify" || GetParam() == "pairs";
    set.insert(set.begin(),
               {"data.tokenizer=\"" + (runs_ / "bert/tokenizer.json").string() + "\"", "data.task=" + GetParam(),
                "data.text=" + (runs_ / (has_records ? "records.jsonl" : "text.txt")).string(), "model.dropout=0",
                "data.validation_fraction=0.3"});
    if (GetParam() == "masked") set.insert(set.begin(), "model.causal=false");
    return runs_.recipe(Architecture::llama(), dir, set);
  }
  TrainOptions options(const std::string& dir, const std::vector<std::string>& set) const {
    return {.recipe = recipe(dir, set), .folders = runs_.folders()};
  }
  nlohmann::json last_line(const std::string& dir) const {
    const std::string text = read_file(runs_ / dir / "train.log");
    return nlohmann::json::parse(text.substr(text.rfind('\n', text.size() - 2) + 1));
  }
  bool has_accuracy() const { return GetParam() != "pairs"; }

  const TinyRuns runs_;
};

INSTANTIATE_TEST_SUITE_P(Tasks, TaskRuns, ::testing::Values("masked", "classify", "pairs"),
                         [](const auto& info) { return info.param; });

TEST_P(TaskRuns, AreTheSameOnAnyRanks) {
  const std::vector<std::string> set{"train.steps=4", "train.eval_every=2"};
  train_on(1, options("one", set));
  const nlohmann::json one = last_line("one");
  EXPECT_EQ(one.contains("val_accuracy"), has_accuracy());
  EXPECT_EQ(one.contains("val_macro_f1"), GetParam() == "classify");
  EXPECT_FALSE(one.contains("val_bits_per_byte"));
  EXPECT_EQ(one["tokens"], 4 * 36 * 8);
  for (const auto& [ranks, arrangement] : std::vector<std::pair<int, std::vector<std::string>>>{
           {3, {"mesh.dp=3", "train.micro_batch=4"}},
           {2, {"mesh.tp=2", "train.micro_batch=9"}},
           {2, {"mesh.pp=2", "train.micro_batch=6"}},
           {4, {"mesh.dp=2", "mesh.tp=2", "tensor_parallel.sequence=true"}},
           {2, {"data_parallel.technique=zero3"}},
           {2, {"data_parallel.technique=param_server"}}}) {
    train_on(ranks, options("many", together({set, arrangement})));
    const nlohmann::json many = last_line("many");
    EXPECT_NEAR(many["loss"].get<double>(), one["loss"].get<double>(), 1e-4) << arrangement[0];  // fp32, other sums
    EXPECT_NEAR(many["val_loss"].get<double>(), one["val_loss"].get<double>(), 1e-4) << arrangement[0];
    for (const char* key : {"val_accuracy", "val_macro_f1"}) {
      EXPECT_EQ(many.value(key, -1.0), one.value(key, -1.0)) << key << ' ' << arrangement[0];
    }
    std::filesystem::remove_all(runs_ / "many");
  }
}

TEST_P(TaskRuns, ResumeWithTheSameRows) {
  const std::vector<std::string> set{"train.steps=6", "train.eval_every=4", "checkpoint.every=2"};
  train_on(2, options("whole", set));
  TrainOptions first = options("parts", set);
  first.stop_after = 4;
  train_on(2, first);
  TrainOptions second = options("parts", set);
  second.resume = true;
  train_on(2, second);
  EXPECT_EQ(log_lines(runs_ / "parts"), log_lines(runs_ / "whole"));
  EXPECT_EQ(first_difference(checkpoint_tensors(runs_ / "parts"), checkpoint_tensors(runs_ / "whole")), "");
  EXPECT_EQ(CheckpointReader(find_checkpoint(runs_ / "parts")).info().position, 6 * 36 * 8);

  TrainOptions other = options("parts", together({set, {"train.steps=8"}}));
  other.resume = true;
  other.recipe.data.task.kind = GetParam() == "masked" ? "next" : "masked";
  other.recipe.model.classes = 0;
  other.recipe.data.text = {(runs_ / "text.txt").string()};
  if (GetParam() == "classify") {
    EXPECT_THAT(message_of<DataError>([&] { train_on(1, other); }), HasSubstr("model.classes is 3 there, 0"));
  } else {
    EXPECT_THAT(message_of<UsageError>([&] { train_on(1, other); }), HasSubstr("data."));
  }
}

/// Accuracy and F1 from the logits of the whole model, counted by hand.
TEST_P(TaskRuns, PredictionsAreTheLargestLogits) {
  if (!has_accuracy()) return;
  Recipe made = recipe("none");
  const Dataset data = open_dataset(made.data, runs_.folders());
  fit_classes(made, data);
  const auto rows = validation_rows(data, made.data, {.context = 8});
  const auto count = static_cast<size_t>(rows->size());
  Mesh alone = Mesh::create(make_record_world(0, 1), {{"dp", 1}});
  RunState state(made, data.tokenizer, alone);
  at::Tensor ids = at::empty({rows->size(), 8}, at::kLong), labels = at::empty_like(ids);
  rows->fill(0, {.ids = {ids.data_ptr<int64_t>(), count * 8}, .labels = {labels.data_ptr<int64_t>(), count * 8}});
  const at::NoGradGuard no_grad;
  const at::Tensor best = state.model().run({ids}, {.phase = Phase::evaluate}).front().argmax(-1);
  const at::Tensor is_target = labels.ne(kIgnoredLabel);
  EXPECT_TRUE(
      predictions_of(state.model())(ids, labels, {.phase = Phase::evaluate}).equal(best.masked_select(is_target)));
  const double accuracy = best.eq(labels).logical_and(is_target).sum().item<double>() / is_target.sum().item<double>();
  const auto classes = static_cast<int64_t>(data.class_names.size());
  double f1 = 0, num_present = 0;
  for (int64_t label = 0; label < classes; ++label) {
    const at::Tensor own = labels.eq(label), guessed = best.eq(label).logical_and(is_target);
    const auto size = own.sum().item<double>() + guessed.sum().item<double>();
    if (size == 0) continue;
    f1 += 2 * own.logical_and(guessed).sum().item<double>() / size;
    num_present += 1;
  }
  for (const int ranks : {1, 2, 3}) {
    run_thread_ranks(ranks, [&](const std::shared_ptr<Communicator>& world) {
      const Mesh mesh = Mesh::create(world, {{"dp", ranks}});
      RunState own(made, data.tokenizer, mesh);
      const EvaluationOptions options{.rows = 4, .has_accuracy = true, .num_classes = classes};
      for (const bool by_engine : {true, false}) {
        const Evaluation result =
            by_engine ? *evaluate(own.engine(), *rows, options) : *evaluate(own.model(), *world, *rows, options);
        EXPECT_EQ(result.accuracy, accuracy) << ranks;
        EXPECT_EQ(result.macro_f1.has_value(), classes > 0);
        EXPECT_DOUBLE_EQ(result.macro_f1.value_or(0), classes > 0 ? f1 / num_present : 0);
        EXPECT_EQ(result.bits_per_byte, 0);
        EXPECT_FALSE(evaluate(own.engine(), *rows, {.rows = 4})->accuracy) << "nobody asked";
      }
    });
  }
}

/// f1_score(average="macro") of scikit-learn, by hand: classes 0, 1 and 3; class 2 occurs nowhere.
TEST(Predictions, MacroF1LeavesOutAbsentClasses) {
  PredictionCounts counts(4);
  counts.add(at::tensor({0, -100, 0, 1, 1, 1}, at::kLong).reshape({2, 3}), at::tensor({0, 1, 1, 1, 3}, at::kLong));
  EXPECT_DOUBLE_EQ(counts.accuracy(), 0.6);
  // 0: tp 1, fp 0, fn 1; 1: tp 2, fp 1, fn 1; 3: fp 1.
  EXPECT_DOUBLE_EQ(*counts.macro_f1(), (2.0 / 3 + 4.0 / 6 + 0) / 3);
  EXPECT_FALSE(PredictionCounts(0).macro_f1());
  EXPECT_THROW(counts.add(at::tensor({0}, at::kLong).reshape({1, 1}), at::tensor({0, 1}, at::kLong)), InternalError);
}

/// What pairs of texts have reaches the model's context, and its pieces.
TEST(TaskBatch, HasTypesAndSources) {
  TrainBatch batch{.ids = at::arange(24).reshape({4, 6}), .labels = at::arange(24).reshape({4, 6}), .global_rows = 4};
  batch.token_types = at::arange(24).reshape({4, 6}) + 100;
  const MicroBatch micro = micro_batch_of(batch, 2, 1, 1, 0);
  EXPECT_TRUE(micro.context.token_types.equal(batch.token_types.narrow(0, 2, 2)));
}

}  // namespace
}  // namespace caravan::testing::task_runs_test
