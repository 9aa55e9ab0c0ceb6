// Calls that are right on plain tensors and easily wrong, without an error, on pieces: signs, ranges, casts of sums,
// memory that two tensors share, gradients of gradients.
#include <gmock/gmock.h>
#include <thread>

#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/full.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linalg_solve.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/pixel_shuffle.h>
#include <ATen/ops/pixel_unshuffle.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "caravan/base/error.h"
#include "caravan/global/creating.h"
#include "caravan/global/global.h"
#include "caravan/global/module.h"
#include "caravan/global/op_info.h"
#include "caravan/global/state.h"
#include "tests/redistribute/denote.h"

namespace caravan::testing::corners_test {
namespace {

using ::testing::HasSubstr;

const Layout kRows{{"tp", Shard{0}}};

void on_two(const std::function<void(const GlobalContext&)>& body) {
  on_mesh({{"tp", 2}}, [&](const Mesh& mesh) { body(GlobalContext(mesh)); });
}

/// A parameter that multiplies rows, of which each rank has some: its gradient is their sum.
struct WeightedRows {
  explicit WeightedRows(const GlobalContext& context)
      : parameter(distribute(random_tensor({4}, 3).requires_grad_(), {}, context)),
        rows(distribute(random_tensor({6, 4}, 4), kRows, context)) {}
  void backward() const { (rows * parameter).sum().backward(); }
  static at::Tensor gradient() { return random_tensor({6, 4}, 4).sum(0); }

  at::Tensor parameter;
  at::Tensor rows;
};

TEST(GlobalCorners, StacksOfNormsAndOtherNumbers) {
  on_two([](const GlobalContext& context) {
    const at::Tensor x = distribute(at::ones({4}, at::kDouble), kRows, context);
    const at::Tensor whole = distribute(at::ones({9}, at::kDouble), {}, context);
    const at::Tensor other = distribute(at::scalar_tensor(-3., at::kDouble), {}, context);
    const auto stacked = [](const at::Tensor& a, const at::Tensor& b) { return full(at::stack({a, b})); };
    EXPECT_TRUE(is_close(stacked(x.norm(), other), at::tensor({2., -3.})));
    EXPECT_TRUE(is_close(stacked(at::linalg_vector_norm(x, 3), other), at::tensor({std::cbrt(4.), -3.})));
    EXPECT_TRUE(is_close(stacked(whole.norm(), x.norm()), at::tensor({3., 2.})));
    EXPECT_NEAR(full(at::stack({whole.norm(), x.norm()}).norm()).item<double>(), std::sqrt(13.), 1e-12);
    at::Tensor norm = whole.norm();
    norm.neg_();
    EXPECT_TRUE(is_close(stacked(norm, x.norm()), at::tensor({-3., 2.})));
    const at::Tensor small = distribute(at::ones({1}), {{"tp", Shard{0}}}, context);
    EXPECT_EQ(full(at::linalg_vector_norm(small, 2, std::nullopt, false, at::kDouble)).item<double>(), 1);
  });
}

TEST(GlobalCorners, SlicesFromTheEnd) {
  on_two([](const GlobalContext& context) {
    const at::Tensor weight = random_tensor({4}, 1);
    const at::Tensor x = distribute(at::zeros({8}, at::kDouble).requires_grad_(), {}, context);
    (x.slice(0, -4) * distribute(weight, kRows, context)).sum().backward();
    EXPECT_TRUE(is_close(full(x.grad()), at::cat({at::zeros({4}, at::kDouble), weight})));
  });
}

TEST(GlobalCorners, SumsThatAreIndices) {
  on_two([](const GlobalContext& context) {
    const at::Tensor each = at::arange(2000, at::kLong).remainder(4).view({2, 1000});
    const at::Tensor index = distribute(each, kRows, context).sum(0);
    const at::Tensor zeros = distribute(at::zeros({8}, at::kDouble), {}, context);
    const at::Tensor ones = at::ones({1000}, at::kDouble);
    const at::Tensor counts = full(zeros.index_put({index}, distribute(ones, {}, context), true));
    EXPECT_TRUE(at::equal(counts, at::zeros({8}, at::kDouble).index_put({each.sum(0)}, ones, true)));
  });
}

TEST(GlobalCorners, CastsOfSums) {
  on_two([](const GlobalContext& context) {
    const auto sum = [&](std::vector<double> values) {
      return distribute(at::tensor(values, at::kDouble), kRows, context).sum();
    };
    EXPECT_EQ(full(sum({0.6, 0.6}).to(at::kLong)).item<int64_t>(), 1);
    EXPECT_EQ(full(sum({0.6, 0.6}).sum(at::kLong)).item<int64_t>(), 1);
    EXPECT_FALSE(full(sum({1, -1}).to(at::kBool)).item<bool>());
    EXPECT_NEAR(full(sum({0.6, 0.6}).to(at::kFloat)).item<float>(), 1.2, 1e-6);
    const at::Tensor target = distribute(at::zeros({}, at::kLong), {}, context);
    target.copy_(sum({0.6, 0.6}));
    EXPECT_EQ(full(target).item<int64_t>(), 1);
    // Its sum is more than a half can be.
    const at::Tensor halves = distribute(at::ones({200000}, at::kHalf), kRows, context);
    EXPECT_EQ(full(halves.mean()).item<float>(), 1);
  });
}

TEST(GlobalCorners, WhatIsMovedHasMemoryOfItsOwn) {
  on_two([](const GlobalContext& context) {
    const at::Tensor ones = at::ones({4, 2}, at::kDouble);
    for (const Layout& to : {kRows, Layout{{"tp", Partial{}}}}) {
      const at::Tensor x = distribute(ones, {}, context);
      redistribute(x, to).mul_(2);
      EXPECT_TRUE(at::equal(full(x), ones)) << to.to_string();
    }
  });
}

/// A rank that reads its piece alone plans as the others do.
TEST(GlobalCorners, ReadingAPieceIsNoCollective) {
  on_two([](const GlobalContext& context) {
    const WeightedRows net(context);
    net.backward();
    if (context.mesh().rank() == 0) {
      EXPECT_TRUE(is_close(local(net.parameter.grad()), WeightedRows::gradient()));
    }
    net.backward();
    EXPECT_TRUE(is_close(full(net.parameter.grad()), 2 * WeightedRows::gradient()));
  });
}

/// The same op with numbers of other meaning is planned anew.
TEST(GlobalCorners, NumbersThatMatter) {
  const at::Tensor values = random_tensor({6, 4}, 3);
  on_two([&](const GlobalContext& context) {
    const at::Tensor x = distribute(values, kRows, context);
    EXPECT_TRUE(at::equal(full(x.histc(10, 2, 3)), values.histc(10, 2, 3)));
    EXPECT_TRUE(at::equal(full(x.histc(10, 5, 5)), values.histc(10, 5, 5)));
    const at::Tensor mask = values.sum(0) > 0;
    for (const bool flag : {false, true}) {
      const at::Tensor sum = x.sum(0).masked_fill(distribute(mask, {}, context), flag);
      EXPECT_TRUE(is_close(full(sum), values.sum(0).masked_fill(mask, flag))) << flag;
    }
    const at::Tensor complex = values.to(at::kComplexDouble);
    for (const double number : {0., 5., 1.}) {
      const c10::complex<double> fill(number, 0);
      const at::Tensor sum = distribute(complex, kRows, context).sum(0);
      EXPECT_LT((full(sum.masked_fill(distribute(mask, {}, context), fill)) - complex.sum(0).masked_fill(mask, fill))
                    .abs()
                    .max()
                    .item<double>(),
                1e-12);
    }
  });
}

/// Each leaf has a gradient of its own, though backward hands both the same.
TEST(GlobalCorners, GradientsOfTwoPieces) {
  const at::Tensor values = random_tensor({4}, 3);
  on_two([&](const GlobalContext& context) {
    const at::Tensor a = distribute(values.clone().requires_grad_(), kRows, context);
    const at::Tensor b = distribute(values.clone().requires_grad_(), kRows, context);
    (local(a) + local(b)).sum().backward();
    {
      const at::NoGradGuard no_grad;
      a.grad().mul_(3);
    }
    EXPECT_TRUE(is_close(full(a.grad()), at::full({4}, 3., at::kDouble)));
    EXPECT_TRUE(is_close(full(b.grad()), at::ones({4}, at::kDouble)));
  });
}

/// Ranks know only their own pieces: their rows are asked for.
TEST(GlobalCorners, PiecesOfDifferentSizes) {
  const at::Tensor values = random_tensor({5, 4}, 3);
  on_mesh({{"dp", 2}, {"tp", 2}}, [&](const Mesh& mesh) {
    const GlobalContext context(mesh);
    const int dp = mesh["dp"].coord();
    const auto check = [&](const at::Tensor& piece, const Layout& where, const std::string& expected) {
      const at::Tensor x = global(piece, where, context);
      EXPECT_EQ(layout(x).to_string(), expected);
      EXPECT_TRUE(at::equal(full(x), values));
      EXPECT_TRUE(is_close(full(x.mean()), values.mean()));
    };
    const Layout rows{{"dp", Shard{0}}};
    check(dp == 0 ? values.narrow(0, 0, 3) : values.narrow(0, 3, 2), rows, "dp=S(0; 3 2) tp=R");
    check(dp == 0 ? values.narrow(0, 0, 4) : values.narrow(0, 4, 1), rows, "dp=S(0; 4 1) tp=R");
    check(dp == 0 ? values.narrow(0, 0, 0) : values, rows, "dp=S(0; 0 5) tp=R");
    const at::Tensor mapped = local_map([](const std::vector<at::Tensor>& pieces) { return pieces; },
                                        {distribute(values, rows, context)}, {rows}, {rows}, context)[0];
    EXPECT_TRUE(at::equal(full(mapped), values));
    const at::Tensor uneven = values.narrow(0, 0, mesh["tp"].coord() + 1);
    EXPECT_THAT(message_of<ShapeError>([&] {
                  global(uneven, {{"dp", Shard{0}}, {"tp", Shard{0}}}, context);
                }),
                HasSubstr("is cut by two axes"));
  });
}

/// A second axis cuts parts of different sizes only where it divides all of them: else no layout says who has what.
TEST(GlobalCorners, TwoAxesOnOneDim) {
  on_mesh({{"dp", 2}, {"tp", 2}}, [&](const Mesh& mesh) {
    const GlobalContext context(mesh);
    const auto layout_of = [&](int64_t rows, const Layout& where) {
      const at::Tensor x = random_tensor({rows, 3}, 3);
      const at::Tensor t = distribute(x, where, context);
      EXPECT_TRUE(at::equal(full(t), x));
      EXPECT_TRUE(is_close(full((t * t).sum()), (x * x).sum()));
      return layout(t).to_string();
    };
    const Layout both{{"dp", Shard{0}}, {"tp", Shard{0}}};
    EXPECT_EQ(layout_of(8, both), "dp=S(0) tp=S(0)");
    EXPECT_EQ(layout_of(5, both), "dp=S(0; 3 2) tp=R");
    EXPECT_EQ(layout_of(6, both), "dp=S(0) tp=S(0; 2 1)");
    EXPECT_EQ(layout_of(1, both), "dp=S(0; 1 0) tp=R");
    EXPECT_EQ(layout_of(6, {{"dp", Shard{0, {4, 2}}}, {"tp", Shard{0}}}), "dp=S(0; 4 2) tp=S(0)");
    EXPECT_EQ(layout_of(2, {{"dp", Shard{.dim = 0, .blocks = 2}}, {"tp", Shard{0}}}), "dp=S(0; 1 0; blocks 2) tp=S(0)");
    // Every parameter over both axes, one of one element among them.
    const at::Tensor input = random_tensor({4, 8}, 5);
    const auto trained = [&](const std::vector<NamedLayout>& layouts) {
      at::manual_seed(2);
      torch::nn::Linear first(8, 5), second(5, 1);
      std::vector<torch::nn::Linear> layers{first, second};
      std::vector<at::Tensor> parameters;
      for (auto& layer : layers) {
        const at::NoGradGuard no_grad;
        layer->to(at::kDouble);
        for (const at::Tensor& each : layer->parameters()) each.copy_(at::linspace(-1, 1, each.numel()).view_as(each));
        if (!layouts.empty()) distribute_module(*layer, layouts, context);
        for (const at::Tensor& each : layer->parameters()) parameters.push_back(each);
      }
      torch::optim::SGD optimizer(parameters, torch::optim::SGDOptions(0.1).momentum(0.9));
      const at::Tensor x = layouts.empty() ? input : distribute(input, {{"dp", Shard{0}}}, context);
      for (int step = 0; step < 3; ++step) {
        optimizer.zero_grad();
        second(first(x).tanh()).square().mean().backward();
        optimizer.step();
      }
      std::vector<at::Tensor> flat;
      for (const at::Tensor& each : parameters)
        flat.push_back((layouts.empty() ? each : full(each)).detach().flatten());
      return at::cat(flat);
    };
    EXPECT_TRUE(is_close(trained({{"*", both}}), trained({}), 1e-12));
  });
}

/// A gradient is summed before a norm takes it, not after, where those of the weights would be summed too.
TEST(GlobalCorners, SumsBeforeNorms) {
  constexpr int64_t kTokens = 8192;  // so many that the weights are few beside them
  on_two([](const GlobalContext& context) {
    const at::Tensor x = distribute(random_tensor({kTokens, 4}, 1).requires_grad_(), {}, context);
    const at::Tensor weight = distribute(at::ones({4}, at::kDouble).requires_grad_(), {}, context);
    const at::Tensor pending = distribute(random_tensor({2, kTokens, 4}, 2), kRows, context).sum(0);
    ASSERT_EQ(layout(pending).to_string(), "tp=P");
    int num_backward = 0;
    context.state()->watch([&](const OpInfo& op, const Solution& solution) {
      if (op.name != "aten::native_layer_norm_backward") return;
      ++num_backward;
      EXPECT_TRUE(solution.operands[0]->is_whole);
    });
    at::layer_norm(x, {4}, weight).backward(pending);
    context.state()->watch(nullptr);
    EXPECT_EQ(num_backward, 1);
  });
}

/// A dim that an op takes apart keeps its factor where a rank has none of it.
TEST(GlobalCorners, PixelsOfPiecesWithoutChannels) {
  const at::Tensor values = random_tensor({2, 8, 3, 4}, 3);
  on_two([&](const GlobalContext& context) {
    for (const Layout& where : {Layout{{"tp", Shard{1, {8, 0}}}}, Layout{{"tp", Shard{1, {0, 8}}}}, Layout{}}) {
      const at::Tensor x = distribute(values, where, context);
      EXPECT_TRUE(at::equal(full(at::pixel_shuffle(x, 2)), at::pixel_shuffle(values, 2))) << where;
    }
    const at::Tensor wide = at::pixel_shuffle(values, 2);
    const at::Tensor x = distribute(wide, {{"tp", Shard{2, {6, 0}}}}, context);
    EXPECT_TRUE(at::equal(full(at::pixel_unshuffle(x, 2)), values));
  });
}

/// Autograd writes the gradient of an op in place on a view through a view of new memory.
TEST(GlobalCorners, GradientsOfWritesToViews) {
  const at::Tensor values = random_tensor({6, 4}, 3);
  const auto loss = [](const at::Tensor& x) {
    const at::Tensor t = x * 1;
    t.view({-1}).mul_(2);
    t.t()[1].mul_(3);
    return t.sin().sum();
  };
  const at::Tensor plain = values.clone().requires_grad_();
  loss(plain).backward();
  on_two([&](const GlobalContext& context) {
    for (const Layout& where : {Layout{{"tp", Shard{1}}}, kRows, Layout{}}) {
      const at::Tensor x = distribute(values.clone().requires_grad_(), where, context);
      if (where.empty() || where["tp"].is_shard(0)) {
        loss(x).backward();
      } else {
        const at::Tensor t = x * 1;  // one column is gathered for its view
        t.view({-1}).mul_(2);
        const at::Tensor scale = distribute(at::tensor({1., 3., 1., 1.}, at::kDouble), {}, context);
        (t * scale).sin().sum().backward();
      }
      EXPECT_TRUE(is_close(full(x.grad()), plain.grad())) << where;
    }
  });
}

TEST(GlobalCorners, WhatIsRefused) {
  on_two([](const GlobalContext& context) {
    EXPECT_THAT(message_of<UsageError>([&] { GlobalContext(context.mesh(), {.axes = {"tpp"}}); }), HasSubstr("tpp"));
    const at::Tensor x = distribute(at::ones({4, 6}, at::kDouble).requires_grad_(), {{"tp", Shard{1}}}, context);
    const at::Tensor y = x * 1;
    EXPECT_THAT(message_of<UsageError>([&] { y.view({3, 8}).mul_(2); }), HasSubstr("whose gradient would be lost"));
    const c10::InferenceMode inference;
    EXPECT_THAT(message_of<UsageError>([&] { distribute(at::ones({4}), {}, context); }), HasSubstr("NoGradGuard"));
  });
}

TEST(GlobalCorners, OneMatrixForABatchOfEquations) {
  const at::Tensor matrix = random_tensor({3, 3}, 1) + 4 * at::eye(3, at::kDouble);
  const at::Tensor right = random_tensor({4, 3, 2}, 2);
  const at::Tensor a = matrix.clone().requires_grad_();
  at::linalg_solve(a, right).square().sum().backward();
  on_two([&](const GlobalContext& context) {
    const at::Tensor own = distribute(matrix.clone().requires_grad_(), {}, context);
    const at::Tensor x = at::linalg_solve(own, distribute(right, kRows, context));
    EXPECT_TRUE(is_close(full(x.detach()), at::linalg_solve(matrix, right)));
    x.square().sum().backward();
    EXPECT_TRUE(is_close(full(own.grad()), a.grad()));
  });
}

TEST(GlobalCorners, GradientsOfGradients) {
  const at::Tensor values = random_tensor({4}, 3);
  on_two([&](const GlobalContext& context) {
    for (const Layout& where : {kRows, Layout{}}) {
      const at::Tensor x = distribute(values.clone().requires_grad_(), where, context);
      const at::Tensor gradient = torch::autograd::grad({full(x).pow(3).sum()}, {x}, {}, true, true)[0];
      (gradient.square().sum() + x.sum()).backward();
      EXPECT_TRUE(is_close(full(x.grad()), 36 * values.pow(3) + 1)) << where.to_string();

      const at::Tensor again = distribute(values.clone().requires_grad_(), where, context);
      const at::Tensor inner = torch::autograd::grad({global(local(again).pow(3), layout(again), context).sum()},
                                                     {again}, {}, true, true)[0];
      (inner.square().sum() + again.sum()).backward();
      EXPECT_TRUE(is_close(full(again.grad()), 36 * values.pow(3) + 1)) << where.to_string();
    }
  });
}

TEST(GlobalCorners, AxesThatAContextDoesNotKnow) {
  on_mesh({{"dp", 2}, {"tp", 2}}, [](const Mesh& mesh) {
    const GlobalContext context(mesh, {.checks_plain = true, .axes = {"tp"}});
    const at::Tensor x = at::ones({4}, at::kDouble);
    EXPECT_THAT(message_of<UsageError>([&] {
                  distribute(x, {{"dp", Shard{0}}}, context);
                }),
                HasSubstr("is not among the axes of this context"));
    const at::Tensor t = distribute(x, kRows, context);
    EXPECT_THAT(message_of<UsageError>([&] { redistribute(t, {{"dp", Shard{0}}}); }), HasSubstr("use tp"));
    // Each coordinate on dp has tensors of its own, and runs other ops.
    if (mesh["dp"].coord() == 0) return;
    EXPECT_TRUE(at::equal(full(t + x * 2), 3 * x));
  });
}

TEST(GlobalCorners, DrawsStayInTheirRange) {
  on_two([](const GlobalContext& context) {
    const at::Tensor x = distribute(at::zeros({100000}, at::kBFloat16), kRows, context);
    EXPECT_LT(full(x.uniform_()).to(at::kFloat).max().item<float>(), 1);
    EXPECT_LT(full(at::rand_like(x)).to(at::kFloat).max().item<float>(), 1);
    EXPECT_LT(full(x.uniform_(1, 2)).to(at::kFloat).max().item<float>(), 2);
  });
}

TEST(GlobalCorners, TypesOfWhatIsCreated) {
  const at::Tensor values = random_tensor({4}, 1);
  on_two([&](const GlobalContext& context) {
    const CreatesGlobal scope(context);
    EXPECT_EQ(at::full({4}, 5).scalar_type(), at::kLong);
    EXPECT_EQ(at::full({4}, true).scalar_type(), at::kBool);
    EXPECT_EQ(at::full({4}, 5.).scalar_type(), at::kFloat);
    // What was made before may be distributed meanwhile.
    EXPECT_TRUE(is_global(distribute(values, kRows, context)));
  });
}

/// A row of a dim that is cut is gathered for the view; what is written to it reaches the tensor.
TEST(GlobalCorners, WritesToViewsOfMovedTensors) {
  const at::Tensor values = random_tensor({6, 4}, 1);
  const auto write = [](const at::Tensor& x) {
    const at::NoGradGuard no_grad;
    x[5].fill_(7);
    x.narrow(0, 4, 1).copy_(x.narrow(0, 1, 1));
    x.narrow(1, 1, 1).copy_(x.narrow(1, 3, 1));
    x.slice(0, 1, 4).select(1, 2).mul_(2);
    x.slice(0, 0, 3).add_(x.slice(0, 3, 6));
    x.t()[1].zero_();
  };
  const at::Tensor expected = values.clone();
  write(expected);
  on_two([&](const GlobalContext& context) {
    for (const Layout& where : {kRows, Layout{{"tp", Shard{1}}}, Layout{{"tp", Shard{0, {1, 5}}}}}) {
      const at::Tensor x = distribute(values, where, context);
      write(x);
      EXPECT_TRUE(is_close(full(x), expected)) << where.to_string();
      // It would undo what was written after the view was taken.
      const at::Tensor row = x.select(where["tp"].dim(), 0);
      x.add_(1);
      EXPECT_THAT(message_of<UsageError>([&] { row.fill_(0); }), HasSubstr("take the view anew"));
      EXPECT_THAT(message_of<UsageError>([&] { row + 1; }), HasSubstr("was written since"));
      // Or what was written to another view of the same memory.
      const at::Tensor alias = x.detach();
      const at::Tensor again = x.select(where["tp"].dim(), 0);
      alias.add_(1);
      EXPECT_THAT(message_of<UsageError>([&] { again.fill_(0); }), HasSubstr("take the view anew"));
    }
    torch::nn::Embedding table{nullptr};
    {
      const CreatesGlobal scope(context);
      table = torch::nn::Embedding(torch::nn::EmbeddingOptions(8, 3).padding_idx(2));
    }
    EXPECT_EQ(full(table->weight).select(0, 2).abs().sum().item<float>(), 0);
  });
}

TEST(GlobalCorners, CopiesOfLists) {
  const at::Tensor values = random_tensor({4, 2}, 1);
  on_two([&](const GlobalContext& context) {
    for (const Layout& where : {kRows, Layout{}, Layout{{"tp", Shard{1}}}}) {
      const std::vector<at::Tensor> to{distribute(at::zeros_like(values), where, context)};
      at::_foreach_copy_(to, {distribute(values, kRows, context)});
      EXPECT_TRUE(at::equal(full(to[0]), values)) << where.to_string();
    }
    const std::vector<at::Tensor> ints{distribute(at::zeros({}, at::kLong), {}, context)};
    at::_foreach_copy_(ints, {distribute(at::tensor({0.6, 0.6}), kRows, context).sum()});
    EXPECT_EQ(full(ints[0]).item<int64_t>(), 1);
  });
}

/// A backward that throws leaves nothing behind.
TEST(GlobalCorners, BackwardAfterOneThatThrew) {
  struct Throws : torch::autograd::Function<Throws> {
    static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) { return x.clone(); }
    static torch::autograd::variable_list backward(torch::autograd::AutogradContext*, torch::autograd::variable_list) {
      throw std::runtime_error("planted");
    }
  };
  on_two([](const GlobalContext& context) {
    const WeightedRows first(context);
    const WeightedRows second(context);
    const at::Tensor thrown = Throws::apply(second.rows * second.parameter).sum();
    EXPECT_THROW(((first.rows * first.parameter).sum() + thrown).backward(), std::runtime_error);
    first.parameter.mutable_grad() = second.parameter.mutable_grad() = at::Tensor();
    second.backward();
    EXPECT_EQ(layout(second.parameter.grad()).to_string(), "tp=R");
    EXPECT_TRUE(is_close(full(second.parameter.grad()), WeightedRows::gradient()));
    // The second gradient is added to the first.
    second.backward();
    EXPECT_TRUE(is_close(full(second.parameter.grad()), 2 * WeightedRows::gradient()));
  });
}

/// What a second backward adds to a gradient is reduced with the others when it ends, not by itself.
TEST(GlobalCorners, GradientsThatAddUpAreReducedTogether) {
  on_two([](const GlobalContext& context) {
    const WeightedRows net(context);
    net.backward();
    int added = 0;
    int moved = 0;
    context.state()->watch([&](const OpInfo& op, const Solution& solution) {
      if (op.name != "aten::add_.Tensor") return;
      ++added;
      for (const Placed* each : solution.operands) moved += each->layout["tp"].is_replicate() ? 1 : 0;
    });
    net.backward();
    context.state()->watch(nullptr);
    EXPECT_EQ(added, 1);
    EXPECT_EQ(moved, 0);  // both are summands
    EXPECT_EQ(layout(net.parameter.grad()).to_string(), "tp=R");
    EXPECT_TRUE(is_close(full(net.parameter.grad()), 2 * WeightedRows::gradient()));
  });
}

TEST(GlobalCorners, AFrozenParameterIsTrainedLater) {
  const at::Tensor input = random_tensor({6, 4}, 4);
  on_two([&](const GlobalContext& context) {
    torch::nn::Linear net(torch::nn::LinearOptions(4, 2).bias(false));
    net->to(at::kDouble);
    {
      const at::NoGradGuard no_grad;
      net->weight.fill_(0.5);
    }
    net->weight.requires_grad_(false);
    distribute_module(*net, {}, context);
    net->weight.requires_grad_(true);
    net(distribute(input, kRows, context)).sum().backward();
    EXPECT_EQ(layout(net->weight.grad()).to_string(), "tp=R");
  });
}

}  // namespace
}  // namespace caravan::testing::corners_test
