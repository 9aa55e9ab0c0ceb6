#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include <gtest/gtest.h>
#include <torch/nn.h>

#include "caravan/global/global.h"
#include "caravan/global/module.h"
#include "tests/redistribute/denote.h"

namespace caravan::testing::recurrent_test {
namespace {

using Tensors = std::vector<at::Tensor>;

struct Program {
  std::function<std::shared_ptr<torch::nn::Module>()> make;
  std::function<at::Tensor(torch::nn::Module&, const at::Tensor&)> forward;
};

at::Tensor whole(const at::Tensor& x) { return (is_global(x) ? full(x.detach()) : x.detach()).clone(); }

/// The output, and the gradients of input and parameters.
Tensors results(const Program& program, const at::Tensor& x, const std::function<void(torch::nn::Module&)>& prepare,
                const std::function<at::Tensor(const at::Tensor&)>& place) {
  const auto net = [&] {
    static std::mutex one_generator;  // of all rank threads
    const std::lock_guard lock(one_generator);
    at::manual_seed(7);
    return program.make();
  }();
  net->to(x.scalar_type());
  prepare(*net);
  const at::Tensor input = place(x.clone().requires_grad_());
  const at::Tensor output = program.forward(*net, input);
  (output * output).sum().backward();
  Tensors all{whole(output), whole(input.grad())};
  for (const at::Tensor& each : net->parameters()) all.push_back(whole(each.grad()));
  return all;
}

void check(const Program& program, const at::Tensor& x, int batch_dim, double tolerance = 1e-12) {
  const Tensors alone = results(
      program, x, [](torch::nn::Module&) {}, [](const at::Tensor& x) { return x; });
  for (const int num_ranks : {2, 3}) {
    on_mesh({{"dp", num_ranks}}, [&](const Mesh& mesh) {
      const GlobalContext context(mesh);
      const Tensors spread = results(
          program, x, [&](torch::nn::Module& net) { distribute_module(net, {}, context); },
          [&](const at::Tensor& x) {
            return distribute(x, {{"dp", Shard{batch_dim}}}, context);
          });
      for (size_t i = 0; i < alone.size(); ++i) EXPECT_TRUE(is_close(alone[i], spread[i], tolerance)) << "tensor " << i;
      EXPECT_EQ(context.report(), "");
    });
  }
}

template <typename Net, typename Options>
Program layers(const Options& options) {
  return {[options] { return std::make_shared<Net>(options); },
          [](torch::nn::Module& net, const at::Tensor& x) { return std::get<0>(dynamic_cast<Net&>(net).forward(x)); }};
}

TEST(GlobalRecurrent, lstm) {
  using torch::nn::LSTMOptions;
  check(layers<torch::nn::LSTMImpl>(LSTMOptions(3, 5)), random_tensor({4, 6, 3}, 1), 1);
  check(layers<torch::nn::LSTMImpl>(LSTMOptions(3, 5).num_layers(2).bidirectional(true).batch_first(true)),
        random_tensor({6, 4, 3}, 1), 0);
  check(layers<torch::nn::LSTMImpl>(LSTMOptions(3, 5).bias(false).proj_size(2)), random_tensor({4, 7, 3}, 1), 1);
}
// In fp32 layers are one op, of oneDNN. Of two sequences one of three ranks has none.
TEST(GlobalRecurrent, lstm_in_fp32) {
  using torch::nn::LSTMOptions;
  constexpr double kTolerance = 1e-5;  // of sums of some ten terms in another order
  const auto x = [](at::IntArrayRef sizes) { return random_tensor(sizes, 1).to(at::kFloat); };
  for (const int64_t num_sequences : {2, 5}) {
    check(layers<torch::nn::LSTMImpl>(LSTMOptions(3, 5)), x({4, num_sequences, 3}), 1, kTolerance);
    check(layers<torch::nn::LSTMImpl>(LSTMOptions(3, 5).num_layers(2).bidirectional(true).batch_first(true)),
          x({num_sequences, 4, 3}), 0, kTolerance);
  }
  check(layers<torch::nn::LSTMImpl>(LSTMOptions(3, 5).bias(false)), x({4, 6, 3}), 1, kTolerance);
}
TEST(GlobalRecurrent, gru) {
  using torch::nn::GRUOptions;
  check(layers<torch::nn::GRUImpl>(GRUOptions(3, 5)), random_tensor({4, 6, 3}, 1), 1);
}
// at::gru ends with transpose_(), which changes the sizes of the global tensor in place.
TEST(GlobalRecurrent, gru_with_batch_first) {
  using torch::nn::GRUOptions;
  check(layers<torch::nn::GRUImpl>(GRUOptions(3, 5).num_layers(2).bidirectional(true).batch_first(true)),
        random_tensor({6, 4, 3}, 1), 0);
}
TEST(GlobalRecurrent, gru_with_batch_first_uneven) {
  using torch::nn::GRUOptions;
  check(layers<torch::nn::GRUImpl>(GRUOptions(3, 5).num_layers(2).bidirectional(true).batch_first(true)),
        random_tensor({7, 4, 3}, 1), 0);
}
TEST(GlobalRecurrent, rnn) {
  using torch::nn::RNNOptions;
  check(layers<torch::nn::RNNImpl>(RNNOptions(3, 5)), random_tensor({4, 6, 3}, 1), 1);
  check(layers<torch::nn::RNNImpl>(RNNOptions(3, 5).nonlinearity(torch::kReLU).bidirectional(true)),
        random_tensor({4, 7, 3}, 1), 1);
}
TEST(GlobalRecurrent, cells) {
  const at::Tensor x = random_tensor({6, 3}, 1);
  check({[] { return std::make_shared<torch::nn::LSTMCellImpl>(3, 5); },
         [](torch::nn::Module& net, const at::Tensor& x) {
           return std::get<0>(dynamic_cast<torch::nn::LSTMCellImpl&>(net).forward(x));
         }},
        x, 0);
  check({[] { return std::make_shared<torch::nn::GRUCellImpl>(3, 5); },
         [](torch::nn::Module& net, const at::Tensor& x) {
           return dynamic_cast<torch::nn::GRUCellImpl&>(net).forward(x);
         }},
        x, 0);
  check({[] { return std::make_shared<torch::nn::RNNCellImpl>(3, 5); },
         [](torch::nn::Module& net, const at::Tensor& x) {
           return dynamic_cast<torch::nn::RNNCellImpl&>(net).forward(x);
         }},
        x, 0);
}

}  // namespace
}  // namespace caravan::testing::recurrent_test
