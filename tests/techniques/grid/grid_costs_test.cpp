/// What a rank of each kind of split sends, and what one of a grid holds, against formulas (tests/cost).

#include <algorithm>
#include <utility>

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "caravan/base/memory/memory_counter.h"
#include "caravan/comm/record.h"
#include "caravan/models/model.h"
#include "caravan/module/plan/plan.h"
#include "caravan/redistribute/redistribute.h"
#include "caravan/techniques/context/context_parallel.h"
#include "caravan/techniques/grid/tensor_25d.h"
#include "caravan/techniques/grid/tensor_2d.h"
#include "caravan/techniques/grid/tensor_3d.h"
#include "caravan/techniques/tensor/tensor_1d.h"
#include "tests/cost/formulas/tensor.h"

namespace caravan::testing::grid_costs_test {
namespace {

std::vector<AxisSize> axes_of(const TensorShape& shape) {
  const int side = static_cast<int>(shape.side());
  if (shape.kind == "1d" || shape.kind == "ring" || shape.kind == "ulysses") return {{"ranks", side}};
  if (shape.kind == "2d") return {{"row", side}, {"col", side}};
  if (shape.kind == "2.5d") return {{"depth", static_cast<int>(shape.depth)}, {"row", side}, {"col", side}};
  return {{"a", side}, {"b", side}, {"c", side}};
}

Plan plan_of(const TensorShape& shape, Mesh& mesh) {
  if (shape.kind == "1d") return tensor_1d(shape.model, mesh, {.axis = "ranks", .sequence = shape.sequence});
  if (shape.kind == "ring") return context_parallel(shape.model, mesh, {.ring = "ranks"});
  if (shape.kind == "ulysses") return context_parallel(shape.model, mesh, {.ulysses = "ranks"});
  if (shape.kind == "2d") return tensor_2d(shape.model, mesh["row"], mesh["col"]);
  if (shape.kind == "2.5d") return tensor_25d(shape.model, mesh["depth"], mesh["row"], mesh["col"]);
  return tensor_3d(shape.model, mesh["a"], mesh["b"], mesh["c"]);
}

/// One rank of a world that moves nothing.
class OneRank {
 public:
  OneRank(const TensorShape& shape, int rank, at::Device device)
      : shape_(shape),
        device_(device),
        mesh_(Mesh::create(make_record_world(rank, static_cast<int>(shape.ranks)), axes_of(shape))),
        model_(shape.model) {
    const std::vector<int64_t> ids{shape.sequences, shape.model.context};
    plan_ = apply(plan_of(shape, mesh_), model_, mesh_, {ids, ids}, {ids});
    std::map<std::string, Layout> rest;
    for (const auto& [name, layouts] : plan_.layouts()) rest[name] = layouts.sharded;
    model_.materialise(mesh_, rest, {.device = device, .initialise = device.is_cpu()});
    for (Parameter* parameter : model_.parameters()) {
      parameter->set_unsharded(parameter->sharded(), plan_.layouts().at(parameter->name()).unsharded);
    }
  }

  /// Bytes sent by a forward pass, and by its backward.
  TensorTraffic run() {
    const int64_t before = mesh_.bytes_sent();
    const at::Tensor loss = forward();
    const int64_t between = mesh_.bytes_sent();
    backward(loss, plan_.loss_layout());
    return {static_cast<double>(between - before), static_cast<double>(mesh_.bytes_sent() - between)};
  }

  at::Tensor forward() {
    const at::Tensor ids =
        at::zeros({shape_.sequences, shape_.model.context}, at::TensorOptions(at::kLong).device(device_));
    return model_.run({ids, ids}, {})[0];
  }

  Model& model() { return model_; }

 private:
  TensorShape shape_;
  at::Device device_;
  Mesh mesh_;
  Model model_;
  AppliedPlan plan_;
};

TensorShape shape_of(const ModelConfig& model, const std::string& kind, int64_t ranks, int64_t depth = 1) {
  return {.model = model, .kind = kind, .ranks = ranks, .depth = depth, .sequences = 64, .element_bytes = 4};
}

/// 175B, and a Llama with grouped heads; a vocabulary that every side divides.
std::vector<TensorShape> large_shapes() {
  const ModelConfig gpt{.layers = 2, .width = 12'288, .heads = 96, .context = 2048, .vocabulary = 50'304};
  const ModelConfig llama{.arch = Architecture::llama(),
                          .layers = 2,
                          .width = 8192,
                          .heads = 64,
                          .kv_heads = 16,
                          .context = 4096,
                          .vocabulary = 32'000,
                          .hidden = 28'672,
                          .tie_embeddings = false};
  std::vector<TensorShape> shapes;
  for (const ModelConfig& model : {gpt, llama}) {
    for (const bool is_tied : {false, true}) {
      ModelConfig of = model;
      of.tie_embeddings = is_tied;
      for (const int64_t ranks : {4, 64, 256}) shapes.push_back(shape_of(of, "2d", ranks));
      shapes.push_back(shape_of(of, "2.5d", 64, 4));
      shapes.push_back(shape_of(of, "2.5d", 512, 2));
      for (const int64_t ranks : {8, 64, 512}) shapes.push_back(shape_of(of, "3d", ranks));
    }
  }
  return shapes;
}

/// Every rank sends the same: the first, the last and one between are looked at.
TEST(GridCosts, BytesMatchTheFormulas) {
  for (const TensorShape& shape : large_shapes()) {
    TensorShape deeper = shape;
    ++deeper.model.layers;
    const double layers = static_cast<double>(shape.model.layers);
    const double tables = 4 * words_elements_per_step(shape) / 2;  // gathered in forward, scattered in backward
    for (const int64_t rank : {int64_t{0}, shape.ranks / 2 + 1, shape.ranks - 1}) {
      SCOPED_TRACE(shape.kind + " over " + std::to_string(shape.ranks) + ", rank " + std::to_string(rank));
      const TensorTraffic sent = OneRank(shape, static_cast<int>(rank), at::kMeta).run();
      const TensorTraffic more = OneRank(deeper, static_cast<int>(rank), at::kMeta).run();
      const TensorTraffic layer = layer_bytes(shape), embedding = embedding_bytes(shape), head = head_bytes(shape);
      EXPECT_DOUBLE_EQ(more.forward - sent.forward, layer.forward);
      EXPECT_DOUBLE_EQ(more.backward - sent.backward, layer.backward);
      EXPECT_DOUBLE_EQ(sent.forward, layers * layer.forward + embedding.forward + head.forward + tables);
      // Outside a step of an engine, each of the two gradients of a tied table is scattered separately.
      const double scattered = shape.model.tie_embeddings ? 2 * tables : tables;
      EXPECT_DOUBLE_EQ(sent.backward, layers * layer.backward + embedding.backward + head.backward + scattered);
    }
  }
}

/// The same kinds of model over more ranks than there are heads of keys and values.
TEST(SplitCosts, BytesMatchTheFormulas) {
  for (const TensorShape& grid : large_shapes()) {
    for (const char* kind : {"1d", "1d with sequence", "ring", "ulysses"}) {
      for (const int64_t ranks : {2, 8, 32}) {
        TensorShape shape = shape_of(grid.model, std::string(kind).starts_with("1d") ? "1d" : kind, ranks);
        shape.sequence = std::string(kind) == "1d with sequence";
        shape.sequences = 4;
        TensorShape deeper = shape;
        ++deeper.model.layers;
        for (const int64_t rank : {int64_t{0}, ranks - 1}) {
          SCOPED_TRACE(fmt::format("{} over {}, rank {}", kind, ranks, rank));
          const TensorTraffic sent = OneRank(shape, static_cast<int>(rank), at::kMeta).run();
          const TensorTraffic more = OneRank(deeper, static_cast<int>(rank), at::kMeta).run();
          EXPECT_DOUBLE_EQ(more.forward - sent.forward, layer_bytes(shape).forward);
          EXPECT_DOUBLE_EQ(more.backward - sent.backward, layer_bytes(shape).backward);
        }
      }
    }
  }
}

/// Live tensors of a model with one more layer, after its forward pass.
double kept_elements(const TensorShape& shape) {
  MemoryCounter& counter = MemoryCounter::current();
  const auto kept = [&](int64_t layers) {
    TensorShape of = shape;
    of.model.layers = layers;
    OneRank one(of, 0, at::kCPU);
    const int64_t before = counter.live_bytes();
    const at::Tensor loss = one.forward();
    return counter.live_bytes() - before;
  };
  return static_cast<double>(kept(3) - kept(2)) / 4;
}

/// Elements of the parameters whose names start with a prefix: sharded, and in use.
std::pair<double, double> weight_elements(const TensorShape& shape, const std::vector<std::string>& prefixes) {
  OneRank one(shape, 0, at::kMeta);
  int64_t rest = 0, compute = 0;
  for (const Parameter* parameter : one.model().parameters()) {
    const bool counts =
        std::ranges::any_of(prefixes, [&](const auto& each) { return parameter->name().starts_with(each); });
    if (!counts) continue;
    rest += parameter->sharded().numel();
    compute += parameter->compute().numel();
  }
  return {static_cast<double>(rest), static_cast<double>(compute)};
}

/// Activations fall with the number of ranks, weights with the grid.
TEST(GridCosts, MemoryMatchesTheFormulas) {
  // A record world fills what it would receive with NaN, not with old memory: a huge number would be an error of torch.
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
  const ModelConfig gpt{.layers = 1, .width = 256, .heads = 8, .context = 64, .vocabulary = 64};
  ModelConfig llama = gpt;
  llama.arch = Architecture::llama();
  llama.hidden = 512;
  llama.kv_heads = 4;
  for (const ModelConfig& model : {gpt, llama}) {
    for (const TensorShape& shape :
         {shape_of(model, "2d", 1), shape_of(model, "2d", 4), shape_of(model, "2d", 16), shape_of(model, "2.5d", 8, 2),
          shape_of(model, "3d", 8), shape_of(model, "3d", 64)}) {
      TensorShape few = shape;
      few.sequences = 16;
      SCOPED_TRACE(few.kind + " over " + std::to_string(few.ranks));
      const auto [rest, compute] = weight_elements(few, {"blocks.0."});
      EXPECT_DOUBLE_EQ(rest, layer_weight_elements(few));
      EXPECT_DOUBLE_EQ(compute, rest) << "nothing of a layer is gathered";
      for (const bool is_tied : {true, false}) {
        few.model.tie_embeddings = is_tied;
        const auto [words, used] = weight_elements(few, {"embedding.token.", "head.weight"});
        EXPECT_DOUBLE_EQ(words, words_weight_elements(few));
        EXPECT_DOUBLE_EQ(used, gathered_words_elements(few));
      }
      // Measured: 0.5 % more, the statistics of rows.
      EXPECT_NEAR(kept_elements(few) / layer_activation_elements(few), 1, 0.01);
    }
  }
  at::globalContext().setDeterministicAlgorithms(false, false);
}

}  // namespace
}  // namespace caravan::testing::grid_costs_test
