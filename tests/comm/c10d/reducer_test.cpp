#include <cstdlib>

#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/distributed/c10d/reducer.hpp>
#include <torch/headeronly/version.h>

#include "caravan/comm/backends/shared/thread_ranks.h"
#include "tests/comm/c10d/group.h"
#include "tests/ranks/process_ranks.h"
#include "tests/ranks/rank_case.h"

namespace caravan::testing::reducer_test {
namespace {

using Tensors = std::vector<at::Tensor>;

constexpr int64_t kRows = 4;  // of each rank
constexpr int64_t kWidth = 16;
constexpr int kLayers = 4;
constexpr int kSteps = 3;

at::Tensor wave(int64_t count, double phase) { return at::sin(at::arange(count, at::kDouble) * 0.7 + phase); }

Tensors make_parameters() {
  Tensors parameters;
  for (int layer = 0; layer < kLayers; ++layer) {
    parameters.push_back(wave(kWidth * kWidth, layer).view({kWidth, kWidth}).mul(0.4).requires_grad_());
  }
  return parameters;
}

at::Tensor input_of_rank(int rank, int step) { return wave(kRows * kWidth, 10 * rank + step).view({kRows, kWidth}); }

at::Tensor loss_of(const Tensors& parameters, at::Tensor x) {
  for (const at::Tensor& weight : parameters) x = x.matmul(weight).tanh();
  return x.square().mean();
}

/// The mean over the ranks of each parameter's gradient, in one process.
Tensors averaged_gradients(int ranks, int step) {
  Tensors sums;
  for (int rank = 0; rank < ranks; ++rank) {
    const Tensors parameters = make_parameters();
    loss_of(parameters, input_of_rank(rank, step)).backward();
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (rank == 0) sums.push_back(at::zeros_like(parameters[i]));
      sums[i] += parameters[i].grad() / ranks;
    }
  }
  return sums;
}

/// Tells memory of the communicator from that of torch.
[[maybe_unused]] c10::DeleterFnPtr deleter_of(const at::Tensor& tensor) {
  return tensor.storage().data_ptr().get_deleter();
}

struct Case {
  bool views = false;         ///< gradient_as_bucket_view
  bool static_graph = false;  ///< the Reducer waits for futures before backward's callbacks run
};

void check_steps(const std::shared_ptr<Communicator>& world, const Case& each) {
  const auto group = make_group(world);
  Tensors parameters = make_parameters();
  // Two buckets, in the order in which the gradients come.
  std::vector<std::vector<size_t>> buckets{{3, 2}, {1, 0}};
  auto reducer = std::make_shared<c10d::Reducer>(
      parameters, buckets, group, std::vector<bool>(parameters.size(), false), /*bucket_bytes_cap=*/1 << 20,
      /*find_unused_parameters=*/false, each.views, std::unordered_map<size_t, std::string>{},
      /*first_bucket_bytes_cap=*/1 << 12, /*skip_all_reduce_unused_params=*/false, /*use_python_reducer=*/false,
      std::vector<int64_t>{});
  if (each.static_graph) reducer->set_static_graph();
  for (int step = 0; step < kSteps; ++step) {
    for (at::Tensor& parameter : parameters) parameter.mutable_grad().reset();
    reducer->rebuild_buckets();
    reducer->prepare_for_forward();
    const at::Tensor loss = loss_of(parameters, input_of_rank(world->rank(), step));
    reducer->prepare_for_backward({loss});
    if (each.static_graph && step == 0) {  // as DistributedDataParallel does: the Reducer's work is in a callback
      loss.register_hook([&](const at::Tensor&) {
        torch::autograd::Engine::get_default_engine().queue_callback([&] { reducer->delay_all_reduce(); });
      });
    }
    loss.backward();
    const Tensors expected = averaged_gradients(world->size(), step);
    for (size_t i = 0; i < parameters.size(); ++i) {
      // fp64; the Reducer divides by the ranks before it sums, the reference after.
      EXPECT_TRUE(at::allclose(parameters[i].grad(), expected[i], 1e-13, 1e-15)) << "step " << step << " layer " << i;
    }
  }
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 13  // the first whose Reducer asks for memory
  if (each.views) {
    const auto backend = group->getBackend(c10::DeviceType::CPU);
    EXPECT_EQ(deleter_of(parameters[0].grad()), deleter_of(backend->allocateTensor(1, at::TensorOptions(at::kDouble))));
    EXPECT_NE(deleter_of(parameters[0].grad()), deleter_of(at::empty({1}, at::kDouble)));
  }
#endif
}

class C10dReducer : public ::testing::TestWithParam<RankCase> {};

TEST_P(C10dReducer, AveragesGradients) {
  GetParam().run([](const auto& world) { check_steps(world, {}); });
}
TEST_P(C10dReducer, AveragesGradientsInPlace) {
  setenv("DDP_DISABLE_COMM_MEM", "0", 1);  // the Reducer's switch for buckets in the back-end's memory
  GetParam().run([](const auto& world) { check_steps(world, {.views = true}); });
}
TEST_P(C10dReducer, AveragesGradientsOfAStaticGraph) {
  GetParam().run([](const auto& world) { check_steps(world, {.static_graph = true}); });
}

INSTANTIATE_TEST_SUITE_P(Thread, C10dReducer, ::testing::ValuesIn(rank_cases("thread", {1, 2, 4}, run_thread_ranks)),
                         case_name);
INSTANTIATE_TEST_SUITE_P(Shm, C10dReducer, ::testing::ValuesIn(rank_cases("shm", {3}, run_process_ranks)), case_name);

}  // namespace
}  // namespace caravan::testing::reducer_test
