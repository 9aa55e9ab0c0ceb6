/// Parameters with blocked shards under an engine: values, gradients and checkpoints, with rows over a data axis on
/// top.

#include <functional>
#include <map>
#include <memory>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "caravan/engine/engine.h"
#include "caravan/engine/training_state.h"
#include "caravan/formats/checkpoint/state_checkpoint.h"
#include "caravan/module/initialise.h"
#include "caravan/module/plan/plan.h"
#include "caravan/optim/optimizer.h"
#include "caravan/redistribute/piece.h"
#include "caravan/redistribute/redistribute.h"
#include "caravan/redistribute/whole.h"
#include "tests/data/support.h"
#include "tests/module/small_model.h"
#include "tests/redistribute/denote.h"

namespace caravan::testing::blocked_test {
namespace {

using Named = std::map<std::string, at::Tensor>;

Layout tp(const Placement& placement) { return {{"tp", placement}}; }

/// Columns, then rows, of the hidden units, which are cut as `hidden`: a shard of dim 0.
Plan column_row(const Shard& hidden) {
  const auto on = [&](int dim) {
    Shard shard = hidden;
    shard.dim = dim;
    return tp(shard);
  };
  return {.name = "column_row",
          .axes = {"tp"},
          .rows = {{.pattern = "*.mlp", .inputs = {tp(Replicate{})}},
                   {.pattern = "*.up", .parameters = {{"weight", on(0)}, {"bias", on(0)}}},
                   {.pattern = "*.down",
                    .parameters = {{"weight", on(1)}, {"bias", tp(Invariant{}), tp(Invariant{}), tp(Partial{})}},
                    .outputs = {tp(Invariant{})}}}};
}

/// Hidden units, 12, in 3 blocks of 4.
Shard even() { return {.dim = 0, .blocks = 3}; }
Shard uneven() { return {.dim = 0, .sizes = {3, 1}, .blocks = 3}; }
Shard not_blocked() { return {.dim = 0}; }

enum class Data { none, copies, rows };

struct Arrangement {
  Axes axes{{"dp", 1}, {"tp", 1}};
  Shard hidden = not_blocked();
  Data data = Data::none;
};

std::string name_of(const Arrangement& arrangement) {
  std::string name = Placement(arrangement.hidden).to_string();
  for (const AxisSize& axis : arrangement.axes) name += " " + axis.name + std::to_string(axis.size);
  return name + (arrangement.data == Data::rows ? " rows" : arrangement.data == Data::copies ? " copies" : "");
}

/// A model, its engine and its optimizer on one rank.
struct Trained {
  Trained(const Arrangement& arrangement, const Mesh& mesh_) : mesh(mesh_) {
    Strategy strategy = whole_model(model, mesh);
    const std::vector<int64_t> shape{rows(), kSequence};
    add_plan(strategy,
             std::make_shared<AppliedPlan>(apply(column_row(arrangement.hidden), model, mesh, {shape, shape})));
    if (arrangement.data != Data::none) add_data_axis(strategy, mesh, "dp");
    if (arrangement.data == Data::rows) shard_at_rows(strategy, mesh, "dp");
    splits = arrangement.data != Data::none;
    engine =
        std::make_unique<Engine>(model, mesh, std::move(strategy), Engine::Options{.seed = 3, .dtype = at::kDouble});
    optimizer = std::make_unique<AdamW>(engine->state());
  }

  int64_t rows() const { return 2 * kBatch / mesh["dp"].size(); }
  /// Of 2 * kBatch sequences, those of this coordinate of dp, or all without a data axis.
  void step(int number) {
    const int64_t all = 2 * kBatch;
    at::Tensor ids = at::arange(all * kSequence).mul(5 + number).remainder(kVocabulary).view({all, kSequence});
    at::Tensor labels = at::arange(all * kSequence).mul(3).remainder(5).view({all, kSequence});
    ForwardContext context{.loss_scale = 0.25};
    if (splits) {
      const int64_t first = mesh["dp"].coord() * rows();
      ids = ids.narrow(0, first, rows());
      labels = labels.narrow(0, first, rows());
      context.set(Dim::batch, DimIndex(first, rows(), all));
    }
    engine->begin_step(1);
    model.run({ids, labels}, context)[0].backward();
    engine->finish_step();
    for (const Parameter* parameter : model.parameters()) {
      gradients[parameter->name()] = whole(parameter->sharded().grad(), *parameter);
    }
    optimizer->step(1e-2);
  }

  at::Tensor whole(const at::Tensor& piece, const Parameter& parameter) const {
    return whole_tensor(piece, parameter.sharded_layout(), engine->mesh(), parameter.name());
  }
  Named values() const {
    Named all;
    for (const Parameter* parameter : model.parameters()) {
      all[parameter->name()] = whole(parameter->sharded().detach(), *parameter).clone();
    }
    return all;
  }

  void with_state(const std::function<void(TrainingState&)>& use) {
    TrainingState state;
    state.add(state_of_model(*engine));
    state.add(*optimizer);
    use(state);
  }
  void save(const std::filesystem::path& run) {
    with_state([&](TrainingState& state) {
      save_checkpoint(run, {.step = 2}, checkpoint_pieces(state, engine->mesh()), mesh.world(), 0);
    });
  }
  void load(const std::filesystem::path& run) {
    with_state([&](TrainingState& state) {
      CheckpointReader reader(run / "step_000002");
      reader.verify(mesh.world());
      StateReader tensors(state, engine->mesh(), reader, {});
      tensors.check();
      tensors.read();
    });
    optimizer->set_num_steps(2);
    engine->state().bump_version();
  }

  Mesh mesh;
  SmallModel model;
  bool splits = false;
  std::unique_ptr<Engine> engine;
  std::unique_ptr<AdamW> optimizer;
  Named gradients;
};

struct Outcome {
  Named start, gradients, end;
};

/// Two steps; saved in `run` if that is not empty.
Outcome two_steps(const Arrangement& arrangement, const std::filesystem::path& run = {}) {
  Outcome found;
  on_mesh(arrangement.axes, [&](const Mesh& mesh) {
    Trained trained(arrangement, mesh);
    const Named start = trained.values();
    for (int step = 0; step < 2; ++step) trained.step(step);
    const Named end = trained.values();
    if (mesh.rank() == 0) found = {start, trained.gradients, end};
    if (!run.empty()) trained.save(run);
  });
  return found;
}

/// fp64 sums in another order, through two steps of Adam, whose first moves by the sign of the gradient: 1e-9 is far
/// above their rounding and far below a wrong element.
void expect_same(const Named& got, const Named& want, const std::string& what, double tolerance = 1e-9) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (const auto& [name, tensor] : want) {
    EXPECT_TRUE(is_close(got.at(name), tensor, tolerance)) << name << ", " << what;
  }
}

const std::vector<Arrangement> kArrangements{{.axes = {{"dp", 1}, {"tp", 2}}, .hidden = even()},
                                             {.axes = {{"dp", 1}, {"tp", 2}}, .hidden = uneven()},
                                             {.axes = {{"dp", 2}, {"tp", 2}}, .hidden = even(), .data = Data::copies},
                                             {.axes = {{"dp", 2}, {"tp", 2}}, .hidden = even(), .data = Data::rows},
                                             {.axes = {{"tp", 2}, {"dp", 2}}, .hidden = uneven(), .data = Data::rows},
                                             {.axes = {{"dp", 1}, {"tp", 4}}, .hidden = even(), .data = Data::rows},
                                             {.axes = {{"dp", 2}, {"tp", 2}}, .data = Data::rows},
                                             {}};

TEST(Blocked, ValuesAndGradientsAreThoseOfOneProcess) {
  const Outcome want = two_steps({});
  for (const Arrangement& arrangement : kArrangements) {
    const Outcome got = two_steps(arrangement);
    expect_same(got.start, want.start, name_of(arrangement) + ", initial values", 0);
    expect_same(got.gradients, want.gradients, name_of(arrangement) + ", gradients");
    expect_same(got.end, want.end, name_of(arrangement) + ", trained values");
  }
}

/// What is not blocked, one rank included, reads what was saved in blocks, and the other way round: values, moments,
/// and the step that follows.
TEST(Blocked, CheckpointsAreReadUnderEveryOtherLayout) {
  Named next;
  on_mesh({{"dp", 1}, {"tp", 1}}, [&](const Mesh& mesh) {
    Trained trained({}, mesh);
    for (int step = 0; step < 3; ++step) trained.step(step);
    next = trained.values();
  });
  for (const Arrangement& writer : kArrangements) {
    const TemporaryFolder folder;
    const Outcome saved = two_steps(writer, folder.path());
    for (const Arrangement& reader : kArrangements) {
      const std::string what = name_of(writer) + " read as " + name_of(reader);
      on_mesh(reader.axes, [&](const Mesh& mesh) {
        Trained trained(reader, mesh);
        trained.load(folder.path());
        expect_same(trained.values(), saved.end, what, 0);
        trained.step(2);
        expect_same(trained.values(), next, what + ", the next step");
      });
    }
  }
}

/// A tensor of 3 blocks over 2 ranks is 6 boxes, which the manifest lists with their files.
TEST(Blocked, TheManifestListsTheBoxesOfEachPiece) {
  const TemporaryFolder folder;
  two_steps({.axes = {{"dp", 1}, {"tp", 2}}, .hidden = even()}, folder.path());
  const Manifest manifest = Manifest::read(folder / "step_000002");
  for (const char* name : {"first.mlp.up.weight", "first.mlp.down.weight", "optimizer.exp_avg.second.mlp.up.bias"}) {
    ASSERT_TRUE(manifest.tensors.contains(name)) << name;
    const ManifestTensor& tensor = manifest.tensors.at(name);
    EXPECT_EQ(tensor.pieces.size(), 6U) << name;
    std::map<std::string, int> of_file;
    for (const ManifestPiece& piece : tensor.pieces) ++of_file[piece.file];
    EXPECT_EQ(of_file, (std::map<std::string, int>{{"rank_00000.safetensors", 3}, {"rank_00001.safetensors", 3}}));
  }
  EXPECT_EQ(manifest.tensors.at("embedding.weight").pieces.size(), 1U);
}

TEST(Blocked, ParametersAreMaterialisedInBlocks) {
  SmallModel one;
  on_mesh({{"tp", 1}}, [&](const Mesh& mesh) { one.materialise(mesh, {}, {.seed = 5}); });
  const std::string up = "first.mlp.up.weight", down = "first.mlp.down.weight";
  Shard columns = uneven();
  columns.dim = 1;
  on_mesh({{"tp", 2}}, [&](const Mesh& mesh) {
    SmallModel model;
    model.materialise(mesh, {{up, tp(even())}, {down, tp(columns)}}, {.seed = 5});
    for (const Parameter* parameter : model.parameters()) {
      const Parameter* whole = nullptr;
      for (const Parameter* other : one.parameters()) whole = other->name() == parameter->name() ? other : whole;
      const auto boxes = local_boxes(parameter->global_shape(), parameter->sharded_layout(), mesh);
      EXPECT_EQ(boxes.size(), parameter->name() == up || parameter->name() == down ? 3U : 1U);
      EXPECT_TRUE(at::equal(parameter->sharded().detach(), piece_of(whole->sharded().detach(), boxes)))
          << parameter->name();
    }
  });
}

/// A flat buffer has one range for each coordinate of an axis that gathers it.
TEST(Blocked, AnAxisThatGathersParametersMayNotBeBlocked) {
  on_mesh({{"dp", 2}}, [](const Mesh& mesh) {
    SmallModel model;
    Strategy strategy = whole_model(model, mesh);
    add_data_axis(strategy, mesh, "dp");
    auto& layouts = strategy.layouts.at("first.mlp.up.weight");
    layouts.sharded = layouts.sharded.moved("dp", Shard{.dim = 0, .blocks = 3});
    EXPECT_TRUE(is_refused([&] { FlatLayout(strategy, mesh); }));
  });
}

}  // namespace
}  // namespace caravan::testing::blocked_test
