/// Buffers of modules over the data axes, and steps that differ.

#include <gmock/gmock.h>

#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>

#include "caravan/base/error.h"
#include "caravan/comm/record.h"
#include "caravan/techniques/data/ddp.h"
#include "caravan/techniques/data/zero.h"
#include "caravan/techniques/server/param_server.h"
#include "tests/engine/parameters.h"
#include "tests/techniques/together/technique.h"
#include "tests/techniques/together/user_net.h"

namespace caravan::testing::buffers_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// ---- buffers ----

class BuffersOf : public ::testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Techniques, BuffersOf, ::testing::Values("ddp", "zero1", "zero2", "zero3", "hsdp"));

TEST_P(BuffersOf, EveryRankMatchOneProcess) {
  for (const Buffers buffers : {Buffers::broadcast, Buffers::average}) {
    for (const int ranks : {2, 3, 4}) {
      if (GetParam() == std::string("hsdp") && ranks != 4) continue;
      UserRun run{
          .ranks = ranks, .choice = with(technique_of(GetParam()), {{"share", "off"}}), .micros = 2, .steps = 5};
      if (run.choice.reads("shard")) run.choice.set("shard", int64_t{2});
      run.buffers = buffers;
      SCOPED_TRACE(run.to_string());
      expect_equal(on_ranks(run), in_one_process(run), 1e-10);
    }
  }
}

/// Takes two steps on different rows. Returns the running mean after them and the value of an evaluation.
std::pair<at::Tensor, at::Tensor> mean_and_evaluation(const Mesh& mesh, Buffers buffers) {
  const auto net = std::make_shared<UserNet>();
  ModuleAdapter model(net, UserNet::units(net), mesh);
  Ddp ddp(model, mesh, {.buffers = buffers});
  for (int step = 0; step < 2; ++step) {
    ddp.begin_step();
    model(random_tensor({3, 2, 5, 5}, 10 + mesh.rank()).to(at::kFloat), {}).sum().backward();
    ddp.finish_step();
  }
  net->eval();
  const at::NoGradGuard no_grad;
  return {net->norm->running_mean.clone(), model(at::ones({1, 2, 5, 5}), {.phase = Phase::evaluate})};
}

TEST(BuffersOfRanks, GiveEveryRankTheSameEvaluation) {
  for (const Buffers buffers : {Buffers::broadcast, Buffers::average, Buffers::local}) {
    std::array<std::pair<at::Tensor, at::Tensor>, 2> of;
    on_mesh({{"dp", 2}}, [&](const Mesh& mesh) { of[mesh.rank()] = mean_and_evaluation(mesh, buffers); });
    EXPECT_EQ(at::equal(of[0].first, of[1].first), buffers != Buffers::local);
    EXPECT_EQ(at::equal(of[0].second, of[1].second), buffers != Buffers::local);
  }
}

/// Buffers of any dtype, and one without elements.
struct Various : torch::nn::Module {
  at::Tensor weight = register_parameter("weight", at::ones({2}));
  std::vector<at::Tensor> all;
  explicit Various(int rank) {
    for (const at::ScalarType type : {at::kDouble, at::kBFloat16, at::kShort, at::kBool, at::kLong}) {
      all.push_back(register_buffer(c10::toString(type), at::full({3}, rank, type)));
    }
    register_buffer("empty", at::empty({0}));
    register_buffer("transposed", at::zeros({2, 3}).t());
  }
};

TEST(BuffersOfRanks, MayHaveAnyDtype) {
  on_mesh({{"dp", 3}}, [&](const Mesh& mesh) {
    const auto module = std::make_shared<Various>(0);
    ModuleAdapter model(
        module, [&](const Tensors& x) { return Tensors{x[0] * module->weight}; }, mesh);
    Ddp ddp(model, mesh, {.buffers = Buffers::average});
    for (at::Tensor& buffer : module->all) buffer.fill_(mesh.rank() + 1);
    module->named_buffers()["transposed"].select(0, 1).fill_(mesh.rank());
    ddp.begin_step();
    model(at::ones({2}), {}).sum().backward();
    ddp.finish_step();
    for (const at::Tensor& buffer : module->all) {
      const double want = buffer.is_floating_point() ? 2 : 1;  // the mean of 1, 2, 3; coordinate 0's
      EXPECT_TRUE(at::equal(buffer, at::full({3}, want, buffer.scalar_type()))) << buffer.toString();
    }
    EXPECT_TRUE(at::equal(module->named_buffers()["transposed"],
                          at::tensor({0., 1., 0.}).to(at::kFloat).view({3, 1}).expand({3, 2})));
  });
}

TEST(BuffersOfRanks, SendTheirBytesOnce) {
  for (const Buffers buffers : {Buffers::broadcast, Buffers::average, Buffers::local}) {
    on_mesh({{"dp", 3}}, [&](const Mesh& mesh) {
      const auto net = std::make_shared<UserNet>();
      ModuleAdapter model(net, UserNet::units(net), mesh);
      Ddp ddp(model, mesh, {.buffers = buffers});
      const auto step = [&] {
        const int64_t before = mesh.bytes_sent();
        ddp.begin_step();
        model(at::ones({3, 2, 5, 5}), {}).sum().backward();
        ddp.finish_step();
        return mesh.bytes_sent() - before;
      };
      step();  // recorded, with agreements
      const int64_t gradients = ddp.state().layout.trained_count() * 4;
      int64_t want = wire_bytes(Verb::all_reduce, mesh.rank(), 3, gradients, 0, 0);
      constexpr int64_t kStatistics = 2 * 5 * 4;
      const auto broadcast = [&](int64_t bytes) { return mesh.rank() == 2 ? 0 : bytes; };
      if (buffers == Buffers::broadcast) want += broadcast(kStatistics) + broadcast(8);
      if (buffers == Buffers::average) {
        want += wire_bytes(Verb::all_reduce, mesh.rank(), 3, kStatistics, 0, 0) + broadcast(8);
      }
      EXPECT_NEAR(step(), want, 64) << "but for the rounding of parts";
    });
  }
}

/// Workers that do not wait for each other have nothing to keep them equal by.
TEST(BuffersOfRanks, OfAnAsynchronousServerAreLocal) {
  on_mesh({{"dp", 2}}, [](const Mesh& mesh) {
    const auto net = std::make_shared<UserNet>();
    ModuleAdapter model(net, UserNet::units(net), mesh);
    ParameterServerOptions options{.is_synchronous = false};
    EXPECT_THAT(message_of<UsageError>([&] { param_server(model, mesh, options); }),
                AllOf(HasSubstr("running_mean"), HasSubstr("Buffers::local")));
    options.buffers = Buffers::local;
    EXPECT_NO_THROW(param_server(model, mesh, options));
  });
}

}  // namespace
}  // namespace caravan::testing::buffers_test
