/// Several forwards before the first backward: the head computes its weight's gradient in forward, and a tied embedding
/// adds to the same sum in backward.

#include <gmock/gmock.h>

#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/redistribute/redistribute.h"
#include "caravan/techniques/data/ddp.h"
#include "caravan/techniques/data/zero.h"
#include "tests/mesh/refusal.h"
#include "tests/redistribute/denote.h"
#include "tests/techniques/together/one_process.h"

namespace caravan::testing::in_flight_test {
namespace {

using ::testing::HasSubstr;

constexpr int kMicroBatches = 3;

/// What is back-propagated when.
using Order = std::function<void(const std::function<at::Tensor(int)>& forward, const Layout& layout)>;

void one_by_one(const std::function<at::Tensor(int)>& forward, const Layout& layout) {
  for (int micro = 0; micro < kMicroBatches; ++micro) backward(forward(micro), layout);
}

void first_in_first_out(const std::function<at::Tensor(int)>& forward, const Layout& layout) {
  std::vector<at::Tensor> losses;
  for (int micro = 0; micro < kMicroBatches; ++micro) losses.push_back(forward(micro));
  for (const at::Tensor& loss : losses) backward(loss, layout);
}

void last_in_first_out(const std::function<at::Tensor(int)>& forward, const Layout& layout) {
  std::vector<at::Tensor> losses;
  for (int micro = 0; micro < kMicroBatches; ++micro) losses.push_back(forward(micro));
  for (size_t i = losses.size(); i-- > 0;) backward(losses[i], layout);
}

using Technique = std::function<Strategy(Model& model, const Mesh& mesh)>;

/// The gradients on `num_ranks` ranks, in fp64.
Named gradients_of(const Problem& problem, int num_ranks, const Technique& technique, const Order& order) {
  const Axes axes{{"dp", num_ranks}};
  std::map<std::string, Pieces> pieces;
  const Model shapes(problem.config);
  for (const Parameter* parameter : shapes.parameters()) {
    pieces.emplace(parameter->name(), no_pieces(axes, {}));
  }
  on_mesh(axes, [&](const Mesh& mesh) {
    Model model(problem.config);
    const Strategy strategy = technique(model, mesh);
    Engine engine(model, mesh, strategy, {.seed = 5, .dtype = at::kDouble});
    const Problem::Batch whole = problem.batch();
    const auto forward = [&](int micro) {
      const MeshAxis& dp = mesh["dp"];
      const Problem::Batch part = problem.part(whole, dp.coord(), dp.size(), micro, kMicroBatches);
      return model.run({part.ids, part.labels}, part.context)[0];
    };
    for (int step = 0; step < 2; ++step) {  // recorded, then followed
      engine.begin_step(kMicroBatches);
      order(forward, strategy.loss_layout);
      engine.finish_step();
    }
    for (const Parameter* parameter : model.parameters()) {
      Pieces& all = pieces.at(parameter->name());
      all.local[mesh.rank()] = parameter->sharded().grad().clone();
      if (mesh.rank() == 0) all.layout = parameter->sharded_layout();
    }
  });
  Named got;
  for (const auto& [name, all] : pieces) got[name] = to_global(all);
  return got;
}

const Technique kWhole = [](Model& model, const Mesh& mesh) { return ddp(model, mesh); };
const Technique kShards = [](Model& model, const Mesh& mesh) { return fsdp(model, mesh, {.share = Share::off}); };
const Technique kFull = [](Model& model, const Mesh& mesh) { return zero(model, mesh); };

TEST(InFlight, TheOrderOfBackwardsDoesNotMatter) {
  for (const Architecture& kind : {Architecture::gpt2(), Architecture::llama()}) {
    const Problem problem(kind);
    const Named want = gradients_of(problem, 1, kWhole, one_by_one);
    for (const Technique& technique : {kWhole, kShards, kFull}) {
      for (const Order& order : {Order(one_by_one), Order(first_in_first_out), Order(last_in_first_out)}) {
        const auto [apart, worst] = distance(gradients_of(problem, 2, technique, order), want);
        EXPECT_LE(apart, 1e-10) << kind.name << ": " << worst;
      }
    }
  }
}

/// The summand of a loss without a backward would stay in the sum.
TEST(InFlight, ALossThatIsKeptWithoutBackwardIsAnError) {
  for (const Architecture& kind : {Architecture::gpt2(), Architecture::llama()}) {
    const Problem problem(kind);
    on_mesh({{"dp", 2}}, [&](const Mesh& mesh) {
      Model model(problem.config);
      const Strategy strategy = ddp(model, mesh);
      Engine engine(model, mesh, strategy, {.seed = 5});
      const Problem::Batch part = problem.part(problem.batch(), mesh["dp"].coord(), 2, 0, 1);
      engine.begin_step(1);
      const at::Tensor kept = model.run({part.ids, part.labels}, part.context)[0];
      backward(model.run({part.ids, part.labels}, part.context)[0], strategy.loss_layout);
      EXPECT_THAT(message_of<UsageError>([&] { engine.finish_step(); }),
                  HasSubstr("a loss was computed with gradients in this step and never back-propagated"));
      engine.begin_step(1);
      EXPECT_THAT(message_of<UsageError>([&] { backward(kept, strategy.loss_layout); }),
                  HasSubstr("comes out of order"));
    });
  }
}

}  // namespace
}  // namespace caravan::testing::in_flight_test
