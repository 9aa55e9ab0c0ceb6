/// A convolutional net with DataLoader, StepLR, clipping, autocast, batch norm over all ranks, and checkpoints, from
/// which the next call goes on with the next rows, also on another number of ranks. Ctrl-C saves one.
///   caravan run build/release/examples/example_05_cnn runs/cnn 4 --ranks 2

#include <cstdio>
#include <cstdlib>

#include <ATen/ops/max_pool2d.h>
#include <torch/data.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/optim/sgd.h>

#include "caravan/caravan.h"
#include "caravan/session/sharded_sampler.h"

using namespace caravan;

struct NetImpl : torch::nn::Module {
  torch::nn::Conv2d conv{register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 8, 3).padding(1)))};
  torch::nn::BatchNorm2d norm{register_module("norm", torch::nn::BatchNorm2d(8))};
  torch::nn::Linear out{register_module("out", torch::nn::Linear(8 * 16, 3))};
  MeshAxis dp;
  explicit NetImpl(const Session& session) : dp(session["dp"]) {}
  at::Tensor forward(const at::Tensor& images) {
    const Autocast autocast;  // convolutions and products in bf16
    return out(at::max_pool2d(sync_batch_norm(conv(images), norm, dp).relu(), 2).flatten(1));
  }
};
TORCH_MODULE(Net);

/// Noisy 8 x 8 images with a bright square at one of three places, which is the class.
struct Squares : torch::data::Dataset<Squares> {
  torch::data::Example<> get(size_t i) override {
    at::Tensor x = at::arange(64, at::kFloat).add(static_cast<double>(i)).mul(0.37).sin().view({1, 8, 8}) * 0.2;
    const auto place = static_cast<int64_t>(i % 3);
    x[0].narrow(0, place * 3, 2).narrow(1, place * 3, 2).add_(1);
    return {x, at::scalar_tensor(place, at::kLong)};
  }
  std::optional<size_t> size() const override { return 240; }
};

void train(const std::string& run, int64_t epochs) {
  Session session;
  Net net(session);
  auto model = parallelize(net, session, {ddp()}, {.average = true});
  torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  torch::optim::StepLR scheduler(optimizer, /*step_size=*/2, /*gamma=*/0.5);
  ShardedSampler sampler(240, session["dp"], {.seed = 7});
  const auto rows = 24 / static_cast<size_t>(session.size());
  const auto loader = torch::data::make_data_loader(Squares().map(torch::data::transforms::Stack<>()), sampler, rows);
  double loss_of_epoch = 0;
  model.attach(optimizer);
  model.attach(scheduler);
  model.attach("sampler", sampler);
  model.attach("loss", loss_of_epoch);
  Progress now = model.load(run);
  while (sampler.epoch() < epochs) {
    for (const auto& [images, labels] : sampler.over(*loader)) {
      const at::Tensor loss = at::cross_entropy_loss(model(images).to(at::kFloat), labels);
      loss.backward();
      model.clip_grad_norm(5.0);
      optimizer.step();
      loss_of_epoch += session.sum(loss.item<double>()) / session.size() / 10;
      ++now.step;
      if (model.save_if_due(run, now, {.minutes = 10}).stop) return;
    }
    scheduler.step();
    if (session.is_main()) std::printf("step %ld: loss %.6f\n", sampler.epoch(), loss_of_epoch);
    loss_of_epoch = 0;
  }
  model.save(run, now);
}

int main(int argc, char** argv) {
  return run_program([&] { train(argc > 1 ? argv[1] : "runs/cnn", argc > 2 ? std::atol(argv[2]) : 4); });
}
