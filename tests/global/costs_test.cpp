// What one of n ranks computes and keeps: 1/n of one process, but for the parts that are listed as whole on every rank.
#include <gmock/gmock.h>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "caravan/base/memory/memory_counter.h"
#include "tests/global/nets.h"
#include "tests/global/recorder.h"

namespace caravan::testing {
namespace {

using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::Eq;
using ::testing::HasSubstr;

constexpr double kMost = 1.1;  // of 1/n

struct Costs {
  double flops = 0;                                 ///< of the products of a step
  int64_t split_parameters = 0;                     ///< bytes
  std::map<std::string, int64_t> whole_parameters;  ///< bytes by name
  Recorder::Held activations;                       ///< after the forward pass, as long as the loss lives
  int64_t counted = 0;                              ///< the same, by the allocator
};

Costs costs_of(const Program& program, torch::nn::Module& net, const std::vector<at::Tensor>& data) {
  Costs costs;
  std::vector<at::Tensor> known = data;
  for (const auto& parameter : net.named_parameters()) {
    const at::Tensor& value = parameter.value();
    known.push_back(value);
    const bool is_split = is_global(value) && layout(value)["tp"].is_shard();
    const auto bytes = static_cast<int64_t>((is_global(value) ? local(value.detach()) : value).nbytes());
    (is_split ? costs.split_parameters : costs.whole_parameters[parameter.key()]) += bytes;
  }
  const Recorder recorder(known);
  const int64_t before = MemoryCounter::current().live_bytes();
  const at::Tensor loss = program.loss(net, data);
  costs.activations = recorder.held();
  costs.counted = MemoryCounter::current().live_bytes() - before;
  loss.backward();
  costs.flops = recorder.flops();
  return costs;
}

Costs costs_alone(const Program& program) { return costs_of(program, *made(program), program.data); }

/// Of the first rank.
Costs costs_on(int n, const Program& program, const std::vector<NamedLayout>& layouts) {
  Costs costs;
  on_mesh({{"tp", n}}, [&](const Mesh& mesh) {
    const GlobalContext context(mesh, {.is_strict = true});
    const auto net = made(program);
    distribute_module(*net, layouts, context);
    std::vector<at::Tensor> data;
    for (const at::Tensor& each : program.data) data.push_back(distribute(each, {}, context));
    const Costs own = costs_of(program, *net, data);
    if (mesh.rank() == 0) costs = own;
  });
  return costs;
}

int64_t sum_of(const std::map<std::string, int64_t>& values) {
  int64_t sum = 0;
  for (const auto& [name, value] : values) sum += value;
  return sum;
}

std::vector<std::string> names_of(const std::map<std::string, int64_t>& values) {
  std::vector<std::string> names;
  for (const auto& [name, value] : values) names.push_back(name);
  return names;
}

void expect_nth(const Costs& alone, const Costs& rank, int n) {
  EXPECT_GT(rank.flops, 0);
  EXPECT_LE(rank.flops, kMost / n * alone.flops);
  EXPECT_LE(static_cast<double>(rank.split_parameters),
            kMost / n * static_cast<double>(sum_of(alone.whole_parameters) - sum_of(rank.whole_parameters)));
  const int64_t all = alone.activations.whole_bytes();
  EXPECT_LE(static_cast<double>(rank.activations.split),
            kMost / n * static_cast<double>(all - rank.activations.whole_bytes()));
  // The allocator has counted what the recorder has seen.
  EXPECT_EQ(alone.activations.split, 0);
  EXPECT_EQ(alone.counted, all);
  EXPECT_EQ(rank.counted, rank.activations.split + rank.activations.whole_bytes());
}

TEST(GlobalCosts, Mlp) {
  constexpr int64_t kWidth = 16, kHidden = 64, kNumRows = 6;
  const Program program = mlp(kWidth, kHidden);
  const Costs alone = costs_alone(program);
  // Two products forward, two for the weights backward, and one for what is between the layers.
  EXPECT_EQ(alone.flops, 5 * 2 * kNumRows * kWidth * kHidden);
  for (const int n : {2, 4}) {
    const Costs rank = costs_on(n, program, kMlpByTp);
    expect_nth(alone, rank, n);
    EXPECT_THAT(names_of(rank.whole_parameters), ElementsAre("down.bias"));
    // The sum that leaves the second layer, and the loss.
    EXPECT_THAT(names_of(rank.activations.whole), ElementsAre("aten::empty", "aten::mse_loss"));
  }
}

TEST(GlobalCosts, Gpt) {
  const Program program =
      gpt<true, true>({.width = 32, .heads = 8, .ff = 128, .vocabulary = 64, .rows = 2, .length = 16});
  const Costs alone = costs_alone(program);
  for (const int n : {2, 4}) {
    const Costs rank = costs_on(n, program, megatron_fused("tp"));
    expect_nth(alone, rank, n);
    for (const auto& [name, bytes] : rank.whole_parameters) {
      EXPECT_THAT(name, AnyOf(HasSubstr("norm"), EndsWith(".out.bias"), EndsWith(".down.bias"), Eq("position.weight")));
    }
    // Norms and what is between the blocks; the loss and the weight of its rows.
    EXPECT_THAT(names_of(rank.activations.whole),
                ElementsAre("aten::add", "aten::cross_entropy_loss", "aten::layer_norm", "aten::native_layer_norm",
                            "aten::nll_loss_forward"));
    EXPECT_LT(rank.activations.whole.at("aten::cross_entropy_loss"), 100);
  }
}

}  // namespace
}  // namespace caravan::testing
