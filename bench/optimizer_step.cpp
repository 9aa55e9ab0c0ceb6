/// AdamW on the host tier, timed on command: reads a line, steps once, prints its seconds. "copy" times the bandwidth
/// of the memory instead: the same traffic without arithmetic, a STREAM-like pass that reads four arrays and writes
/// three.    optimizer_step MILLIONS_OF_PARAMETERS THREADS
///
/// With --kinds: the milliseconds of a step of each optimizer that needs more than elements, beside AdamW, of a model
/// of WIDTH and LAYERS that RANKS ranks shard.    optimizer_step --kinds RANKS THREADS WIDTH LAYERS ROUNDS

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/ops/arange.h>
#include <fmt/format.h>

#include "caravan/base/runtime.h"
#include "caravan/comm/backends/shared/thread_ranks.h"
#include "caravan/engine/engine.h"
#include "caravan/optim/make_optimizer.h"
#include "caravan/optim/optimizer.h"
#include "caravan/registry/setting.h"
#include "caravan/techniques/data/zero.h"
#include "caravan/techniques/offload/offload.h"

using namespace caravan;

namespace {

struct Matrix final : Module {
  explicit Matrix(int64_t count) {
    register_parameter("weight", {.shape = {count / 1024, 1024}, .init = {Init::Kind::normal, 0.02}});
  }
  Tensors forward(Tensors inputs, const ForwardContext&) override { return inputs; }
};

/// Seconds of a pass over arrays of `count` elements that moves what AdamW moves: gradients, values and two moments are
/// read, and all but the gradients written.
__attribute__((target_clones("avx512f", "avx2", "default"), optimize("O3"))) void add(
    const float* __restrict g, float* __restrict w, float* __restrict m, float* __restrict v, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    w[i] = w[i] + g[i];
    m[i] = m[i] + g[i];
    v[i] = v[i] + g[i];
  }
}

double move(std::vector<std::vector<float>>& arrays, int64_t count) {
  const auto begin = std::chrono::steady_clock::now();
  at::parallel_for(0, count, int64_t{1} << 15, [&](int64_t first, int64_t last) {
    add(arrays[0].data() + first, arrays[1].data() + first, arrays[2].data() + first, arrays[3].data() + first,
        last - first);
  });
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// The parameters of a model like the llama of a recipe, by shape: an embedding, and per layer four products of
/// attention, three of an MLP and two norms.
struct Layers final : Module {
  Layers(int64_t width, int64_t layers) {
    const Init init{Init::Kind::normal, 0.02};
    register_parameter("embedding", {.shape = {8192, width}, .init = init, .matrices = 0});
    const int64_t hidden = width * 8 / 3 / 32 * 32;
    for (int64_t layer = 0; layer < layers; ++layer) {
      const auto add = [&](const char* name, std::vector<int64_t> shape) {
        register_parameter(fmt::format("{}_{}", name, layer), {.shape = std::move(shape), .init = init});
      };
      for (const char* name : {"q", "k", "v", "o"}) add(name, {width, width});
      add("gate", {hidden, width});
      add("up", {hidden, width});
      add("down", {width, hidden});
      add("attention_norm", {width});
      add("mlp_norm", {width});
    }
  }
  Tensors forward(Tensors inputs, const ForwardContext&) override { return inputs; }
};

struct Kinds {
  int ranks = 1;
  int64_t width = 512;
  int64_t layers = 4;
  int rounds = 7;
};

void time_kinds(const std::shared_ptr<Communicator>& world, const Kinds& kinds) {
  const Mesh mesh = Mesh::create(world, {{"dp", kinds.ranks}});
  for (const char* name : {"adamw", "adafactor", "muon"}) {
    Layers model(kinds.width, kinds.layers);
    Strategy strategy = whole_model(model, mesh);
    if (kinds.ranks > 1) add_fsdp(strategy, mesh);
    Engine engine(model, mesh, strategy, {.seed = 1});
    FlatState& state = engine.state();
    for (const Slot& slot : state.layout.slots()) {
      const at::Tensor gradient = state.layout.view(state.gradients, *slot.parameter);
      gradient.copy_(at::arange(gradient.numel(), at::kFloat).sin().view(gradient.sizes()));
    }
    const std::unique_ptr<Optimizer> optimizer = make_optimizer(Setting("optimizer", name), state);
    std::vector<double> times;
    for (int round = -1; round < kinds.rounds; ++round) {  // the first touches its pages
      world->barrier("before a step");
      const auto begin = std::chrono::steady_clock::now();
      optimizer->step(1e-4);
      world->barrier("after a step");
      if (round >= 0) times.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    }
    std::ranges::sort(times);
    if (world->rank() != 0) continue;
    fmt::print("{:9} {:8.1f} ms ({:.1f} to {:.1f})\n", name, 1e3 * times[times.size() / 2], 1e3 * times.front(),
               1e3 * times.back());
  }
}

void serve(const std::shared_ptr<Communicator>& world, int64_t count) {
  Matrix model(count);
  const Mesh mesh = Mesh::create(world, {});
  Strategy strategy = whole_model(model, mesh);
  add_offload(strategy, {.optimizer = Tier::host, .parameters = Tier::host, .gradients = Tier::host});
  Engine engine(model, mesh, strategy, {.seed = 1});
  FlatState& state = engine.state();
  for (const Slot& slot : state.layout.slots()) state.layout.view(state.gradients, *slot.parameter).fill_(1e-3F);
  AdamW optimizer(state, {});
  std::vector<std::vector<float>> arrays(4, std::vector<float>(static_cast<size_t>(count), 1));
  std::cout << "ready" << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    const auto begin = std::chrono::steady_clock::now();
    double seconds = 0;
    if (line == "copy") {
      seconds = move(arrays, count);
    } else {
      optimizer.step(1e-4);
      seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    }
    std::cout << fmt::format("{:.6f}", seconds) << std::endl;
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 7 && std::string(argv[1]) == "--kinds") {
    const Kinds kinds{std::atoi(argv[2]), std::atoll(argv[4]), std::atoll(argv[5]), std::atoi(argv[6])};
    const Runtime runtime({.intra_op_threads = std::atoi(argv[3])});
    run_thread_ranks(kinds.ranks, [&](const std::shared_ptr<Communicator>& world) { time_kinds(world, kinds); });
    return 0;
  }
  const int64_t count = (argc > 1 ? std::atoll(argv[1]) : 100) * 1'000'000 / 1024 * 1024;
  const Runtime runtime({.intra_op_threads = argc > 2 ? std::atoi(argv[2]) : 1});
  run_thread_ranks(1, [&](const std::shared_ptr<Communicator>& world) { serve(world, count); });
  return 0;
}
