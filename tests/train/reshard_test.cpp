/// A checkpoint of every data-parallel technique under every other, on other numbers of ranks; and the memory that
/// saving and loading add to a rank.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "caravan/base/memory/memory_counter.h"
#include "caravan/registry/registry.h"
#include "caravan/train/folder/run_state.h"
#include "tests/train/tiny_run.h"

namespace caravan::testing::reshard_test {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> keys_of(const std::string& technique, int ranks) {
  std::vector<std::string> keys{"mesh.dp=" + std::to_string(ranks), "data_parallel.technique=" + technique};
  if (technique == "hsdp") keys.push_back("data_parallel.shard=2");
  const std::vector<std::string> sharing = names_with_key("data_parallel", "share");
  if (std::ranges::find(sharing, technique) != sharing.end()) keys.push_back("data_parallel.share=off");
  if (technique == "replicas") keys.push_back("comm.backend=thread");
  return keys;
}

/// The state of a run of `recipe` on thread ranks.
void on_state(const TinyRuns& runs, const Recipe& recipe, int ranks, const RunOrigin& origin,
              const std::function<void(RunState&, const TrainWindows&, const Mesh&)>& body) {
  const Dataset data = open_dataset(recipe.data, runs.folders());
  run_thread_ranks(ranks,
                   [&](const std::shared_ptr<Communicator>& world) {
                     const Mesh mesh = Mesh::create(world, {{"dp", ranks}});
                     RunState state(recipe, data.tokenizer, mesh, origin);
                     body(state, data.train_windows(recipe.model.context, recipe.train.seed), mesh);
                   },
                   {.timeout = std::chrono::seconds(20)});
}

/// One tensor for all ranks instead of one for each replica: their mean, as loading computes it.
std::map<std::string, at::Tensor> common(std::map<std::string, at::Tensor> all) {
  std::erase_if(all, [](const auto& tensor) { return tensor.first.starts_with(kStepperTensors); });
  for (auto& [name, tensor] : all) {
    if (!name.starts_with(kOptimizerTensors)) continue;
    const std::string parameter = name.substr(name.find('.', std::string_view(kOptimizerTensors).size()) + 1);
    if (tensor.dim() == all.at(parameter).dim()) continue;
    at::Tensor sum = at::zeros_like(tensor[0]);
    bool is_one = true;
    for (int64_t i = 0; i < tensor.size(0); ++i) {
      sum.add_(tensor[i]);
      is_one = is_one && at::equal(tensor[i], tensor[0]);
    }
    tensor = is_one ? tensor[0] : sum.div_(static_cast<double>(tensor.size(0)));
  }
  return all;
}

/// Every ordered pair of techniques, and of numbers of ranks.
TEST(Reshard, EveryTechniqueLoadsCheckpointsOfEveryOther) {
  const TinyRuns runs;
  const std::vector<std::string> techniques = names_of("data_parallel");
  const auto ranks_of = [](const std::string& technique, size_t i) {
    return technique == "hsdp" ? 4 : 1 + static_cast<int>(i % 4);
  };
  size_t num = 0;
  for (size_t w = 0; w < techniques.size(); ++w) {
    const std::string& writer = techniques[w];
    const int ranks = ranks_of(writer, w);
    const Architecture kind = w % 2 == 0 ? Architecture::gpt2() : Architecture::llama();
    std::vector<std::string> keys = keys_of(writer, ranks);
    keys.emplace_back("train.steps=2");
    train_on(ranks, {.recipe = runs.recipe(kind, writer, keys), .folders = runs.folders()});
    const auto want = common(checkpoint_tensors(runs / writer));
    const CheckpointInfo info = CheckpointReader(find_checkpoint(runs / writer)).info();
    const RunOrigin origin{
        .train_hash = info.train_hash, .validation_hash = info.validation_hash, .numerics = info.numerics};
    for (const std::string& reader : techniques) {
      for (const int later : {1, 2, 3, 4}) {
        if (reader == "hsdp" && later != 4) continue;
        const std::string again = "again" + std::to_string(++num);
        SCOPED_TRACE(writer + " on " + std::to_string(ranks) + " ranks, then " + reader + " on " +
                     std::to_string(later));
        std::vector<std::string> its = keys_of(reader, later);
        its.emplace_back("train.steps=2");
        on_state(runs, runs.recipe(kind, again, its), later, origin,
                 [&](RunState& state, const TrainWindows& windows, const Mesh&) {
                   state.load(find_checkpoint(runs / writer), windows);
                   state.save(runs / again, 1, windows);
                 });
        EXPECT_EQ(first_difference(common(checkpoint_tensors(runs / again)), want), "");
      }
    }
  }
}

/// Data is read, hashed and written directly between files and the tensors of the run. No copy is made, so the added
/// memory is far less than the largest unit.
TEST(Reshard, AddsLittleToTheMemoryOfARank) {
  constexpr int64_t kLittle = int64_t{64} << 10;
  const TinyRuns runs;
  for (const char* writer : {"ddp", "zero3"}) {
    for (const char* reader : {"ddp", "zero3"}) {
      const std::string dir = std::string(writer) + "_" + reader;
      const auto recipe = [&](const char* technique) {
        std::vector<std::string> keys = keys_of(technique, 2);
        keys.insert(keys.end(), {"model.layers=6", "model.width=128", "train.steps=2"});
        return runs.recipe(Architecture::llama(), dir, keys);
      };
      const auto peak_of = [](const std::function<void()>& body) {
        MemoryCounter& memory = MemoryCounter::current();
        const int64_t before = memory.live_bytes();
        memory.reset_peak();
        body();
        return memory.peak_bytes() - before;
      };
      fs::create_directories(runs / dir);
      on_state(runs, recipe(writer), 2, {}, [&](RunState& state, const TrainWindows& windows, const Mesh& mesh) {
        ASSERT_GT(state.trained().bytes().total(), 10 * kLittle) << "a copy would not be noticed";
        ASSERT_GE(MemoryCounter::current().live_bytes(), state.trained().bytes()[MemoryKind::parameters] / 2);
        state.step = 1;
        const int64_t added = peak_of([&] { state.save(runs / dir, 1, windows); });
        EXPECT_LE(added, kLittle) << writer << " saves, " << mesh.where();
      });
      on_state(runs, recipe(reader), 2, {}, [&](RunState& state, const TrainWindows& windows, const Mesh& mesh) {
        const int64_t added = peak_of([&] { state.load(find_checkpoint(runs / dir), windows); });
        EXPECT_LE(added, kLittle) << reader << " loads, " << mesh.where();
      });
    }
  }
}

}  // namespace
}  // namespace caravan::testing::reshard_test
