#include "caravan/techniques/averaging/replicas.h"

#include <gmock/gmock.h>

#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/redistribute/redistribute.h"
#include "caravan/techniques/data/ddp.h"
#include "tests/redistribute/denote.h"
#include "tests/techniques/together/one_process.h"

namespace caravan::testing::replicas_test {
namespace {

/// Only the controller has the batch and gets the logits; gradients are those of one process.
TEST(Replicas, MatchOneProcess) {
  const Problem problem(Architecture::llama());
  const Problem::Batch batch = problem.batch();
  Named want;
  at::Tensor want_logits;
  on_mesh({{"dp", 1}}, [&](const Mesh& mesh) {
    Model model(problem.config);
    Ddp engine(model, mesh);
    want_logits = model.run({batch.ids}, {.phase = Phase::evaluate})[0].detach();
    engine.begin_step();
    backward(model.run({batch.ids, batch.labels}, batch.context)[0], engine.strategy().loss_layout);
    engine.finish_step();
    want = gradients_of(model);
  });
  for (const int ranks : {2, 3, 4}) {
    on_mesh({{"dp", ranks}}, [&](const Mesh& mesh) {
      const bool is_controller = mesh.rank() == 0;
      Model model(problem.config);
      Replicas engine(model, mesh);
      const at::Tensor none = at::empty({0, Problem::kLength}, at::kLong);
      const int64_t before = mesh.bytes_sent();
      const at::Tensor ids = scatter_rows(is_controller ? batch.ids : none, Problem::kRows, mesh);
      const int64_t sent = mesh.bytes_sent() - before;
      EXPECT_EQ(sent, is_controller ? static_cast<int64_t>(batch.ids.nbytes()) / ranks * (ranks - 1) : 0);
      const at::Tensor labels = scatter_rows(is_controller ? batch.labels : none, Problem::kRows, mesh);
      EXPECT_EQ(ids.size(0), Problem::kRows / ranks);
      const at::Tensor part = model.run({ids}, {.phase = Phase::evaluate})[0].detach();
      const at::Tensor logits = gather_rows(part, Problem::kRows, mesh);
      EXPECT_EQ(logits.size(0), is_controller ? Problem::kRows : 0);
      EXPECT_TRUE(!is_controller || at::allclose(logits, want_logits, 1e-5, 1e-6));
      engine.begin_step();
      backward(model.run({ids, labels}, batch.context)[0], engine.strategy().loss_layout);
      engine.finish_step();
      for (const Parameter* parameter : model.parameters()) {
        const int64_t whole = want.at(parameter->name()).numel();
        EXPECT_EQ(parameter->sharded().numel(), is_controller ? whole : 0) << parameter->name();
      }
      if (!is_controller) return;
      const auto [apart, worst] = distance(gradients_of(model), want);
      EXPECT_LE(apart, 1e-5) << worst;  // another order of fp32 sums
    });
  }
}

}  // namespace
}  // namespace caravan::testing::replicas_test
