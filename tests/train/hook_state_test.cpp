#include "caravan/train/hook_state.h"

#include <gtest/gtest.h>

#include "caravan/comm/tensor.h"
#include "tests/data/support.h"
#include "tests/parallel/steps.h"
#include "tests/parallel/technique.h"

namespace caravan::testing::hook_state_test {
namespace {

/// The sum over the coordinates of the hook's axis of what each parameter's residual is, whole.
Named residuals(const Engine& engine) {
  const at::NoGradGuard no_grad;
  const FlatLayout& layout = engine.state().layout;
  const at::Tensor flat = engine.strategy().hook->summands().front().second;
  Named all;
  for (const Slot& slot : layout.slots()) {
    at::Tensor sum = layout.view(flat, *slot.parameter).clone();
    const MeshAxis axis = engine.mesh()[engine.strategy().hook_axis];
    all_reduce_async(axis.comm(), sum, sum, ReduceOp::sum, "residuals").wait();
    all[slot.parameter->name()] = whole_of(sum, *slot.parameter, engine.mesh());
  }
  return all;
}

struct Case {
  int before, after;
  bool has_same_axis;
  StrategyChoice choice_before, choice_after;
};

/// Whatever the ranks and groups, together the residuals are what they were. Where the axis is the same, each
/// coordinate has its own again; else coordinate 0 has all.
TEST(HookState, IsKeptInSumForAnyNumberOfRanks) {
  const Problem problem(ModelKind::gpt2);
  const StrategyChoice topk{.hook = hook_of("topk", {{"hook_fraction", 0.05}})};
  const StrategyChoice powersgd{.hook = hook_of("powersgd", {{"hook_rank", 1}})};
  const StrategyChoice hsdp{.data_parallel = technique_of("hsdp", {{"shard", 2}, {"accumulate", "full"}}),
                            .hook = hook_of("powersgd", {{"hook_rank", 1}})};
  for (const Case& one :
       {Case{3, 2, false, topk, topk}, Case{2, 2, true, topk, topk}, Case{4, 3, false, hsdp, powersgd},
        Case{2, 4, true, powersgd, hsdp}, Case{3, 1, false, powersgd, powersgd}}) {
    const TemporaryFolder folder;
    Named want;
    with_engine(one.choice_before, problem, one.before, [&](Engine& engine, Model& model) {
      for (int step = 0; step < 2; ++step) run_passes(engine, model, problem, step, 1);
      const Named all = residuals(engine);
      if (engine.mesh().rank() == 0) want = all;
      save_checkpoint(folder.path(), {.step = 2}, hook_pieces(engine), engine.mesh().world(), 0);
    });
    with_engine(one.choice_after, problem, one.after, [&](Engine& engine, Model&) {
      CheckpointReader reader(folder / "step_000002");
      read_hook(engine, reader);
      const Named got = residuals(engine);
      for (const auto& [name, tensor] : want) {
        EXPECT_TRUE(at::allclose(got.at(name), tensor, 1e-6, 1e-9)) << name << " " << one.before << one.after;
        const bool is_left_out =
            one.choice_before.hook.name() == "topk" || tensor.dim() >= 2;  // powersgd sums vectors whole
        EXPECT_EQ(tensor.abs().max().item<double>() > 0, is_left_out) << name << " " << one.choice_before.hook.name();
      }
      const MeshAxis axis = engine.mesh()[engine.strategy().hook_axis];
      const at::Tensor own = engine.strategy().hook->summands().front().second;
      EXPECT_EQ(own.abs().max().item<double>() > 0, one.has_same_axis || axis.coord() == 0);
    });
  }
}

}  // namespace
}  // namespace caravan::testing::hook_state_test
