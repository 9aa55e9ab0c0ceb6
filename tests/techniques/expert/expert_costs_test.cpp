/// What a rank with experts sends, keeps and holds against the formulas of tests/cost/formulas.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "caravan/base/memory/memory_counter.h"
#include "caravan/comm/backends/shared/thread_ranks.h"
#include "caravan/engine/engine.h"
#include "caravan/models/model.h"
#include "caravan/redistribute/redistribute.h"
#include "caravan/techniques/make_strategy.h"
#include "tests/cost/formulas/memory.h"
#include "tests/techniques/together/technique.h"

namespace caravan::testing::expert_costs_test {
namespace {

struct Measured {
  double forward = 0;   ///< bytes sent
  double backward = 0;  ///< with the sums of gradients
  double kept = 0;      ///< bytes, from forward to backward
  double elements = 0;  ///< of sharded parameters
};

/// Every token goes to every expert, or ranks would not get as many copies as each other. Parts of biases have 32
/// elements: shorter ones are padded in flat buffers.
MemoryShape shape_of(Architecture kind, int64_t ep, const Split& cp = context_of("ring", 1), int64_t tp = 1) {
  return {.model = {.arch = kind,
                    .layers = 1,
                    .width = 64,
                    .heads = 4,
                    .context = 64,
                    .vocabulary = 64,
                    .hidden = 48,
                    .moe = {.experts = 4, .top_k = 4, .shared_hidden = 64, .shared_gate = true}},
          .sequences = 8,
          .rows = 8,
          .tensor_parallel = tensor_of(tp),
          .context_parallel = cp,
          .expert_parallel = experts_of(ep)};
}

std::vector<AxisSize> axes_of(const MemoryShape& shape) {
  std::vector<AxisSize> axes{{"dp", 1}};
  const auto add = [&](const char* name, int64_t size) {
    if (size > 1) axes.push_back({name, static_cast<int>(size)});
  };
  add("ep", shape.expert_parallel.degree);
  add("cp", shape.context_parallel.degree);
  add("tp", shape.tensor_parallel.degree);
  return axes;
}

/// The second step of one of the ranks: the first one allocates buffers.
Measured measured_on(const std::shared_ptr<Communicator>& world, const MemoryShape& shape) {
  Mesh mesh = Mesh::create(world, axes_of(shape));
  Model model(shape.model);
  StrategyChoice choice{.tensor_parallel = shape.tensor_parallel,
                        .context_parallel = shape.context_parallel,
                        .expert_parallel = shape.expert_parallel,
                        .sequences = shape.sequences};
  if (shape.reduce_bytes == 2) choice.reduce_dtype = at::kBFloat16;
  const Strategy strategy = make_strategy(choice, model, mesh);
  Engine engine(model, mesh, strategy);
  const at::Tensor ids = at::zeros({shape.sequences, shape.model.context}, at::kLong);
  ForwardContext context{.loss_scale = 1e-3};
  context.set(Dim::batch, DimIndex(0, shape.sequences, shape.sequences));
  Measured measured;
  for (int step = 0; step < 2; ++step) {
    engine.begin_step();
    MemoryCounter& counter = MemoryCounter::current();
    const int64_t live = counter.live_bytes(), sent = mesh.bytes_sent();
    const at::Tensor loss = model.run({ids, ids}, context)[0];
    measured.kept = static_cast<double>(counter.live_bytes() - live);
    measured.forward = static_cast<double>(mesh.bytes_sent() - sent);
    backward(loss, strategy.plan->loss_layout());
    engine.finish_step();
    measured.backward = static_cast<double>(mesh.bytes_sent() - sent) - measured.forward;
  }
  for (const Parameter* parameter : model.parameters()) {
    measured.elements += static_cast<double>(parameter->sharded().numel());
  }
  return measured;
}

Measured measure(MemoryShape shape, int64_t layers) {
  shape.model.layers = layers;
  int64_t ranks = 1;
  for (const AxisSize& axis : axes_of(shape)) ranks *= axis.size;
  Measured first;
  run_thread_ranks(static_cast<int>(ranks), [&](const std::shared_ptr<Communicator>& world) {
    const Measured measured = measured_on(world, shape);
    if (world->rank() == 0) first = measured;
  });
  return first;
}

/// Costs of one more layer.
Measured layer_of(const MemoryShape& shape) {
  const Measured two = measure(shape, 2), three = measure(shape, 3);
  return {three.forward - two.forward, three.backward - two.backward, three.kept - two.kept,
          three.elements - two.elements};
}

/// Bytes of tensor and context parallelism, with the gradients that 1d sums.
TensorTraffic beside_experts(const MemoryShape& shape) {
  TensorTraffic sent;
  std::vector<TensorShape> others = context_shapes(shape);
  if (shape.tensor_parallel.is_used()) others.push_back(tensor_shape(shape));
  for (const TensorShape& other : others) {
    const TensorTraffic layer = layer_bytes(other);
    sent.forward += layer.forward;
    sent.backward += layer.backward;
  }
  if (shape.tensor_parallel.is_used()) sent.backward += 4 * data_elements_per_step(others.back());
  return sent;
}

/// f of a model with one more layer.
template <class F>
double added_by_a_layer(MemoryShape shape, F f) {
  const double before = f(state_of(shape));
  ++shape.model.layers;
  return f(state_of(shape)) - before;
}

std::vector<MemoryShape> shapes() {
  std::vector<MemoryShape> all;
  for (const Architecture& kind : {Architecture::llama(), Architecture::gpt2()}) {
    const Split whole = context_of("ring", 1), ring = context_of("ring", 2);
    all.push_back(shape_of(kind, 2));
    all.push_back(shape_of(kind, 4));
    all.push_back(shape_of(kind, 2));
    all.back().reduce_bytes = 2;
    all.push_back(shape_of(kind, 1, whole, 2));
    all.push_back(shape_of(kind, 2, whole, 2));
    all.push_back(shape_of(kind, 1, ring));
    all.push_back(shape_of(kind, 2, ring));
    all.push_back(all.back());
    all.back().model.moe.capacity = 1;
    all.push_back(shape_of(kind, 1, context_of("both", 4, {{"exchange", 2}})));
  }
  return all;
}

TEST(ExpertCosts, MatchTheFormulas) {
  needs({"experts", "1d", "ring", "both"});
  for (const MemoryShape& shape : shapes()) {
    SCOPED_TRACE(::testing::Message() << shape.model.arch.name << ", ep " << shape.expert_parallel.degree << ", cp "
                                      << shape.context_parallel.degree << ", tp " << shape.tensor_parallel.degree
                                      << ", capacity " << shape.model.moe.capacity);
    const Measured layer = layer_of(shape);
    const TensorTraffic experts = expert_bytes(expert_shape(shape)), others = beside_experts(shape);
    EXPECT_DOUBLE_EQ(layer.forward, experts.forward + others.forward);
    const double gradients = added_by_a_layer(shape, [](const StateShape& of) { return state_traffic(of).bytes; });
    EXPECT_DOUBLE_EQ(layer.backward, experts.backward + others.backward + gradients);
    EXPECT_DOUBLE_EQ(layer.elements, added_by_a_layer(shape, [](const StateShape& of) { return of.parameters; }));
    // Ranks of Ulysses keep more than the formula says: keys, values and queries of whole sequences.
    if (shape.context_parallel.parts().heads > 1) continue;
    EXPECT_NEAR(layer.kept / layer_activation_bytes(shape), 1, 0.01) << "RMSNorm keeps one number of a row, not two";
  }
}

}  // namespace
}  // namespace caravan::testing::expert_costs_test
