// Ranks with different recipes, options or data all end before the first step and name the difference.
#include "caravan/train/agreement.h"

#include <gmock/gmock.h>
#include <thread>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "caravan/base/content_hash.h"
#include "caravan/comm/backends/gloo/gloo.h"
#include "caravan/comm/calls/agree.h"
#include "caravan/train/folder/run_state.h"
#include "tests/ranks/process_ranks.h"
#include "tests/train/tiny_run.h"

namespace caravan::testing::agreement_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

/// The error of each of three ranks when the last one gets other options.
template <class Exception>
std::vector<std::string> messages_of(const TrainOptions& all, const TrainOptions& last) {
  std::vector<std::string> messages(3);
  run_thread_ranks(3,
                   [&](const std::shared_ptr<Communicator>& world) {
                     messages[world->rank()] =
                         message_of<Exception>([&] { train(world->rank() == 2 ? last : all, world); });
                   },
                   {.timeout = std::chrono::seconds(20)});
  return messages;
}

TEST(Agreement, AnyDifferenceInRecipeOrOptionsEndsAllRanksBeforeTheFirstStep) {
  const TinyRuns runs;
  const auto options = [&](const std::vector<std::string>& set = {}) {
    return TrainOptions{.recipe = runs.recipe(Architecture::gpt2(), "run", set), .folders = runs.folders()};
  };
  for (const auto& [key, value, before] : std::vector<std::array<std::string, 3>>{
           {"optimizer.lr", "0.5", "0.01"},
           {"train.seed", "4", "3"},
           {"model.dropout", "0.2", "0.1"},
           {"model.layers", "3", "2"},
           {"model.context", "16", "8"},
           {"train.global_batch", "24", "36"},
           {"train.global_batch", "37", "36"},
           {"optimizer.clip_norm", "2.0", "1.0"},
           {"precision.compute", "\"bf16\"", "\"fp32\""},
           {"data_parallel.bucket_bytes", "64", "4096"},
           {"memory.recompute", "[\"blocks.1\"]", "\"none\""},
           {"comm.backend", "\"gloo\"", "\"auto\""},
           {"checkpoint.dir", "\"" + (runs / "other").string() + "\"", "\"" + (runs / "run").string() + "\""}}) {
    EXPECT_THAT(messages_of<UsageError>(options(), options({key + "=" + value})),
                Each(HasSubstr(key + ": is " + before + " on rank 0 and " + value + " on rank 2")));
  }
  TrainOptions stops = options();
  stops.stop_after = 3;
  EXPECT_THAT(messages_of<UsageError>(options(), stops),
              Each(HasSubstr("--stop-after: is not given on rank 0 and 3 on rank 2")));
  TrainOptions resumes = options();
  resumes.resume = true;
  EXPECT_THAT(messages_of<UsageError>(options(), resumes), Each(HasSubstr("--resume: is not given on rank 0")));
  TrainOptions dumps = options();
  dumps.dump_dir = runs / "dump";
  EXPECT_THAT(messages_of<UsageError>(options(), dumps), Each(HasSubstr("--dump: is not given on rank 0")));
  // Keys that only one kind of model uses.
  EXPECT_THAT(messages_of<UsageError>(options(),
                                      {.recipe = runs.recipe(Architecture::llama(), "run"), .folders = runs.folders()}),
              Each(HasSubstr("model.kind")));
  EXPECT_FALSE(fs::exists(runs / "run"));
  EXPECT_FALSE(fs::exists(runs / "other"));
}

TEST(Agreement, AnotherTextOrTokenizerIsADataErrorButAnotherPathIsNot) {
  const TinyRuns runs;
  const auto options = [&](const std::string& text, const std::vector<std::string>& more = {}) {
    std::vector<std::string> set{"data.text=" + (runs / text).string(), "train.steps=1", "model.vocabulary=300"};
    set.insert(set.end(), more.begin(), more.end());
    return TrainOptions{.recipe = runs.recipe(Architecture::gpt2(), "run", set), .folders = runs.folders()};
  };
  const std::string text = read_file(runs / "text.txt");
  write_file(runs / "same.txt", text);
  std::string other = text;
  other[10] = other[10] == 'x' ? 'y' : 'x';
  write_file(runs / "train.txt", other);
  other = text;
  other[other.size() - 10] = '#';
  write_file(runs / "validation.txt", other);
  EXPECT_THAT(messages_of<DataError>(options("text.txt"), options("train.txt")),
              Each(AllOf(HasSubstr("data.text, training part"), HasSubstr("on rank 0"), HasSubstr("on rank 2"))));
  EXPECT_THAT(messages_of<DataError>(options("text.txt"), options("validation.txt")),
              Each(HasSubstr("data.text, validation part")));
  EXPECT_THAT(messages_of<DataError>(options("text.txt"), options("text.txt", {"data.tokenizer={train = 270}"})),
              Each(HasSubstr("data.tokenizer")));
  run_thread_ranks(3,
                   [&](const std::shared_ptr<Communicator>& world) {
                     train(options(world->rank() == 2 ? "same.txt" : "text.txt",
                                   {"comm.timeout_s=" + std::to_string(9 + world->rank())}),
                           world);
                   },
                   {.timeout = std::chrono::seconds(20)});
  EXPECT_EQ(losses(runs / "run").size(), 1U);
}

TEST(Disagreement, NamesTheFirstFactThatDiffersForAnyLists) {
  using Facts = std::vector<SharedFact>;
  const Facts facts{{"a", "1"}, {"b", "2"}};
  const auto with = [&](const Facts& last) {
    std::vector<std::string> found(3, "not called");
    run_thread_ranks(3,
                     [&](const std::shared_ptr<Communicator>& world) {
                       const auto one = find_disagreement(*world, world->rank() == 1 ? last : facts);
                       found[world->rank()] = one ? one->name + " " + one->to_string() : "";
                     },
                     {.timeout = std::chrono::seconds(20)});
    EXPECT_THAT(found, Each(found[0]));
    return found[0];
  };
  EXPECT_EQ(with(facts), "");
  EXPECT_EQ(with({{"a", "1"}, {"b", "3"}}), "b is 2 on rank 0 and 3 on rank 1");
  // "z" may exist because of "b", so keys that both have are named first.
  EXPECT_EQ(with({{"z", "0"}, {"a", "1"}, {"b", "3"}}), "b is 2 on rank 0 and 3 on rank 1");
  EXPECT_EQ(with({{"a", "1"}}), "b is 2 on rank 0 and not given on rank 1");
  EXPECT_EQ(with({{"a", "1"}, {"b", "2"}, {"c", ""}}), "c is not given on rank 0 and  on rank 1");
  EXPECT_EQ(with({{"b", "2"}, {"a", "1"}}), "order is a on rank 0 and b on rank 1");
  EXPECT_EQ(with({}), "a is 1 on rank 0 and not given on rank 1");
  const std::string entry(90, 'x');
  EXPECT_THAT(with({{"a", "1"}, {"b", "[" + entry + ", " + entry + ", " + entry + "]"}}),
              HasSubstr("x .. (76 bytes left out) on rank 1"));
  // Names and values are delimited by lengths, not by separators.
  EXPECT_EQ(with({{"a", "1b"}, {"", "2"}}), "a is 1 on rank 0 and 1b on rank 1");
}

TEST(Disagreement, ThroughTheStoreAllRanksGetTheSameAnswer) {
  const auto ask = [](int size, int present, int different, std::chrono::milliseconds timeout) {
    const auto store = local_store();
    std::vector<std::string> found(present);
    std::vector<std::jthread> ranks;
    for (int rank = 0; rank < present; ++rank) {
      ranks.emplace_back([&, rank] {
        try {
          RankInfo info;
          info.rank = rank;
          info.world_size = size;
          const auto one = find_disagreement(*store, info, {{"lr", rank == different ? "2" : "1"}}, timeout);
          found[rank] = one ? one->name + " " + one->to_string() : "";
        } catch (const CommError& error) {
          found[rank] = error.what();
        }
      });
    }
    ranks.clear();
    return found;
  };
  EXPECT_THAT(ask(4, 4, -1, std::chrono::seconds(20)), Each(""));
  EXPECT_THAT(ask(4, 4, 2, std::chrono::seconds(20)), Each("lr is 1 on rank 0 and 2 on rank 2"));
  EXPECT_THAT(ask(4, 4, 0, std::chrono::seconds(20)), Each("lr is 2 on rank 0 and 1 on rank 1"));
  EXPECT_THAT(ask(4, 2, -1, std::chrono::milliseconds(200)),
              Each(HasSubstr("ranks 2, 3 of 4 did not join within 0.2 s")));
}

TEST(Program, HasABuildId) { EXPECT_EQ(program_build().size(), 40U); }

/// Trains for five steps on every rank of `world`, and compares parameters and moments of all ranks after each.
void expect_equal_ranks(const std::shared_ptr<Communicator>& world) {
  const TinyRuns runs;
  const Recipe recipe = runs.recipe(Architecture::gpt2(), "none");
  const Mesh mesh = Mesh::create(world, {{"dp", 3}});
  const Dataset data = open_dataset(recipe.data, runs.folders());
  RunState state(recipe, data.tokenizer, mesh);
  const TrainWindows windows = data.train_windows(8, 3);
  TrainStep step(state.engine(), state.optimizer(), {.seed = 3, .num_micro_batches = 2, .clip_norm = 1});
  std::string before;
  for (int64_t n = 0; n < 5; ++n) {
    step.run(make_rank_batch(state.engine(), windows, n, 12), n, 0.01);
    std::vector<at::Tensor> all{state.engine().state().values.to_tensor()};
    for (const auto& [name, flat] : state.optimizer().state()) all.push_back(flat.to_tensor());
    std::string hashes;
    for (const at::Tensor& flat : all) {
      hashes += content_hash(std::span(static_cast<const std::byte*>(flat.const_data_ptr()), flat.nbytes())).hex();
    }
    EXPECT_THAT(gather_texts(*world, hashes), Each(hashes)) << "after step " << n;
    EXPECT_NE(hashes, before) << "nothing was trained";
    before = hashes;
  }
}

TEST(Processes, HaveBitEqualParametersAfterTrainingOverSharedMemory) {
  run_process_ranks(3, expect_equal_ranks, CommOptions{.timeout = std::chrono::seconds(30)});
}

TEST(Processes, HaveBitEqualParametersAfterTrainingOverMessages) {
  run_process_ranks(3, expect_equal_ranks, CommOptions{.timeout = std::chrono::seconds(30)}, make_gloo_world);
}

}  // namespace
}  // namespace caravan::testing::agreement_test
