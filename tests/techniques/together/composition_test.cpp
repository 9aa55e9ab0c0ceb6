#include <gtest/gtest.h>

#include "caravan/optim/grad_norm.h"
#include "caravan/redistribute/redistribute.h"
#include "caravan/techniques/data/ddp.h"
#include "tests/acid/techniques/column_row.h"
#include "tests/redistribute/denote.h"
#include "tests/techniques/together/one_process.h"

namespace caravan::testing::composition_test {
namespace {

/// Two independent techniques on two axes of one model give the gradients and the norm of one process. Typical bugs are
/// a gradient or a norm that is summed once too often or not at all. In fp64, since the gradient of a key bias is zero
/// except for rounding errors, which have no relative accuracy in fp32.
constexpr double kTolerance = 1e-10;

Module::MaterialiseOptions in_fp64() {
  return {.seed = 5, .allocate = [](const Parameter&, const std::vector<int64_t>& shape) {
            return at::empty(shape, at::kDouble);
          }};
}

class Composition : public ::testing::TestWithParam<Axes> {};

TEST_P(Composition, DdpOverOneAxisAndAColumnRowSplitOverAnother) {
  const Axes axes = GetParam();
  for (const Architecture& kind : {Architecture::gpt2(), Architecture::llama()}) {
    const Problem problem(kind);
    const Problem::Batch whole = problem.batch();
    Named want;
    double want_norm = 0;
    on_mesh({}, [&](const Mesh& mesh) {
      Model model(problem.config);
      model.materialise(mesh, {}, in_fp64());
      model.run({whole.ids, whole.labels}, whole.context)[0].backward();
      want = gradients_of(model);
      for (const auto& [name, gradient] : want) want_norm += gradient.square().sum().item<double>();
    });
    std::map<std::string, Pieces> pieces;
    for (const auto& [name, gradient] : want) pieces.emplace(name, no_pieces(axes, {}));
    std::vector<double> norms(num_ranks(axes));
    on_mesh(axes, [&](const Mesh& mesh) {
      Model model(problem.config);
      const MeshAxis& dp = mesh["dp"];
      const int64_t rows = Problem::kRows / dp.size() / 3;
      const std::vector<int64_t> shape{rows, Problem::kLength};
      Strategy strategy = whole_model(model, mesh);
      add_plan(strategy,
               std::make_shared<AppliedPlan>(apply(fitted(column_row("tp"), model), model, mesh, {shape, shape})));
      add_ddp(strategy, mesh, {.bucket_bytes = 2048});
      Engine engine(model, mesh, strategy, {.seed = 5, .dtype = at::kDouble});
      for (int step = 0; step < 2; ++step) {  // recorded, then followed
        engine.begin_step(3);
        for (int micro = 0; micro < 3; ++micro) {
          const Problem::Batch part = problem.part(whole, dp.coord(), dp.size(), micro, 3);
          backward(model.run({part.ids, part.labels}, part.context)[0], strategy.loss_layout);
        }
        engine.finish_step();
      }
      norms[mesh.rank()] = grad_norm(engine.state(), mesh);
      for (const Parameter* parameter : model.parameters()) {
        Pieces& all = pieces.at(parameter->name());
        all.local[mesh.rank()] = parameter->sharded().grad().clone();
        if (mesh.rank() == 0) all.layout = parameter->sharded_layout();
      }
    });
    Named got;
    for (const auto& [name, all] : pieces) got[name] = to_global(all);
    const auto [apart, worst] = distance(got, want);
    EXPECT_LE(apart, kTolerance) << kind.name << ": " << worst;
    for (const double norm : norms) {
      EXPECT_NEAR(norm / std::sqrt(want_norm), 1, kTolerance) << kind.name;
      EXPECT_EQ(norm, norms[0]) << "every rank clips alike";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Meshes, Composition,
                         ::testing::Values(Axes{{"dp", 1}, {"tp", 2}}, Axes{{"dp", 2}, {"tp", 1}},
                                           Axes{{"dp", 2}, {"tp", 2}}, Axes{{"tp", 2}, {"dp", 2}}),
                         [](const auto& info) {
                           std::string name;
                           for (const AxisSize& axis : info.param) name += axis.name + std::to_string(axis.size);
                           return name;
                         });

}  // namespace
}  // namespace caravan::testing::composition_test
