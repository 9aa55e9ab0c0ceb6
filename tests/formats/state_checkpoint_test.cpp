#include "caravan/formats/checkpoint/state_checkpoint.h"

#include <gmock/gmock.h>

#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/comm/tensor.h"
#include "tests/data/support.h"
#include "tests/techniques/together/steps.h"
#include "tests/techniques/together/technique.h"

namespace caravan::testing::state_checkpoint_test {
namespace {

void save(std::unique_ptr<StateOwner> owner, const Mesh& mesh, const std::filesystem::path& run) {
  TrainingState state;
  state.add(std::move(owner));
  save_checkpoint(run, {.step = 2}, checkpoint_pieces(state, mesh), mesh.world(), 0);
}

void load(std::unique_ptr<StateOwner> owner, const Mesh& mesh, const std::filesystem::path& run) {
  TrainingState state;
  state.add(std::move(owner));
  CheckpointReader reader(run / "step_000002");
  StateReader tensors(state, mesh, reader, {.may_leave_out = [](const std::string&) { return true; }});
  tensors.check();
  tensors.read();
}

/// The residual of each parameter, summed over the coordinates of the hook's axis, whole.
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

/// For any ranks and groups, the sum of the residuals is preserved. If the axis is the same, each coordinate gets its
/// own back; otherwise coordinate 0 gets all.
TEST(StateCheckpoint, KeepsTheSumOfResidualsForAnyNumberOfRanks) {
  const Problem problem(Architecture::gpt2());
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
      save(state_of_hook(engine), engine.mesh(), folder.path());
    });
    with_engine(one.choice_after, problem, one.after, [&](Engine& engine, Model&) {
      load(state_of_hook(engine), engine.mesh(), folder.path());
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

/// The optimizer of an engine.
class Moments final : public StateOwner {
 public:
  /// `is_apart`: each coordinate of dp has its own optimizer.
  Moments(Engine& engine, bool is_apart) {
    if (is_apart) engine.state().apart_axis = "dp";
    optimizer_ = std::make_unique<Sgd>(engine.state(), SgdOptions{.momentum = 0.9});
  }
  at::Tensor flat() const { return optimizer_->state().front().second.pieces().front().memory; }
  void walk(const Visit& visit) override { optimizer_->walk(visit); }

 private:
  std::unique_ptr<Optimizer> optimizer_;
};

/// Each rank gets its own back. Other numbers of ranks get the mean; if there was one for all, each gets that.
TEST(StateCheckpoint, KeepsOptimizersOfRanksThatStepApart) {
  const Problem problem(Architecture::gpt2());
  for (const int after : {1, 2, 3}) {
    for (const bool is_apart : {true, false}) {
      const TemporaryFolder folder;
      with_engine({}, problem, 3, [&](Engine& engine, Model&) {
        auto moments = std::make_unique<Moments>(engine, is_apart);
        moments->flat().fill_(is_apart ? 1 + engine.mesh().rank() : 5);
        save(std::move(moments), engine.mesh(), folder.path());
      });
      with_engine({}, problem, after, [&](Engine& engine, Model& model) {
        auto moments = std::make_unique<Moments>(engine, /*is_apart=*/true);
        const at::Tensor momentum = moments->flat().fill_(7);
        load(std::move(moments), engine.mesh(), folder.path());
        const double want = !is_apart ? 5 : after == 3 ? 1 + engine.mesh().rank() : 2;
        for (const Parameter* parameter : model.parameters()) {
          EXPECT_TRUE(engine.state().layout.view(momentum, *parameter).eq(want).all().item<bool>()) << after;
        }
      });
    }
  }
}

/// State of an owner outside the library: only the owner knows it.
class FurtherOwner final : public StateOwner {
 public:
  explicit FurtherOwner(Engine& engine)
      : outer(at::zeros_like(engine.model().parameters().front()->sharded().detach())), engine_(engine) {}
  void walk(const Visit& visit) override {
    const Parameter* weight = engine_.model().parameters().front();
    visit({.kind = StatePiece::Kind::moment,
           .name = "optimizer.outer." + weight->name(),
           .tensor = outer,
           .parameter = weight});
    visit({.kind = StatePiece::Kind::buffer,
           .name = "of_rank_0",
           .tensor = of_rank_0.t(),  // strided
           .spread = StatePiece::Spread::on_rank_0});
    visit({.kind = StatePiece::Kind::shared,
           .name = "of_axis",
           .tensor = of_axis,
           .spread = StatePiece::Spread::on_axis,
           .axis = "dp"});
    const at::Tensor count = at::full({1}, num_rounds, at::kLong);
    visit({.kind = StatePiece::Kind::count,
           .name = "rounds",
           .tensor = count,
           .spread = StatePiece::Spread::everywhere,
           .loaded = [this, count] { num_rounds = count.item<int64_t>(); }});
  }

  at::Tensor outer;
  at::Tensor of_rank_0 = at::zeros({2, 3});
  at::Tensor of_axis = at::zeros({2});
  int64_t num_rounds = 0;

 private:
  Engine& engine_;
};

TEST(StateCheckpoint, SavesAndReadsAFurtherOwner) {
  const Problem problem(Architecture::llama());
  const TemporaryFolder folder;
  at::Tensor want;
  const StrategyChoice shards{.data_parallel = technique_of("zero3", {{"share", "off"}})};
  with_engine({}, problem, 2, [&](Engine& engine, Model&) {
    auto owner = std::make_unique<FurtherOwner>(engine);
    const int rank = engine.mesh().rank();
    owner->outer.copy_(at::arange(owner->outer.numel()).view(owner->outer.sizes()));
    owner->of_rank_0.copy_(at::arange(6).view({2, 3}) + 100 * rank);
    owner->of_axis.fill_(3);
    owner->num_rounds = 5;
    if (rank == 0) want = owner->outer.clone();
    save(std::move(owner), engine.mesh(), folder.path());
  });
  with_engine(shards, problem, 3, [&](Engine& engine, Model& model) {
    auto made = std::make_unique<FurtherOwner>(engine);
    FurtherOwner& owner = *made;
    TrainingState state;
    state.add(std::move(made));
    CheckpointReader reader(folder / "step_000002");
    StateReader tensors(state, engine.mesh(), reader, {});
    tensors.check();
    EXPECT_EQ(owner.num_rounds, 0);
    tensors.read();
    EXPECT_EQ(owner.num_rounds, 5);
    EXPECT_TRUE(owner.of_rank_0.equal(at::arange(6, at::kFloat).view({2, 3})));
    EXPECT_TRUE(owner.of_axis.eq(3).all().item<bool>());
    EXPECT_TRUE(whole_of(owner.outer, *model.parameters().front(), engine.mesh()).equal(want));
    const auto bytes = state.bytes();
    EXPECT_EQ(bytes.at(StatePiece::Kind::moment), static_cast<int64_t>(owner.outer.nbytes()));
    EXPECT_EQ(bytes.at(StatePiece::Kind::buffer), 24);
    EXPECT_FALSE(bytes.contains(StatePiece::Kind::residual));
  });
}

/// Moments are stored in flat buffers, whose gaps take memory too; a storage counts once.
TEST(StateCheckpoint, CountsTheMemoryOfFlatBuffers) {
  const Problem problem(Architecture::gpt2());
  with_engine({.data_parallel = technique_of("zero2", {{"share", "off"}})}, problem, 3, [&](Engine& engine, Model&) {
    AdamW optimizer(engine.state());
    TrainingState state;
    state.add(state_of_model(engine));
    state.add(optimizer);
    int64_t want = 0;
    for (const auto& [name, flat] : optimizer.state()) want += static_cast<int64_t>(flat.to_tensor().nbytes());
    EXPECT_EQ(state.bytes().at(StatePiece::Kind::moment), want);
  });
}

/// A part of another shape is refused for any number of coordinates, and nothing is changed.
TEST(StateCheckpoint, RefusesPartsOfAnotherShape) {
  const TemporaryFolder folder;
  Problem other(Architecture::gpt2());
  other.config.width = 32;
  with_engine({}, other, 2, [&](Engine& engine, Model&) {
    save(std::make_unique<Moments>(engine, /*is_apart=*/true), engine.mesh(), folder.path());
  });
  with_engine({}, Problem(Architecture::gpt2()), 3, [&](Engine& engine, Model&) {
    auto moments = std::make_unique<Moments>(engine, /*is_apart=*/true);
    const at::Tensor momentum = moments->flat().fill_(7);
    try {
      load(std::move(moments), engine.mesh(), folder.path());
      ADD_FAILURE() << "reads moments of a wider model";
    } catch (const DataError& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr("in another shape optimizer.momentum."));
    }
    EXPECT_TRUE(momentum.eq(7).all().item<bool>());
  });
}

}  // namespace
}  // namespace caravan::testing::state_checkpoint_test
