// What global tensors are, apart from ops: made, read, moved, refused.
#include <cmath>
#include <gmock/gmock.h>
#include <sstream>

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/library.h>
#include <torch/nn/modules/linear.h>

#include "caravan/base/error.h"
#include "caravan/comm/backends/shared/thread_ranks.h"
#include "caravan/global/creating.h"
#include "caravan/global/global.h"
#include "caravan/global/module.h"
#include "tests/redistribute/denote.h"

namespace caravan::testing::tensors_test {
namespace {

using ::testing::HasSubstr;

TEST(GlobalTensors, HoldPieces) {
  const at::Tensor x = random_tensor({5, 6}, 1);
  on_mesh({{"dp", 2}, {"tp", 3}}, [&](const Mesh& mesh) {
    const GlobalContext context(mesh);
    const at::Tensor t = distribute(x, {{"dp", Shard{0}}, {"tp", Shard{1}}}, context);
    EXPECT_EQ(t.sizes(), x.sizes());
    EXPECT_TRUE(is_global(t));
    EXPECT_EQ(layout(t).to_string(), "dp=S(0; 3 2) tp=S(1)");
    EXPECT_EQ(local(t).sizes(), (std::vector<int64_t>{mesh["dp"].coord() == 0 ? 3 : 2, 2}));
    EXPECT_TRUE(at::equal(full(t), x));
    const at::Tensor moved = redistribute(t, {{"tp", Shard{0}}});
    EXPECT_EQ(layout(moved).to_string(), "tp=S(0; 2 2 1) dp=R");
    EXPECT_TRUE(at::equal(full(moved), x));
    EXPECT_TRUE(at::equal(full(global(local(t), layout(t), context)), x));
    const at::Tensor blocked = distribute(x, {{"tp", Shard{.dim = 1, .blocks = 2}}}, context);
    EXPECT_TRUE(at::equal(full(blocked), x));
    EXPECT_EQ(layout(blocked.chunk(2, 1)[1]).to_string(), "tp=S(1) dp=R");
  });
}

/// d loss / d x for pieces that ranks use in different ways, and in the same way.
TEST(GlobalTensors, PiecesHaveTheGradientsOfTheLaw) {
  const at::Tensor x = random_tensor({4, 6}, 1);
  const at::Tensor weight = random_tensor({4, 6}, 2);
  on_mesh({{"tp", 2}}, [&](const Mesh& mesh) {
    const GlobalContext context(mesh);
    const int rank = mesh["tp"].coord();
    for (const Layout& where : {Layout{{"tp", Shard{0}}}, Layout{{"tp", Shard{1}}}, Layout{}}) {
      const at::Tensor leaf = distribute(x.clone().requires_grad_(), where, context);
      (full(leaf).square() * weight).sum().backward();  // every rank computes the same
      EXPECT_TRUE(is_close(full(leaf.grad()), 2 * x * weight)) << where.to_string();
    }
    const at::Tensor leaf = distribute(x.clone().requires_grad_(), {}, context);
    // Each rank uses its copy for its own half: the gradient is the sum of both.
    (local(leaf).narrow(0, 2 * rank, 2).square() * weight.narrow(0, 2 * rank, 2)).sum().backward();
    EXPECT_TRUE(is_close(full(leaf.grad()), 2 * x * weight));

    const at::Tensor piece = x.narrow(0, 2 * rank, 2).clone().requires_grad_();
    (global(piece, {{"tp", Shard{0}}}, context).square() * distribute(weight, {}, context)).sum().backward();
    EXPECT_TRUE(is_close(piece.grad(), (2 * x * weight).narrow(0, 2 * rank, 2)));
    const at::Tensor same = x.clone().requires_grad_();
    global(same, {{"tp", Invariant{}}}, context).square().sum().backward();
    EXPECT_TRUE(is_close(same.grad(), 2 * x));
  });
}

TEST(GlobalTensors, LocalMapRunsOnPieces) {
  const at::Tensor x = random_tensor({4, 6}, 1);
  on_mesh({{"tp", 2}}, [&](const Mesh& mesh) {
    const GlobalContext context(mesh);
    const at::Tensor leaf = distribute(x.clone().requires_grad_(), {}, context);
    const auto sum_of_rows = [](const std::vector<at::Tensor>& in) {
      EXPECT_EQ(in[0].size(0), 2);
      return std::vector<at::Tensor>{in[0].square().sum(0)};
    };
    const at::Tensor sum = local_map(sum_of_rows, {leaf}, {{{"tp", Shard{0}}}}, {{{"tp", Partial{}}}}, context)[0];
    EXPECT_TRUE(is_close(full(sum), x.square().sum(0)));
    sum.sum().backward();
    EXPECT_TRUE(is_close(full(leaf.grad()), 2 * x));
  });
}

TEST(GlobalTensors, ConstrainLaysOutValueAndGradient) {
  const at::Tensor x = random_tensor({4, 6}, 1);
  on_mesh({{"tp", 2}}, [&](const Mesh& mesh) {
    const GlobalContext context(mesh);
    const at::Tensor leaf = distribute(x.clone().requires_grad_(), {}, context);
    const at::Tensor rows = constrain(leaf, {{"tp", Shard{0}}});
    EXPECT_EQ(layout(rows).to_string(), "tp=S(0)");
    std::string seen;
    rows.register_hook([&](const at::Tensor& gradient) { seen = layout(gradient).to_string(); });
    rows.square().sum().backward();
    EXPECT_EQ(seen, "tp=S(0)");
    EXPECT_TRUE(is_close(full(leaf.grad()), 2 * x));
  });
}

TEST(GlobalTensors, AreCreatedInParts) {
  at::Tensor first;
  for (const Axes& axes : {Axes{{"tp", 1}}, Axes{{"tp", 3}}, Axes{{"dp", 2}, {"tp", 2}}}) {
    at::Tensor here;
    on_mesh(axes, [&](const Mesh& mesh) {
      const GlobalContext context(mesh);
      torch::nn::Linear net(nullptr);
      {
        const CreatesGlobal spread(context);
        net = torch::nn::Linear(6, 12);
        EXPECT_LE(local(net->weight).size(0), 12 / mesh.size());
      }
      EXPECT_FALSE(is_global(at::zeros({2})));
      distribute_module(*net, {{"weight", {{"tp", Shard{1}}}}}, context);
      EXPECT_EQ(local(net->weight).size(1), 6 / mesh["tp"].size());
      const at::Tensor whole = full(net->weight.detach());
      EXPECT_GT(whole.abs().max().item<double>(), 0.1);
      if (mesh.rank() == 0) here = whole.clone();
    });
    if (!first.defined()) first = here;
    EXPECT_TRUE(at::equal(first, here));
  }
}

TEST(GlobalTensors, StrictModeNamesWhatRunsWhole) {
  const at::Tensor x = random_tensor({4, 6}, 1);
  on_mesh({{"tp", 2}}, [&](const Mesh& mesh) {
    const GlobalContext lenient(mesh);
    const at::Tensor t = distribute(x, {{"tp", Shard{0}}}, lenient);
    EXPECT_TRUE(at::equal(full(std::get<0>(t.sort(0))), std::get<0>(x.sort(0))));
    ASSERT_EQ(lenient.whole_ops().size(), 1U);
    EXPECT_THAT(lenient.report(), HasSubstr("aten::sort"));
    EXPECT_THAT(lenient.report(), HasSubstr("needs all of dim 0"));
    EXPECT_TRUE(at::equal(full(std::get<0>(t.sort(1))), std::get<0>(x.sort(1))));  // along a dim that nobody cuts
    EXPECT_EQ(lenient.whole_ops().size(), 1U);
    const GlobalContext strict(mesh, {.is_strict = true});
    const at::Tensor s = distribute(x, {{"tp", Shard{0}}}, strict);
    EXPECT_THAT(message_of<UsageError>([&] { s.sort(0); }), HasSubstr("is_strict forbids"));
    EXPECT_THAT(message_of<UsageError>([&] { s + x; }), HasSubstr("takes a plain tensor [4, 6]"));
    const GlobalContext allowed(mesh, {.is_strict = true, .may_run_whole = {"aten::sort"}});
    EXPECT_TRUE(
        at::equal(full(std::get<0>(distribute(x, {{"tp", Shard{0}}}, allowed).sort(0))), std::get<0>(x.sort(0))));
  });
}

TEST(GlobalTensors, RefuseWhatHasNoMeaning) {
  const at::Tensor x = random_tensor({4, 6}, 1);
  on_mesh({{"tp", 2}}, [&](const Mesh& mesh) {
    const GlobalContext context(mesh);
    const auto message = [](const std::function<void()>& body) { return message_of<UsageError>(body); };
    const at::Tensor t = distribute(x, {{"tp", Shard{0}}}, context);
    EXPECT_THAT(message([&] { distribute(t, {}, context); }), HasSubstr("is a global tensor already"));
    EXPECT_THAT(message([&] { local(x); }), HasSubstr("is not a global tensor"));
    EXPECT_THAT(message([&] { distribute(x, {{"rows", Shard{0}}}, context); }), HasSubstr("tp"));
    EXPECT_THAT(message([&] { distribute(x, {{"tp", Shard{2}}}, context); }), HasSubstr("shard a dim from 0 to 1"));
    EXPECT_THAT(message([&] { distribute(x, {{"tp", Shard{0, {3, 3}}}}, context); }), HasSubstr("add up to 4"));
    EXPECT_THAT(message([&] { t.as_strided({2}, {1}); }), HasSubstr("as_strided"));
    const GlobalContext other(mesh);
    EXPECT_THAT(message([&] { t + distribute(x, {}, other); }), HasSubstr("two contexts"));
    EXPECT_ANY_THROW(t.data_ptr());
    EXPECT_ANY_THROW(t.storage());
  });
}

TEST(GlobalTensors, DifferentPlainTensorsAreNamed) {
  on_mesh({{"tp", 3}}, [&](const Mesh& mesh) {
    const GlobalContext context(mesh, {.checks_plain = true});
    const at::Tensor t = distribute(random_tensor({4, 6}, 1), {}, context);
    const at::Tensor mine = random_tensor({4, 6}, mesh.rank() == 2 ? 3 : 2);
    EXPECT_THAT(message_of<UsageError>([&] { t + mine; }), HasSubstr("rank 0 and rank 2 have with different values"));
    torch::nn::Linear net(2, 3);
    const at::NoGradGuard no_grad;
    net->weight.fill_(mesh.rank() == 1 ? 1 : 2);
    net->bias.fill_(0);
    EXPECT_THAT(message_of<UsageError>([&] { distribute_module(*net, {}, context); }),
                HasSubstr("weight: rank 0 and rank 1 have different values"));
  });
}

TEST(GlobalTensors, ARankThatReadsAloneIsNamed) {
  CommOptions options;
  options.timeout = std::chrono::milliseconds(500);
  std::string message;
  try {
    run_thread_ranks(
        2,
        [&](const std::shared_ptr<Communicator>& world) {
          const GlobalContext context(Mesh::create(world, {{"tp", 2}}));
          const at::Tensor loss = distribute(random_tensor({4}, 1), {{"tp", Shard{0}}}, context).sum();
          if (world->rank() == 0) loss.item<double>();
        },
        options);
  } catch (const std::exception& error) {
    message = error.what();
  }
  EXPECT_THAT(message, HasSubstr("_local_scalar_dense"));
  EXPECT_THAT(message, HasSubstr("rank 1"));
}

at::Tensor scaled_rows(const at::Tensor& x, const at::Tensor& scale) {
  EXPECT_EQ(x.size(0), scale.size(0));
  return x * scale.unsqueeze(1);
}

TORCH_LIBRARY(caravan_test, library) { library.def("scaled_rows(Tensor x, Tensor scale) -> Tensor"); }
TORCH_LIBRARY_IMPL(caravan_test, CPU, library) { library.impl("scaled_rows", scaled_rows); }

TEST(GlobalTensors, OpsOfOthersGetRules) {
  register_rule("caravan_test::scaled_rows", {"rk,r->rk", "", {{0, 1}}});
  EXPECT_THAT(message_of<UsageError>([] { register_rule("caravan_test::missing", {"r->r"}); }), HasSubstr("is no op"));
  EXPECT_THAT(message_of<UsageError>([] { register_rule("caravan_test::scaled_rows", {"r->r"}); }),
              HasSubstr("has 1 operands, 2 were given"));
  const at::Tensor x = random_tensor({4, 6}, 1);
  const at::Tensor scale = random_tensor({4}, 2);
  on_mesh({{"tp", 2}}, [&](const Mesh& mesh) {
    const GlobalContext context(mesh, {.is_strict = true});
    const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("caravan_test::scaled_rows", "");
    const auto call = [&](const Layout& of_x, const Layout& of_scale) {
      torch::jit::Stack stack{distribute(x, of_x, context), distribute(scale, of_scale, context)};
      op.callBoxed(stack);
      return stack[0].toTensor();
    };
    const at::Tensor rows = call({{"tp", Shard{0}}}, {});
    EXPECT_EQ(layout(rows).to_string(), "tp=S(0)");
    EXPECT_TRUE(is_close(full(rows), x * scale.unsqueeze(1)));
    EXPECT_EQ(layout(call({{"tp", Shard{1}}}, {})).to_string(), "tp=S(1)");
  });
}

}  // namespace
}  // namespace caravan::testing::tensors_test
