#include "caravan/module/module.h"

#include <gmock/gmock.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/comm/record.h"
#include "tests/redistribute/denote.h"

namespace caravan::testing::module_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Scale final : public Layer {
 public:
  explicit Scale(int64_t width)
      : weight_(register_parameter("weight", {.shape = {width}, .init = {Init::Kind::ones}, .decays = false})) {}
  Parameter& weight() { return weight_; }

 protected:
  at::Tensor forward(const at::Tensor& input, const ForwardContext&) override { return input * weight_.compute(); }

 private:
  Parameter& weight_;
};

/// A block with a matrix and a child; a tree whose second block uses the first one's matrix again.
class Block final : public Layer {
 public:
  explicit Block(Parameter* shared = nullptr)
      : matrix_(shared != nullptr ? share_parameter(*shared)
                                  : register_parameter("matrix", {.shape = {6, 4}, .init = {Init::Kind::normal, 0.5}})),
        scale_(register_module<Scale>("scale", 4)) {}
  Parameter& matrix() { return matrix_; }

 protected:
  at::Tensor forward(const at::Tensor& input, const ForwardContext& context) override {
    return scale_(input.matmul(matrix_.compute().t()).matmul(matrix_.compute()), context);
  }

 private:
  Parameter& matrix_;
  Scale& scale_;
};

class Tree final : public Layer {
 public:
  Tree()
      : first_(register_module<Block>("first")),
        second_(register_module<Block>("second", &first_.matrix())),
        bias_(register_parameter("bias", {.shape = {4}})) {}
  std::vector<Module*> blocks() override { return {&first_, &second_}; }

 protected:
  at::Tensor forward(const at::Tensor& input, const ForwardContext& context) override {
    return second_(first_(input, context), context) + bias_.compute();
  }

 private:
  Block& first_;
  Block& second_;
  Parameter& bias_;
};

Mesh record_mesh(int rank, const Axes& axes) { return Mesh::create(make_record_world(rank, num_ranks(axes)), axes); }
Mesh lone_mesh() { return record_mesh(0, {}); }

std::vector<std::string> names_of(const std::vector<Parameter*>& parameters) {
  std::vector<std::string> names;
  for (const Parameter* parameter : parameters) names.push_back(parameter->name());
  return names;
}

TEST(Module, NamesAreDottedPathsAndASharedSlotIsThereOnce) {
  Tree tree;
  EXPECT_THAT(names_of(tree.parameters()),
              ElementsAre("bias", "first.matrix", "first.scale.weight", "second.scale.weight"));
  EXPECT_THAT(names_of(tree.find("second").own_parameters()), ElementsAre("first.matrix"));
  std::vector<std::string> modules;
  for (const Module* module : tree.modules()) modules.push_back(module->name());
  EXPECT_THAT(modules, ElementsAre("", "first", "first.scale", "second", "second.scale"));
  EXPECT_EQ(tree.find("first").find("scale").name(), "first.scale");
  EXPECT_THAT(message_of<UsageError>([&] { tree.find("secnod.scale"); }), HasSubstr("'second.scale'"));
}

// ---- hooks ----

/// Notes "name(" and ")" around what is inside.
Around noting(std::vector<std::string>& order, const std::string& name) {
  return [&order, name](Module&, Tensors inputs, const ForwardContext& context, const Next& next) {
    order.push_back(name + "(");
    Tensors outputs = next(std::move(inputs), context);
    order.push_back(")");
    return outputs;
  };
}

Around times(double factor) {
  return [factor](Module&, Tensors inputs, const ForwardContext& context, const Next& next) {
    inputs[0] = inputs[0] * factor;
    return next(std::move(inputs), context);
  };
}

struct Hooks : ::testing::Test {
  Hooks() { tree.materialise(lone_mesh(), {}, {}); }
  at::Tensor run() { return tree(x, {}); }
  std::vector<std::string> order_of_run() {
    order.clear();
    run();
    return order;
  }

  Tree tree;
  Module& first = tree.find("first");
  at::Tensor x = at::ones({2, 4});
  std::vector<std::string> order;
};

TEST_F(Hooks, AreInsideEarlierOnesOrOutermost) {
  const Hook a = first.add_hook(noting(order, "a"));
  const Hook b = first.add_hook(noting(order, "b"));
  const Hook scale = tree.find("first.scale").add_hook(noting(order, "scale"));
  const Hook second = tree.find("second").add_hook(noting(order, "second"));
  EXPECT_THAT(order_of_run(), ElementsAre("a(", "b(", "scale(", ")", ")", ")", "second(", ")"));
  const Hook c = first.add_hook(noting(order, "c"), Module::Place::outermost);
  const Hook d = first.add_hook(noting(order, "d"), Module::Place::innermost);
  const Hook e = first.add_hook(noting(order, "e"), Module::Place::outermost);
  EXPECT_THAT(order_of_run(),
              ElementsAre("e(", "c(", "a(", "b(", "d(", "scale(", ")", ")", ")", ")", ")", ")", "second(", ")"));
}

TEST_F(Hooks, MayChangeInputsOutputsAndContext) {
  const at::Tensor plain = run();
  const Hook in = first.add_hook(times(3));
  EXPECT_TRUE(at::allclose(run(), 3 * plain));
  const Hook out = first.add_hook([](Module&, Tensors inputs, const ForwardContext& context, const Next& next) {
    Tensors outputs = next(std::move(inputs), context);
    outputs[0] = outputs[0] / 3;
    return outputs;
  });
  EXPECT_TRUE(at::allclose(run(), plain));
  int64_t seen = 0;
  const Hook other_step = first.add_hook([](Module&, Tensors inputs, const ForwardContext& context, const Next& next) {
    ForwardContext changed = context;
    changed.step = 7;
    return next(std::move(inputs), changed);
  });
  const Hook reads =
      tree.find("first.scale")
          .add_hook([&](Module& module, Tensors inputs, const ForwardContext& context, const Next& next) {
            EXPECT_EQ(module.name(), "first.scale");
            seen = context.step;
            return next(std::move(inputs), context);
          });
  run();
  EXPECT_EQ(seen, 7);
  const Hook instead = first.add_hook(
      [](Module&, Tensors inputs, const ForwardContext&, const Next&) { return inputs; }, Module::Place::outermost);
  seen = 0;
  run();
  EXPECT_EQ(seen, 0) << "without next nothing inside runs";
}

TEST_F(Hooks, LiveAsLongAsTheirHandle) {
  const at::Tensor plain = run();
  {
    Hook a = first.add_hook(times(2));
    Hook b = first.add_hook(times(5));
    EXPECT_TRUE(at::allclose(run(), 10 * plain));
    a.remove();
    EXPECT_TRUE(at::allclose(run(), 5 * plain));
    a.remove();
    Hook moved = std::move(b);
    EXPECT_TRUE(at::allclose(run(), 5 * plain));
    moved = first.add_hook(times(7));  // that of b is removed
    EXPECT_TRUE(at::allclose(run(), 7 * plain));
    a = std::move(moved);
    EXPECT_TRUE(at::allclose(run(), 7 * plain));
  }
  EXPECT_TRUE(at::equal(run(), plain));
}

TEST_F(Hooks, MayOutliveTheirModule) {
  Hook hook;
  {
    Tree other;
    hook = other.find("first").add_hook(times(2));
  }
  hook.remove();
  EXPECT_NO_THROW(hook = Hook());
}

/// A run continues with the hooks with which it started.
TEST_F(Hooks, MayBeRemovedAndAddedWhileTheyRun) {
  Hook inner = first.add_hook(noting(order, "inner"));
  Hook added;
  Hook outer = first.add_hook(
      [&](Module& module, Tensors inputs, const ForwardContext& context, const Next& next) {
        order.push_back("outer(");
        inner.remove();
        outer.remove();
        added = module.add_hook(noting(order, "added"));
        Tensors outputs = next(std::move(inputs), context);
        order.push_back(")");
        return outputs;
      },
      Module::Place::outermost);
  EXPECT_THAT(order_of_run(), ElementsAre("outer(", "inner(", ")", ")"));
  EXPECT_THAT(order_of_run(), ElementsAre("added(", ")"));
}

/// As recompute does: in backward, long after the run, with the captured state.
TEST_F(Hooks, MayKeepNextAndCallItAgain) {
  std::vector<std::pair<Next, Tensors>> kept;
  Hook keeping = first.add_hook([&](Module&, Tensors inputs, const ForwardContext& context, const Next& next) {
    kept.emplace_back(next, inputs);
    return next(std::move(inputs), context);
  });
  Hook inner = first.add_hook(noting(order, "inner"));
  at::Tensor y;
  const Hook watch = first.add_hook(
      [&](Module&, Tensors inputs, const ForwardContext& context, const Next& next) {
        Tensors outputs = next(std::move(inputs), context);
        y = outputs[0];
        return outputs;
      },
      Module::Place::outermost);
  run();
  keeping.remove();
  inner.remove();
  order.clear();
  ASSERT_EQ(kept.size(), 1U);
  for (int again = 0; again < 2; ++again) {
    EXPECT_TRUE(at::equal(kept[0].first(kept[0].second, {})[0], y));
  }
  EXPECT_THAT(order, ElementsAre("inner(", ")", "inner(", ")")) << "those inside run again";
}

TEST(Module, RunningTheBlocksRunsTheModule) {
  Tree tree;
  tree.materialise(lone_mesh(), {}, {});
  const at::Tensor x = at::ones({2, 4});
  at::Tensor y = x;
  for (Module* block : tree.blocks()) y = (*block)(y, {});
  EXPECT_TRUE(at::equal(y, tree(x, {})));  // the bias starts at 0
  EXPECT_THAT(tree.find("first").blocks(), ElementsAre(&tree.find("first")));
}

/// A stage of a pipeline is the same module, with its hooks around fewer blocks.
TEST_F(Hooks, OfAModuleEncloseAStageOfIt) {
  const Hook outer = tree.add_hook(noting(order, "tree"));
  const Hook of_first = first.add_hook(noting(order, "first"));
  const Hook of_second = tree.find("second").add_hook(noting(order, "second"));
  const Tensors between = tree.run_blocks(0, 1, {x}, {});
  EXPECT_THAT(order, ElementsAre("tree(", "first(", ")", ")"));
  order.clear();
  const Tensors y = tree.run_blocks(1, 2, between, {});
  EXPECT_THAT(order, ElementsAre("tree(", "second(", ")", ")"));
  EXPECT_TRUE(at::equal(y[0], run()));
  EXPECT_TRUE(at::equal(tree.run_blocks(0, 2, {x}, {})[0], run()));
  order.clear();
  EXPECT_TRUE(at::equal(first.run_blocks(0, 1, {x}, {})[0], between[0]));
  EXPECT_THAT(order, ElementsAre("first(", ")")) << "a module that is its own block";
  EXPECT_THROW(tree.run_blocks(1, 1, {x}, {}), InternalError);
  EXPECT_THROW(tree.run_blocks(0, 3, {x}, {}), InternalError);
}

TEST(Module, ALayerRefusesTwoTensors) {
  Tree tree;
  tree.materialise(lone_mesh(), {}, {});
  EXPECT_THROW(tree.run({at::ones({2, 4}), at::ones({2, 4})}, {}), InternalError);
}

TEST(Materialise, EveryLayoutHoldsItsPieceOfTheSameValues) {
  Tree whole;
  whole.materialise(lone_mesh(), {}, {.seed = 3});
  const at::Tensor values = whole.parameters()[1]->sharded().detach();
  EXPECT_NEAR(values.std().item<double>(), 0.5, 0.25);  // 24 numbers: a standard error of 15 %
  const Axes axes{{"a", 2}, {"b", 3}};
  for (const Layout& layout : std::vector<Layout>{{},
                                                  {{"a", Shard{0}}},
                                                  {{"b", Shard{0}}, {"a", Shard{1}}},
                                                  {{"a", Shard{0}}, {"b", Shard{0}}},
                                                  {{"b", Shard{0}}, {"a", Shard{0}}},
                                                  {{"b", Shard{0, {1, 5, 0}}}},
                                                  {{"a", Shard{1, {}, 1, 4}}}}) {
    Pieces pieces = no_pieces(axes, layout);
    for (int rank = 0; rank < num_ranks(axes); ++rank) {
      Tree tree;
      const Mesh mesh = record_mesh(rank, axes);
      tree.materialise(mesh, {{"first.matrix", layout}}, {.seed = 3});
      const Parameter& parameter = *tree.parameters()[1];
      EXPECT_EQ(parameter.sharded_layout(), layout.completed(mesh, Invariant{}));
      EXPECT_TRUE(parameter.compute().is_same(parameter.sharded()) && parameter.sharded().is_leaf());
      EXPECT_TRUE(parameter.sharded().requires_grad());
      pieces.local[rank] = parameter.sharded().detach();
      pieces.layout = parameter.sharded_layout();
    }
    EXPECT_TRUE(at::equal(to_global(pieces), values)) << layout.to_string();
  }
}

TEST(Materialise, SeedAndNameKeyTheValues) {
  Tree a;
  Tree b;
  Tree other;
  a.materialise(lone_mesh(), {}, {.seed = 3});
  b.materialise(lone_mesh(), {}, {.seed = 3});
  other.materialise(lone_mesh(), {}, {.seed = 4});
  EXPECT_TRUE(at::equal(a.parameters()[1]->sharded(), b.parameters()[1]->sharded()));
  EXPECT_FALSE(at::equal(a.parameters()[1]->sharded(), other.parameters()[1]->sharded()));
  EXPECT_TRUE(at::equal(a.parameters()[2]->sharded(), at::ones({4})));
  EXPECT_TRUE(at::equal(a.parameters()[0]->sharded(), at::zeros({4})));
}

TEST(Materialise, PiecesGoWhereTheCallerWants) {
  Tree tree;
  const at::Tensor flat = at::full({64}, 9.0F);
  int64_t taken = 0;
  const auto allocate = [&](const Parameter&, const std::vector<int64_t>& shape) {
    at::Tensor piece = flat.narrow(0, taken, c10::multiply_integers(shape)).view(shape);
    taken += piece.numel();
    return piece;
  };
  tree.materialise(lone_mesh(), {}, {.allocate = allocate, .initialise = false});
  EXPECT_EQ(taken, 4 + 24 + 4 + 4);
  EXPECT_TRUE(at::equal(flat, at::full({64}, 9.0F)));
  flat.zero_();
  for (const Parameter* parameter : tree.parameters()) EXPECT_EQ(parameter->sharded().abs().max().item<double>(), 0);
}

TEST(Materialise, OnMetaMakesShapesOnly) {
  Tree tree;
  tree.materialise(record_mesh(5, {{"a", 2}, {"b", 3}}), {{"first.matrix", {{"b", Shard{0}}}}}, {.device = at::kMeta});
  EXPECT_TRUE(tree.parameters()[1]->sharded().is_meta());
  EXPECT_EQ(tree.parameters()[1]->sharded().sizes(), at::IntArrayRef({2, 4}));
}

TEST(Materialise, RefusesALayoutThatFitsNothing) {
  Tree tree;
  const Mesh mesh = record_mesh(0, {{"tp", 5}});
  EXPECT_THAT(message_of<UsageError>([&] {
                tree.materialise(mesh, {{"first.matrx", {{"tp", Shard{0}}}}}, {});
              }),
              HasSubstr("'first.matrix'"));
  EXPECT_THAT(message_of<ShapeError>([&] {
                tree.materialise(mesh, {{"first.matrix", {{"tp", Shard{0}}}}}, {});
              }),
              HasSubstr("first.matrix [6, 4]: dim 0 has 6 elements, not divisible by axis tp (5)"));
}

TEST(Materialise, FreezingReachesTheTensors) {
  Tree tree;
  Parameter& bias = *tree.parameters()[0];
  bias.set_requires_grad(false);
  tree.materialise(lone_mesh(), {}, {});
  EXPECT_FALSE(bias.sharded().requires_grad());
  Parameter& matrix = *tree.parameters()[1];
  matrix.set_requires_grad(false);
  EXPECT_FALSE(matrix.compute().requires_grad());
  tree(at::ones({2, 4}), {}).sum().backward();
  EXPECT_FALSE(bias.sharded().grad().defined() || matrix.sharded().grad().defined());
  EXPECT_TRUE(tree.parameters()[2]->sharded().grad().defined());
}

}  // namespace
}  // namespace caravan::testing::module_test
