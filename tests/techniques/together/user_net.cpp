#include "tests/techniques/together/user_net.h"

#include <cmath>
#include <optional>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "caravan/optim/grad_norm.h"
#include "caravan/redistribute/redistribute.h"
#include "caravan/techniques/make_strategy.h"
#include "tests/redistribute/denote.h"

namespace caravan::testing {
namespace {

constexpr int64_t kRows = 3;
constexpr double kRate = 0.1;

bool has_batch(const UserRun& run, int step, int rank) { return !run.has_batch || run.has_batch(step, rank); }

int num_batches(const UserRun& run, int step) {
  int num = 0;
  for (int rank = 0; rank < run.ranks; ++rank) num += has_batch(run, step, rank) ? 1 : 0;
  return num;
}

/// The loss of one slice: a mean over all rows of the step.
at::Tensor loss_of(const UserRun& run, UserNet& net, int step, int rank, int micro, int num,
                   const std::function<at::Tensor(const at::Tensor&)>& forward) {
  net.takes_branch = !run.takes_branch || run.takes_branch(step, rank, micro);
  const at::ScalarType type = run.compute == at::kFloat ? run.dtype : run.compute;
  const at::Tensor x = random_tensor({kRows, 2, 5, 5}, static_cast<uint64_t>(1 + step * 100 + rank * 10 + micro));
  const at::Tensor y = forward(x.to(type)).to(run.dtype);
  return (y.square() + y).sum() / static_cast<double>(kRows * num * run.micros);
}

Named buffers_of(const UserNet& net) {
  Named all;
  for (const auto& item : net.named_buffers()) all[item.key()] = item.value().clone();
  return all;
}

std::shared_ptr<UserNet> make_net(at::ScalarType dtype) {
  auto net = std::make_shared<UserNet>();
  net->to(dtype);
  return net;
}

ModuleAdapter adapt(const std::shared_ptr<UserNet>& net, bool has_units, const Mesh& mesh) {
  if (has_units) return {net, UserNet::units(net), mesh};
  return {net, [net](const Tensors& inputs) { return Tensors{net->forward(inputs[0])}; }, mesh};
}

void update(const std::vector<at::Tensor>& parameters) {
  const at::NoGradGuard no_grad;
  for (const at::Tensor& parameter : parameters) {
    if (parameter.grad().defined()) parameter.detach().sub_(parameter.grad(), kRate);
  }
}

}  // namespace

UserNet::UserNet() {
  // No bias: the gradient of one before a batch norm is zero but for rounding.
  first = register_module("first", torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 5, 3).padding(1).bias(false)));
  norm = register_module("norm", torch::nn::BatchNorm2d(5));
  branch = register_module("branch", torch::nn::Conv2d(torch::nn::Conv2dOptions(5, 5, 3).padding(1)));
  out = register_module("out", torch::nn::Linear(5 * 5 * 5, 3));
  const at::NoGradGuard no_grad;
  uint64_t seed = 20;
  for (at::Tensor& weight : parameters()) weight.copy_(0.3 * random_tensor(weight.sizes(), ++seed));
}

at::Tensor UserNet::stem(const at::Tensor& x) {
  const at::Tensor y = first(x);
  if (y.scalar_type() != at::kBFloat16) return norm(y).relu();
  // libtorch takes weights of the dtype of the statistics only.
  norm->num_batches_tracked += 1;
  return at::batch_norm(y.to(at::kFloat), norm->weight.to(at::kFloat), norm->bias.to(at::kFloat), norm->running_mean,
                        norm->running_var, norm->is_training(), 0.1, 1e-5, /*cudnn_enabled=*/false)
      .to(at::kBFloat16)
      .relu();
}

std::vector<ModuleAdapter::Unit> UserNet::units(const std::shared_ptr<UserNet>& net) {
  return {
      {"stem", {net->first.ptr(), net->norm.ptr()}, [net](const Tensors& x) { return Tensors{net->stem(x[0])}; }},
      {"side", {net->branch.ptr()}, [net](const Tensors& x) { return Tensors{net->side(x[0])}; }},
      {"head", {net->out.ptr()}, [net](const Tensors& x) { return Tensors{net->head(x[0])}; }},
  };
}

std::string UserRun::to_string() const {
  return fmt::format("{} on {} ranks, {} {}, {} micro-batches, share {}, {}", choice.name(), ranks,
                     c10::toString(dtype), c10::toString(compute), micros, choice.text("share"),
                     choice.text("accumulate"));
}

std::vector<UserStep> on_ranks(const UserRun& run) {
  std::vector<std::vector<UserStep>> by_rank(static_cast<size_t>(run.ranks));
  on_mesh({{"dp", run.ranks}}, [&](const Mesh& world) {
    Mesh mesh = world;
    const auto net = make_net(run.dtype);
    ModuleAdapter model = adapt(net, run.has_units, mesh);
    Strategy strategy = make_strategy({.data_parallel = run.choice, .compute_dtype = run.compute}, model, mesh);
    strategy.find_unused_parameters = true;
    strategy.buffers = run.buffers;
    strategy.static_graph = run.static_graph;
    Engine engine(model, mesh, strategy);
    for (int step = 0; step < run.steps; ++step) {
      const bool is_here = has_batch(run, step, mesh.rank());
      const int num = num_batches(run, step);
      if (run.has_batch) {
        ASSERT_TRUE(engine.begin_join_step(is_here, is_here ? run.micros : 77));
        ASSERT_EQ(engine.num_joined(), num);
      } else {
        engine.begin_step(run.micros);
      }
      UserStep result;
      for (int micro = 0; micro < run.micros && is_here; ++micro) {
        const at::Tensor loss =
            loss_of(run, *net, step, mesh.rank(), micro, num, [&](const at::Tensor& x) { return model(x, {}); });
        loss.backward();
        result.loss += loss.item<double>();
      }
      engine.finish_step();
      result.norm = grad_norm(engine.state(), mesh);
      for (const Parameter* parameter : model.parameters()) {
        const at::NoGradGuard no_grad;
        result.gradients[parameter->name()] = redistribute(parameter->sharded().grad(), parameter->sharded_layout(),
                                                           Layout::all(mesh, Invariant{}), mesh, parameter->name())
                                                  .clone();
      }
      result.buffers = buffers_of(*net);
      by_rank[static_cast<size_t>(mesh.rank())].push_back(std::move(result));
      update(engine.parameters());
    }
    if (run.has_batch) {
      EXPECT_FALSE(engine.begin_join_step(false, run.micros));
    }
  });
  std::vector<UserStep> all = by_rank.front();
  for (size_t step = 0; step < all.size(); ++step) {
    for (size_t rank = 1; rank < by_rank.size(); ++rank) {
      const UserStep& other = by_rank[rank].at(step);
      all[step].loss += other.loss;
      for (const auto& [name, buffer] : other.buffers) {
        EXPECT_TRUE(run.buffers == Buffers::local || at::equal(buffer, all[step].buffers.at(name)))
            << name << " differs on rank " << rank << " after step " << step;
      }
    }
  }
  return all;
}

std::vector<UserStep> in_one_process(const UserRun& run) {
  const auto net = make_net(run.dtype);
  const auto parameters = net->named_parameters();
  std::vector<at::Tensor> values;
  for (const auto& item : parameters) values.push_back(item.value().detach().clone());
  std::vector<UserStep> steps;
  for (int step = 0; step < run.steps; ++step) {
    UserStep result;
    for (size_t i = 0; i < values.size(); ++i) {
      const at::Tensor& value = values[i];
      at::Tensor weight = parameters[i].value();
      weight.set_data(run.compute == at::kFloat ? value.clone() : value.to(run.compute));
      values[i].mutable_grad() = at::zeros_like(value);
    }
    const Named before = buffers_of(*net);
    Named sums;
    std::optional<Named> first;
    const int num = num_batches(run, step);
    for (int rank = 0; rank < run.ranks; ++rank) {
      if (!has_batch(run, step, rank)) continue;
      for (auto& item : net->named_buffers()) item.value().copy_(before.at(item.key()));
      for (int micro = 0; micro < run.micros; ++micro) {
        const at::Tensor loss =
            loss_of(run, *net, step, rank, micro, num, [&](const at::Tensor& x) { return net->forward(x); });
        loss.backward();
        result.loss += loss.item<double>();
        for (size_t i = 0; i < values.size(); ++i) {
          at::Tensor weight = parameters[i].value();
          if (weight.grad().defined()) values[i].mutable_grad().add_(weight.grad());
          weight.mutable_grad() = at::Tensor();
        }
      }
      const Named after = buffers_of(*net);
      if (!first) first = after;
      for (const auto& [name, buffer] : after) {
        sums[name] = sums.contains(name) ? sums[name] + buffer : buffer;
      }
    }
    for (auto& item : net->named_buffers()) {
      const bool is_mean = run.buffers == Buffers::average && item.value().is_floating_point();
      item.value().copy_(is_mean ? sums.at(item.key()) / num : first->at(item.key()));
    }
    double squares = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      result.gradients[parameters[i].key()] = values[i].grad().clone();
      squares += values[i].grad().to(at::kDouble).square().sum().item<double>();
    }
    result.norm = std::sqrt(squares);
    result.buffers = buffers_of(*net);
    steps.push_back(std::move(result));
    update(values);
  }
  return steps;
}

void expect_equal(const std::vector<UserStep>& got, const std::vector<UserStep>& want, double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t step = 0; step < want.size(); ++step) {
    SCOPED_TRACE("step " + std::to_string(step));
    EXPECT_NEAR(got[step].loss / want[step].loss, 1, tolerance);
    EXPECT_NEAR(got[step].norm / want[step].norm, 1, tolerance);
    const auto gradients = distance(got[step].gradients, want[step].gradients);
    EXPECT_LE(gradients.first, tolerance) << "gradient of " << gradients.second;
    for (const auto& [name, buffer] : want[step].buffers) {
      EXPECT_TRUE(is_close(got[step].buffers.at(name).to(at::kDouble), buffer.to(at::kDouble), tolerance)) << name;
    }
  }
}

}  // namespace caravan::testing
