#include "caravan/module/plan/plan.h"

#include <gmock/gmock.h>
#include <map>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/comm/record.h"
#include "caravan/models/model.h"
#include "caravan/nn/loss/ignored_label.h"
#include "caravan/redistribute/piece.h"
#include "caravan/redistribute/redistribute.h"
#include "tests/module/small_model.h"
#include "tests/redistribute/denote.h"

namespace caravan::testing::plan_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// ---- plans ----

const Placement kR = Replicate{};
const Placement kI = Invariant{};
const Placement kP = Partial{};
Placement shard(int dim) { return Shard{dim}; }
Layout tp(const Placement& placement) { return {{"tp", placement}}; }

Plan column_row() {
  return {.name = "column_row",
          .axes = {"tp"},
          .rows = {{.pattern = "*.mlp", .inputs = {tp(kR)}},
                   {.pattern = "*.up", .parameters = {{"weight", tp(shard(0))}, {"bias", tp(shard(0))}}},
                   {.pattern = "*.down",
                    .parameters = {{"weight", tp(shard(1))}, {"bias", tp(kI), tp(kI), tp(kP)}},
                    .outputs = {tp(kI)}}}};
}

Layout blocked(int dim, int blocks, std::vector<int64_t> sizes = {}) {
  return tp(Shard{.dim = dim, .sizes = std::move(sizes), .blocks = blocks});
}

/// The 12 hidden units are 3 blocks of 4, each cut, as those of query, key and value in one weight.
Plan blocked_columns(const std::vector<int64_t>& sizes = {}) {
  Plan plan = column_row();
  plan.name = sizes.empty() ? "blocked_columns" : "blocked_columns_unevenly";
  plan.rows[1].parameters = {{"weight", blocked(0, 3, sizes)}, {"bias", blocked(0, 3, sizes)}};
  plan.rows[2].parameters[0].sharded = blocked(1, 3, sizes);
  return plan;
}

/// The norm takes the stream as R, while the residual takes the same tensor as I.
Plan replicated_norm() {
  Plan plan = column_row();
  plan.name = "replicated_norm";
  plan.rows[0] = {.pattern = "*.norm", .parameters = {{"weight", tp(kI), tp(kR)}}, .inputs = {tp(kR)}};
  return plan;
}

/// The stream is sharded along the sequence.
Plan sequence_parallel() {
  Plan plan = column_row();
  plan.name = "sequence_parallel";
  plan.rows.back().outputs = {tp(shard(1))};
  plan.rows.push_back({.pattern = "embedding", .outputs = {tp(shard(1))}});
  plan.rows.push_back({.pattern = "*.norm", .parameters = {{"weight", tp(kI), tp(kR)}}});
  plan.inputs = {tp(kI), tp(shard(1))};
  return plan;
}

/// The same with every second position on each rank.
Plan blocked_sequence() {
  Plan plan = sequence_parallel();
  plan.name = "blocked_sequence";
  const Layout blocks = blocked(1, 2);
  for (Plan::Row& row : plan.rows) {
    for (auto& output : row.outputs) output = output && *output == tp(shard(1)) ? blocks : output;
  }
  plan.inputs = {tp(kI), blocks};
  return plan;
}

/// Rows of the batch over one axis, columns and rows of weights over the other.
Plan on_two_axes() {
  const Layout stream{{"row", shard(0)}};
  const auto leaf = [](const Placement& col) { return Layout{{"col", col}, {"row", kR}}; };
  return {.name = "two_axes",
          .axes = {"row", "col"},
          .rows = {{.pattern = "embedding", .parameters = {{"weight", {}, leaf(kI)}}},
                   {.pattern = "*.norm", .parameters = {{"weight", {}, leaf(kI)}}},
                   {.pattern = "*.mlp", .inputs = {Layout{{"row", shard(0)}, {"col", kR}}}},
                   {.pattern = "*.up",
                    .parameters = {{"weight", {{"col", shard(0)}}, leaf(shard(0))},
                                   {"bias", {{"col", shard(0)}}, leaf(shard(0))}}},
                   {.pattern = "*.down",
                    .parameters = {{"weight", {{"col", shard(1)}}, leaf(shard(1))}, {"bias", {}, leaf(kI), leaf(kP)}},
                    .outputs = {Layout{{"row", shard(0)}, {"col", kI}}}}},
          .inputs = {stream, stream}};
}

// ---- one step on many ranks against one process ----

/// Sums the gradients of compute().
class Sums final : public GradientSink {
 public:
  explicit Sums(Module& model) : model_(model) {
    for (Parameter* parameter : model.parameters()) parameter->set_sink(this);
  }
  ~Sums() override {
    for (Parameter* parameter : model_.parameters()) parameter->set_sink(nullptr);
  }
  int64_t open_step() const noexcept override { return 0; }
  Sum sum_of(Parameter& parameter) override {
    at::Tensor& sum = sums_[&parameter];
    const bool is_empty = !sum.defined();
    if (is_empty) sum = at::empty(parameter.compute().sizes(), at::kDouble);
    return {sum, is_empty};
  }
  void accumulated(Parameter&) override {}
  void added_early(Parameter&) override {}
  void confirmed(Parameter&) override {}
  void withdrawn(Parameter&) override {}
  void defer(Parameter&, std::function<void()> work) override { work(); }
  /// As an engine does: through the derivation to the unsharded gradient, and from there to the sharded one.
  at::Tensor sharded(Parameter& parameter, const Mesh& mesh) {
    return redistribute(parameter.unsharded_gradient(sums_.at(&parameter)), parameter.unsharded_layout().dual(),
                        parameter.sharded_layout().dual(), mesh, parameter.name());
  }

 private:
  Module& model_;
  std::map<const Parameter*, at::Tensor> sums_;
};

struct Batch {
  at::Tensor ids = at::arange(kBatch * kSequence).mul(5).remainder(kVocabulary).view({kBatch, kSequence});
  at::Tensor labels = at::arange(kBatch * kSequence).mul(3).remainder(5).view({kBatch, kSequence});
  ForwardContext context{.loss_scale = 0.25};
};

Module::MaterialiseOptions in_fp64() {
  return {.seed = 3, .allocate = [](const Parameter&, const std::vector<int64_t>& shape) {
            return at::empty(shape, at::kDouble);
          }};
}

/// Allocates memory as an engine does: sharded parameters, and unsharded ones with the same values.
void materialise(Module& model, const AppliedPlan& applied, const Mesh& mesh) {
  std::map<std::string, Layout> rest;
  for (const auto& [name, layouts] : applied.layouts()) rest[name] = layouts.sharded;
  model.materialise(mesh, rest, in_fp64());
  for (Parameter* parameter : model.parameters()) {
    parameter->set_unsharded(parameter->sharded(),
                             applied.layouts().at(parameter->name()).unsharded.completed(mesh, Invariant{}));
  }
}

at::Tensor piece(const at::Tensor& x, const Layout& layout, const Mesh& mesh) {
  return piece_of(x, local_boxes(x.sizes().vec(), layout, mesh));
}

using Named = std::map<std::string, at::Tensor>;

/// "loss" and every gradient.
Named on_one_process(Module& model, const Batch& batch) {
  Named found;
  on_mesh({{"tp", 1}}, [&](const Mesh& mesh) {
    model.materialise(mesh, {}, in_fp64());
    Sums sums(model);
    const at::Tensor loss = model.run({batch.ids, batch.labels}, batch.context)[0];
    loss.backward();
    found["loss"] = loss.detach();
    for (Parameter* parameter : model.parameters()) found[parameter->name()] = sums.sharded(*parameter, mesh);
  });
  return found;
}

/// The same with the plan in force; also that a pass without gradients gives the same loss.
Named under(const Plan& plan, const Axes& axes, const Batch& batch,
            const std::function<std::unique_ptr<Module>()>& make) {
  std::map<std::string, Pieces> pieces;
  const std::unique_ptr<Module> any = make();
  for (const Parameter* parameter : any->parameters()) pieces[parameter->name()] = no_pieces(axes, {});
  pieces["loss"] = no_pieces(axes, {});
  on_mesh(axes, [&](const Mesh& mesh) {
    const std::unique_ptr<Module> model = make();
    const auto layout_of = [&](size_t i) { return i < plan.inputs.size() ? plan.inputs[i] : Layout{}; };
    const at::Tensor ids = piece(batch.ids, layout_of(0), mesh);
    const at::Tensor labels = piece(batch.labels, layout_of(1), mesh);
    const AppliedPlan applied = apply(plan, *model, mesh, {ids.sizes().vec(), labels.sizes().vec()});
    materialise(*model, applied, mesh);
    Sums sums(*model);
    const at::Tensor loss = model->run({ids, labels}, batch.context)[0];
    const Layout of_loss = applied.loss_layout().completed(mesh, Invariant{});
    backward(loss, of_loss);
    {
      const at::NoGradGuard no_grad;
      EXPECT_TRUE(is_close(model->run({ids, labels}, batch.context)[0], loss, 1e-14));
    }
    const auto keep = [&](const std::string& name, const at::Tensor& local, const Layout& layout) {
      pieces.at(name).local[mesh.rank()] = local;
      if (mesh.rank() == 0) pieces.at(name).layout = layout;
    };
    keep("loss", loss.detach(), of_loss);
    for (Parameter* parameter : model->parameters()) {
      keep(parameter->name(), sums.sharded(*parameter, mesh), parameter->sharded_layout());
    }
  });
  Named found;
  for (const auto& [name, all] : pieces) found[name] = to_global(all);
  return found;
}

void expect_same(const Named& got, const Named& want, double tolerance) {
  EXPECT_EQ(got.size(), want.size());
  for (const auto& [name, tensor] : want) {
    EXPECT_GT(tensor.abs().max().item<double>(), 0) << name;
    EXPECT_TRUE(is_close(got.at(name), tensor, tolerance)) << name;
  }
}

struct PlanCase {
  Plan plan;
  Axes axes;
};

class PlanOnRanks : public ::testing::TestWithParam<PlanCase> {};

/// fp64 sums in another order: 1e-12 is far above their rounding.
TEST_P(PlanOnRanks, MatchesOneProcess) {
  Batch batch;
  const at::Tensor shifted = at::arange(kSequence) * 2 + 3;
  const at::Tensor packed = at::stack({at::arange(kSequence), at::arange(kSequence).flip(0)});
  for (const at::Tensor& positions : {at::Tensor(), shifted, packed}) {
    batch.context.positions = positions;
    SmallModel whole;
    const Named want = on_one_process(whole, batch);
    expect_same(under(GetParam().plan, GetParam().axes, batch, [] { return std::make_unique<SmallModel>(); }), want,
                1e-12);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Plans, PlanOnRanks,
    ::testing::Values(PlanCase{column_row(), {{"tp", 1}}}, PlanCase{column_row(), {{"tp", 2}}},
                      PlanCase{column_row(), {{"tp", 4}}}, PlanCase{column_row(), {{"dp", 2}, {"tp", 2}}},
                      PlanCase{blocked_columns(), {{"tp", 2}}}, PlanCase{blocked_columns(), {{"tp", 4}}},
                      PlanCase{blocked_columns({3, 1}), {{"dp", 2}, {"tp", 2}}},
                      PlanCase{blocked_sequence(), {{"tp", 2}}}, PlanCase{blocked_sequence(), {{"tp", 1}}},
                      PlanCase{replicated_norm(), {{"tp", 2}}}, PlanCase{sequence_parallel(), {{"tp", 1}}},
                      PlanCase{sequence_parallel(), {{"tp", 2}}}, PlanCase{sequence_parallel(), {{"tp", 4}}},
                      PlanCase{sequence_parallel(), {{"tp", 2}, {"dp", 2}}},
                      PlanCase{on_two_axes(), {{"row", 2}, {"col", 2}}},
                      PlanCase{on_two_axes(), {{"col", 4}, {"row", 1}}}),
    [](const auto& info) {
      std::string name = info.param.plan.name;
      for (const AxisSize& axis : info.param.axes) {
        name += "_" + axis.name + std::to_string(axis.size);
      }
      return name;
    });

// ---- what is found before anything runs ----

/// Rank `rank` of a mesh that sends nothing.
Mesh recorded(const Axes& axes = {{"tp", 2}}, int rank = 0) {
  return Mesh::create(make_record_world(rank, num_ranks(axes)), axes);
}

const std::vector<std::vector<int64_t>> kShapes{{kBatch, kSequence}, {kBatch, kSequence}};

template <typename E>
std::string refusal(const Plan& plan, Module& model) {
  return message_of<E>([&] { (void)apply(plan, model, recorded(), kShapes); });
}

template <typename E>
std::string refusal(const Plan& plan) {
  SmallModel model;
  return refusal<E>(plan, model);
}

TEST(Plan, LaysOutEveryParameterOnItsAxesOnly) {
  SmallModel model;
  const AppliedPlan applied = apply(sequence_parallel(), model, recorded({{"dp", 3}, {"tp", 2}}),
                                    {{kBatch, kSequence}, {kBatch, kSequence / 2}});
  EXPECT_EQ(applied.layouts().size(), model.parameters().size());
  EXPECT_EQ(applied.layouts().at("embedding.weight").sharded, tp(kI));
  EXPECT_EQ(applied.layouts().at("first.norm.weight").sharded, tp(kI));
  EXPECT_EQ(applied.layouts().at("first.norm.weight").unsharded, tp(kR));
  EXPECT_EQ(applied.layouts().at("second.mlp.down.weight").unsharded, tp(shard(1)));
  EXPECT_EQ(applied.layouts().at("second.mlp.down.bias").unsharded, tp(kI)) << "it is P in compute only";
  EXPECT_EQ(applied.loss_layout(), tp(kP));
  for (const Parameter* parameter : model.parameters()) {
    EXPECT_FALSE(parameter->unsharded().defined()) << parameter->name();
    EXPECT_EQ(parameter->is_derived(), parameter->name().ends_with("down.bias")) << parameter->name();
  }
}

TEST(Plan, PrintsItsRedistributions) {
  SmallModel model;
  const AppliedPlan applied = apply(column_row(), model, recorded(), kShapes);
  const std::string text = applied.to_string();
  EXPECT_THAT(text, HasSubstr("plan column_row                   over tp\n"
                              "the model                         tp=I, tp=I -> tp=I\n"
                              "embedding                         tp=I -> tp=I\n"
                              "  embedding.weight [6, 8]         tp=I\n"
                              "first                             tp=I -> tp=I\n"
                              "first.norm                        tp=I -> tp=I\n"
                              "  first.norm.weight [8]           tp=I\n"
                              "first.mlp                         tp=R -> tp=I\n"
                              "  input 0                         tp=I -> tp=R (free)\n"
                              "first.mlp.up                      tp=R -> tp=S(2)\n"
                              "  first.mlp.up.weight [12, 8]     tp=S(0)\n"
                              "  first.mlp.up.bias [12]          tp=S(0)\n"
                              "first.mlp.noise                   tp=S(2) -> tp=S(2)\n"
                              "first.mlp.down                    tp=S(2) -> tp=I\n"
                              "  output 0                        tp=P -> tp=I (sends 256 B)\n"
                              "  first.mlp.down.weight [8, 12]   tp=S(1)\n"
                              "  first.mlp.down.bias [8]         tp=I, compute tp=P\n"));
  EXPECT_TRUE(text.ends_with("loss                              tp=I")) << text;
}

TEST(Plan, WorksOnAnAxisThatWasFactoredOrJoined) {
  SmallModel on_factored;
  const Mesh factored = recorded({{"tp", 4}}, 3).factor("tp", {{"outer", 2}, {"inner", 2}});
  EXPECT_EQ(apply(column_row(), on_factored, factored, kShapes).loss_layout(), tp(kI));
  SmallModel on_joined;
  const Mesh joined = recorded({{"outer", 2}, {"inner", 2}}).join("tp", {"outer", "inner"});
  EXPECT_EQ(apply(column_row(), on_joined, joined, kShapes).loss_layout(), tp(kI));
}

TEST(Plan, WithoutAxesChecksNothing) {
  SmallModel model;
  const AppliedPlan applied = apply({.name = "none"}, model, recorded(), kShapes);
  EXPECT_TRUE(applied.layouts().at("first.norm.weight").unsharded.empty());
  EXPECT_TRUE(applied.loss_layout().empty());
}

TEST(Plan, LeavesTheModelAsItWasAfterAnError) {
  SmallModel model;
  Plan wrong = column_row();
  wrong.rows[0].inputs = {};
  EXPECT_NE(refusal<LayoutError>(wrong, model), "");
  for (const Parameter* parameter : model.parameters()) {
    EXPECT_FALSE(parameter->sharded().defined() || parameter->is_derived()) << parameter->name();
  }
  EXPECT_EQ(apply(column_row(), model, recorded(), kShapes).loss_layout(), tp(kI));
}

TEST(Plan, NamesTheNearestModuleAndParameter) {
  Plan plan = column_row();
  plan.rows[0].pattern = "*.mlq";
  EXPECT_THAT(refusal<UsageError>(plan), AllOf(HasSubstr("'*.mlq'"), HasSubstr("the nearest is '*.mlp'")));
  plan.rows[0].pattern = "fist.*.upp";
  EXPECT_THAT(refusal<UsageError>(plan), HasSubstr("the nearest is 'fist.*.up'"));
  plan.rows[0].pattern = "embeding";
  EXPECT_THAT(refusal<UsageError>(plan), HasSubstr("the nearest is 'embedding'"));
  plan = column_row();
  plan.rows[1].parameters[0].name = "weights";
  EXPECT_THAT(refusal<UsageError>(plan), AllOf(HasSubstr("module 'first.mlp.up' has no parameter 'weights'"),
                                               HasSubstr("the nearest is 'weight'")));
}

TEST(Plan, RefusesInvalidRows) {
  const auto with = [](const Plan::Row& row) {
    Plan plan = column_row();
    plan.rows.push_back(row);
    return plan;
  };
  const auto scale = [](const Plan::ParameterRow& row) { return Plan::Row{.pattern = "*.norm", .parameters = {row}}; };
  EXPECT_THAT(refusal<UsageError>(with({.pattern = "*.up", .parameters = {{"bias", tp(kI)}}})),
              AllOf(HasSubstr("two rows lay out first.mlp.up.bias differently"), HasSubstr("tp=S(0), or tp=I")));
  EXPECT_THAT(refusal<UsageError>(with({.pattern = "first.mlp", .inputs = {tp(kI)}})),
              HasSubstr("two rows lay out first.mlp, input 0 differently"));
  EXPECT_EQ(refusal<UsageError>(with({.pattern = "first.mlp", .inputs = {tp(kR)}})), "") << "the same twice";
  EXPECT_THAT(refusal<UsageError>(with({.pattern = "first.mlp", .inputs = {{}, tp(kI)}})),
              HasSubstr("lays out input 1 of first.mlp, but the forward pass has none"));
  EXPECT_THAT(refusal<UsageError>(with(scale({"weight", {{"dp", shard(0)}}}))),
              AllOf(HasSubstr("first.norm.weight is laid out on dp"), HasSubstr("its axes are tp")));
  EXPECT_THAT(refusal<LayoutError>(with(scale({"weight", tp(kR)}))), HasSubstr("is sharded R on tp"));
  EXPECT_THAT(refusal<LayoutError>(with(scale({"weight", tp(kI), tp(kP)}))),
              HasSubstr("its unsharded layout is P on tp"));
  Plan plan = column_row();
  plan.axes = {"cp"};
  EXPECT_THAT(refusal<UsageError>(plan), HasSubstr("cp"));
}

TEST(Plan, RefusesADimThatDoesNotDivide) {
  SmallModel model;
  EXPECT_THAT(message_of<ShapeError>([&] {
                (void)apply(column_row(), model, recorded({{"tp", 5}}), kShapes);
              }),
              HasSubstr("mlp.up.weight [12, 8]"));
}

TEST(Plan, RefusesAModelThatHasMemoryOrAnotherPlan) {
  SmallModel model;
  const AppliedPlan applied = apply(column_row(), model, recorded(), kShapes);
  EXPECT_THAT(refusal<UsageError>(column_row(), model), HasSubstr("first.mlp.down.bias is derived"));
  SmallModel other;
  Plan gathered = column_row();  // without derivations
  gathered.rows[1].outputs = {tp(kR)};
  gathered.rows[2].parameters = {{"weight", tp(kI), tp(kR)}, {"bias", tp(kI), tp(kR)}};
  const AppliedPlan first = apply(gathered, other, recorded(), kShapes);
  EXPECT_THAT(refusal<UsageError>(gathered, other), HasSubstr("plan column_row is in force"));
  SmallModel full;
  full.materialise(recorded(), {}, in_fp64());
  EXPECT_THAT(refusal<UsageError>(column_row(), full), HasSubstr("embedding.weight has memory"));
}

TEST(Plan, NamesProducerAndConsumerAndTheRedistributionThatIsMissing) {
  Plan plan = column_row();
  plan.rows[0].inputs = {};
  EXPECT_THAT(refusal<LayoutError>(plan),
              AllOf(HasSubstr("first.mlp.up, op bsk,nk->bsn"), HasSubstr("the output of first.norm (I)"),
                    HasSubstr("parameter first.mlp.up.weight (S(0))"),
                    HasSubstr("redistribute the output of first.norm I -> R first")));
  plan = column_row();
  plan.rows[2].outputs = {tp(kR)};
  EXPECT_THAT(refusal<LayoutError>(plan),
              AllOf(HasSubstr("first, op bsf,bsf->bsf"), HasSubstr("the output of embedding (I)"),
                    HasSubstr("the output of first.noise (R)")));
}

TEST(Plan, RefusesAnInvariantNormWeightOnAShardedStream) {
  Plan plan = sequence_parallel();
  plan.rows.pop_back();
  plan.rows.push_back({.pattern = "*.norm", .parameters = {{"weight", tp(kI)}}});
  EXPECT_THAT(refusal<LayoutError>(plan),
              AllOf(HasSubstr("first.norm"), HasSubstr("redistribute parameter first.norm.weight I -> R"),
                    HasSubstr("in the plan: unsharded R")));
}

TEST(Plan, RefusesAnInvariantBiasOnAPartialSum) {
  Plan plan = column_row();
  plan.rows[2].parameters.pop_back();
  EXPECT_THAT(refusal<LayoutError>(plan), AllOf(HasSubstr("redistribute parameter first.mlp.down.bias I -> P"),
                                                HasSubstr("in the plan: compute P")));
}

TEST(Plan, RefusesALossThatWouldCountOncePerRank) {
  Plan plan{.name = "gather", .axes = {"tp"}};
  plan.rows.push_back({.pattern = "head", .inputs = {tp(kR)}});
  EXPECT_THAT(refusal<LayoutError>(plan), HasSubstr("the loss is R on axis tp"));
}

/// A module of a function.
class Made final : public Module {
 public:
  using Function = std::function<Tensors(const Tensors& inputs, const ForwardContext& context)>;
  explicit Made(Function function) : function_(std::move(function)) {}
  template <typename M>
  M& add(const std::string& name) {
    return register_module<M>(name);
  }

 protected:
  Tensors forward(Tensors inputs, const ForwardContext& context) override { return function_(inputs, context); }

 private:
  Function function_;
};

TEST(Plan, RefusesAnOperationWithoutAType) {
  Lookup* embedding = nullptr;
  Scale* norm = nullptr;
  Made model([&](const Tensors& inputs, const ForwardContext& context) {
    const at::Tensor x = at::tanh((*embedding)(inputs[0], context));
    return Tensors{(*norm)(x, context)};
  });
  embedding = &model.add<Lookup>("embedding");
  norm = &model.add<Scale>("norm");
  const Plan plan{.name = "nothing", .axes = {"tp"}, .rows = {}};
  EXPECT_THAT(refusal<LayoutError>(plan, model),
              AllOf(HasSubstr("norm: takes a tensor [2, 4, 8]"), HasSubstr("without a type")));
}

TEST(Plan, RefusesAModuleThatIsRunWithTwoLayouts) {
  Lookup* embedding = nullptr;
  SmallMlp* mlp = nullptr;
  Scale* scale = nullptr;
  Made model([&](const Tensors& inputs, const ForwardContext& context) {
    const at::Tensor x = (*embedding)(inputs[0], context);
    return Tensors{(*scale)(mlp->run({(*scale)(x, context)}, context)[0], context)};
  });
  embedding = &model.add<Lookup>("embedding");
  scale = &model.add<Scale>("scale");
  mlp = &model.add<SmallMlp>("mlp");
  const Plan plan{.name = "twice", .axes = {"tp"}, .rows = {{.pattern = "mlp", .outputs = {tp(shard(1))}}}};
  EXPECT_THAT(refusal<LayoutError>(plan, model),
              AllOf(HasSubstr("scale, input 0"), HasSubstr("tp=I in one run"), HasSubstr("tp=S(1) in another")));
}

/// The index and the positions of a module do not depend on cuts by an outer module, also when it runs again later.
TEST(Plan, GivesAModuleThatRunsAgainLaterTheSameContext) {
  on_mesh({{"tp", 2}}, [](const Mesh& mesh) {
    SmallModel model;
    const AppliedPlan applied = apply(sequence_parallel(), model, mesh, {{kBatch, kSequence}, {kBatch, kSequence / 2}});
    materialise(model, applied, mesh);
    at::Tensor before;
    std::function<at::Tensor()> again;
    const Hook hook = model.find("first.mlp")
                          .add_hook(
                              [&](Module&, Tensors inputs, const ForwardContext& context, const Next& next) {
                                Tensors outputs = next(inputs, context);
                                before = outputs[0];
                                again = [=] { return next(inputs, context)[0]; };
                                return outputs;
                              },
                              Module::Place::outermost);
    Batch batch;
    batch.context.positions = at::arange(kSequence) * 2 + 3;
    model.run({batch.ids, piece(batch.labels, tp(shard(1)), mesh)}, batch.context);
    EXPECT_TRUE(is_close(again(), before, 0));
  });
}

TEST(Plan, RefusesATensorThatTheDryRunHasNotSeen) {
  Lookup* embedding = nullptr;
  SquaredError* head = nullptr;
  Made model([&](const Tensors& inputs, const ForwardContext& context) {
    const at::Tensor x = (*embedding)(inputs[0], context);
    return inputs.size() == 1 ? Tensors{x} : head->run({x, inputs[1]}, context);
  });
  embedding = &model.add<Lookup>("embedding");
  head = &model.add<SquaredError>("head");
  const Plan plan{.name = "sum", .axes = {"tp"}, .rows = {{.pattern = "", .outputs = {tp(kP)}}}};
  const Mesh mesh = recorded();
  const AppliedPlan applied = apply(plan, model, mesh, kShapes);
  materialise(model, applied, mesh);
  const Batch batch;
  EXPECT_THAT(message_of<LayoutError>([&] { model.run({batch.ids}, batch.context); }),
              HasSubstr("the model, output 0: has 3 dims, but 0 in the dry run"));
}

// ---- the real models ----

Plan column_row_of(Architecture kind) {
  const bool has_bias = kind == Architecture::gpt2();
  const auto columns = [&](const std::string& pattern) {
    Plan::Row row{.pattern = pattern, .parameters = {{"weight", tp(shard(0))}}};
    if (has_bias) row.parameters.push_back({"bias", tp(shard(0))});
    return row;
  };
  const auto rows = [&](const std::string& pattern) {
    Plan::Row row{.pattern = pattern, .parameters = {{"weight", tp(shard(1))}}, .outputs = {tp(kI)}};
    if (has_bias) row.parameters.push_back({"bias", tp(kI), tp(kI), tp(kP)});
    return row;
  };
  Plan plan{.name = "tensor_1d",
            .axes = {"tp"},
            .rows = {{.pattern = "*.attention", .inputs = {tp(kR)}},
                     {.pattern = "*.mlp", .inputs = {tp(kR)}},
                     columns("*.attention.query"),
                     columns("*.attention.key"),
                     columns("*.attention.value"),
                     columns("*.mlp.up"),
                     rows("*.attention.output"),
                     rows("*.mlp.down")}};
  if (!has_bias) plan.rows.push_back(columns("*.mlp.gate"));
  return plan;
}

/// The stream is sharded along the sequence from the token embedding to the loss.
Plan sequence_parallel_of(Architecture kind) {
  Plan plan = column_row_of(kind);
  plan.name = "sequence_parallel";
  for (Plan::Row& row : plan.rows) {
    if (!row.outputs.empty()) row.outputs = {tp(shard(1))};
  }
  const auto leaf_is_replicated = [&](const std::string& pattern, const std::vector<std::string>& names) {
    Plan::Row row{.pattern = pattern};
    for (const std::string& name : names) row.parameters.push_back({name, tp(kI), tp(kR)});
    plan.rows.push_back(row);
  };
  const bool is_gpt2 = kind == Architecture::gpt2();
  leaf_is_replicated("*norm",
                     is_gpt2 ? std::vector<std::string>{"weight", "bias"} : std::vector<std::string>{"weight"});
  leaf_is_replicated("embedding.token", {"weight"});
  plan.rows.back().outputs = {tp(shard(1))};
  if (is_gpt2) leaf_is_replicated("embedding.position", {"weight"});
  leaf_is_replicated("head", {"weight"});
  plan.rows.back().inputs = {{}, tp(shard(1))};  // of the labels
  return plan;
}

class PlanOfModel : public ::testing::TestWithParam<Architecture> {};

/// With dropout, so that random numbers are compared too. fp64: 1e-10 as for all sums in another order.
TEST_P(PlanOfModel, MatchesOneProcess) {
  const ModelConfig config{.arch = GetParam(),
                           .layers = 2,
                           .width = 16,
                           .heads = 4,
                           .kv_heads = GetParam() == Architecture::llama() ? 2 : 0,
                           .context = 8,
                           .vocabulary = 24,
                           .hidden = 24,
                           .tie_embeddings = GetParam() == Architecture::gpt2(),
                           .dropout = 0.25};
  Batch batch;
  const at::Tensor tokens = at::arange(4 * 9).mul(7).remainder(24).view({4, 9});
  batch.ids = tokens.narrow(1, 0, 8).contiguous();
  batch.labels = tokens.narrow(1, 1, 8).contiguous();
  batch.labels[0][0] = kIgnoredLabel;
  batch.context.loss_scale = 1.0 / 31;
  const auto make = [&] { return make_model(config); };
  const auto whole = make();
  const Named want = on_one_process(*whole, batch);
  for (const Plan& plan : {column_row_of(config.arch), sequence_parallel_of(config.arch)}) {
    for (const int n : {1, 2}) {
      SCOPED_TRACE(plan.name + " on " + std::to_string(n));
      expect_same(under(plan, {{"tp", n}}, batch, make), want, 1e-10);
    }
  }
  const auto applied = apply(column_row_of(config.arch), *make(), recorded(), {{4, 8}, {4, 8}});
  EXPECT_EQ(applied.loss_layout(), tp(kI));
}

INSTANTIATE_TEST_SUITE_P(Models, PlanOfModel, ::testing::Values(Architecture::gpt2(), Architecture::llama()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace caravan::testing::plan_test
