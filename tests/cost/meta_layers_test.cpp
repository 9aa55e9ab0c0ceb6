#include <functional>
#include <memory>

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "caravan/comm/record.h"
#include "caravan/models/block.h"
#include "caravan/models/head.h"
#include "caravan/nn/attention/attention.h"
#include "caravan/nn/embedding.h"
#include "caravan/nn/experts/experts.h"
#include "caravan/nn/experts/moe.h"
#include "caravan/nn/mlp.h"
#include "caravan/nn/norm.h"
#include "caravan/nn/product/product.h"
#include "caravan/nn/product/tile_product.h"
#include "caravan/techniques/data/axis_reduction.h"
#include "tests/cost/both_ways.h"
#include "tests/nn/cut.h"

namespace caravan::testing::meta_layers_test {
namespace {

constexpr int64_t kBatch = 2, kLength = 200, kVocabulary = 5000;

/// One layer: how it is made, and the inputs of its run.
struct Case {
  std::string name;
  std::function<std::unique_ptr<Module>()> make;
  std::function<Tensors(at::TensorOptions)> inputs;
  std::function<void(ForwardContext&, at::Device)> prepare = [](ForwardContext&, at::Device) {};
  /// Bytes that the dry run may take more: torch adds the gradients of two uses in place, but not without data.
  int64_t above = 0;
  int64_t below = 0;  ///< and less, in bf16: native products repack narrow operands
};

Taken taken_by(const Case& of, at::Device device, at::ScalarType type) {
  const std::unique_ptr<Module> module = of.make();
  for (Parameter* parameter : module->parameters()) {
    const auto options = at::TensorOptions(type).device(device);
    parameter->set_sharded(at::ones(parameter->global_shape(), options).mul_(0.01).requires_grad_(true), {});
  }
  Tensors inputs = of.inputs(at::TensorOptions(type).device(device));
  ForwardContext context{.seed = 1, .loss_scale = 0.5};
  of.prepare(context, device);
  TakenCounter counter;
  Tensors outputs = module->run(std::move(inputs), context);
  inputs.clear();
  counter.hold();
  {
    const at::Tensor gradient = at::ones_like(outputs.front());
    torch::autograd::backward({outputs.front()}, {gradient});
  }
  outputs.clear();
  counter.hold();
  return counter.finish();
}

Tensors stream(at::TensorOptions options, int64_t width = 96) {
  return {at::ones({kBatch, kLength, width}, options).requires_grad_(true)};
}

at::Tensor ids(at::TensorOptions options) { return at::ones({kBatch, kLength}, options.dtype(at::kLong)); }

void pack(ForwardContext& context, at::Device device) {
  const auto options = at::TensorOptions(at::kLong).device(device);
  context.positions = at::arange(kLength, options);
  context.documents = at::arange(kLength, options).div(50, "floor").expand({kBatch, kLength}).contiguous();
}

ModelConfig gpt2(double dropout = 0) {
  return {.layers = 2,
          .width = 96,
          .heads = 6,
          .context = kLength,
          .vocabulary = kVocabulary,
          .tie_embeddings = false,
          .dropout = dropout};
}

ModelConfig llama(double dropout = 0) {
  ModelConfig config = gpt2(dropout);
  config.arch = Architecture::llama();
  config.kv_heads = 2;
  return config;
}

/// Two experts that both take every token, so that the choice is known.
ModelConfig with_experts(ModelConfig config) {
  config.moe = {.experts = 2, .top_k = 2, .z_loss = 1e-3};
  return config;
}

template <class Layer, class... Arguments>
std::function<std::unique_ptr<Module>()> of(Arguments... arguments) {
  return [=] { return std::make_unique<Layer>(arguments...); };
}

template <class Layer>
std::unique_ptr<Module> tiled(std::unique_ptr<Layer> layer, const std::vector<int64_t>& sizes) {
  cut_into(*layer, sizes);
  return layer;
}

template <bool has_bias>
std::unique_ptr<Module> split_norm_of() {
  static const Mesh mesh = Mesh::create(make_record_world(0, 2), {{"tp", 2}});
  auto norm = std::make_unique<Norm>(96, 1e-5, has_bias);
  norm->set_row_reduction(axis_reduction(mesh["tp"], Replicate{}));
  return norm;
}

std::vector<Case> cases() {
  const auto rope = [] { return std::make_shared<RopeTable>(16, 10000); };
  const auto labelled = [](at::TensorOptions options) {
    Tensors inputs = stream(options);
    inputs.push_back(ids(options));
    return inputs;
  };
  const auto with_lora = [](LoraConfig lora) {
    lora.rank = 8;
    return [lora] {
      auto linear = std::make_unique<Linear>(Linear::Options{.in = 96, .out = 50, .bias = true});
      linear->add_adapter(lora);
      return linear;
    };
  };
  const auto tiled_experts = [] {
    auto moe = std::make_unique<Moe>(with_experts(llama()));
    cut_into(dynamic_cast<Experts&>(moe->find("experts")), {1, 1});
    return moe;
  };
  const auto narrow = [](at::TensorOptions options) { return stream(options); };
  const auto nothing = [](ForwardContext&, at::Device) {};
  constexpr int64_t of_input = kBatch * kLength * 96 * 4;
  return {
      {"linear", of<Linear>(Linear::Options{.in = 96, .out = 50, .bias = true}), narrow},
      {"linear without bias", of<Linear>(Linear::Options{.in = 96, .out = 50, .bias = false}), narrow},
      {"linear with an adapter", with_lora({}), narrow},
      {"linear with an adapter of dropped input", with_lora({.dropout = 0.1}), narrow, nothing, of_input},
      {"linear with an adapter and magnitudes", with_lora({.dora = true}), narrow},
      {"linear with an adapter of dropped input and magnitudes", with_lora({.dropout = 0.1, .dora = true}), narrow,
       nothing, of_input, 8 << 10},
      {"layer norm", of<Norm>(96, 1e-5, true), narrow},
      {"rms norm", of<Norm>(96, 1e-5, false), narrow},
      {"split layer norm", split_norm_of<true>, narrow},
      {"split rms norm", split_norm_of<false>, narrow},
      {"dropout", of<Dropout>(0.1), narrow},
      {"mlp", of<Mlp>(gpt2()), narrow},
      {"mlp with dropout", of<Mlp>(gpt2(0.1)), narrow},
      {"gated mlp", of<Mlp>(llama()), narrow},
      {"attention", of<Attention>(gpt2(), 0, Attention::Shared{}), narrow},
      {"attention with dropout", of<Attention>(gpt2(0.1), 0, Attention::Shared{}), narrow},
      {"attention of documents", of<Attention>(gpt2(), 0, Attention::Shared{}), narrow, pack},
      {"grouped attention", [=] { return std::make_unique<Attention>(llama(), 0, Attention::Shared{rope()}); }, narrow},
      {"grouped attention with dropout",
       [=] { return std::make_unique<Attention>(llama(0.1), 0, Attention::Shared{rope()}); }, narrow},
      {"grouped attention of documents",
       [=] { return std::make_unique<Attention>(llama(), 0, Attention::Shared{rope()}); }, narrow, pack},
      {"experts", of<Moe>(with_experts(gpt2())), narrow},
      {"gated experts", of<Moe>(with_experts(llama())), narrow},
      {"embedding", of<InputEmbedding>(gpt2(0.1)), [](at::TensorOptions options) { return Tensors{ids(options)}; }},
      {"head", [] { return std::make_unique<Head>(gpt2(), nullptr); }, narrow},
      {"loss", [] { return std::make_unique<Head>(llama(), nullptr); }, labelled},
      {"linear in tiles",
       [] {
         return tiled(std::make_unique<Linear>(Linear::Options{.in = 96, .out = 50, .bias = true}), {20, 30});
       },
       narrow},
      {"embedding in tiles",
       [] {
         return tiled(std::make_unique<Embedding>(kVocabulary, 96, kInitStd), {2000, 3000});
       },
       [](at::TensorOptions options) { return Tensors{ids(options)}; }},
      {"experts in tiles", tiled_experts, narrow},
      {"head in tiles",
       [] {
         return tiled(std::make_unique<Head>(gpt2(), nullptr), {2000, 3000});
       },
       narrow},
      {"loss in tiles",
       [] {
         return tiled(std::make_unique<Head>(llama(), nullptr), {2000, 3000});
       },
       labelled},
  };
}

void PrintTo(const Case& of, std::ostream* out) { *out << of.name; }

class MetaLayers : public ::testing::TestWithParam<Case> {};

/// For each available library of products, and both arithmetics of bf16: what these choose is in the paths.
TEST_P(MetaLayers, UseTheMemoryAndPathsOfRealOnes) {
  const std::string chosen = products_in_use();
  for (const ProductLibrary library : available_product_libraries()) {
    for (const bool is_fp32 : {false, true}) {
      const char* arithmetic = is_fp32 ? "fp32" : "native";
      const char* attention = has_bf16_tiles() ? arithmetic : "fp32";  // not on every processor
      use_products(fmt::format("{} bf16={} attention={}", name(library), arithmetic, attention));
      for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
        const std::string what = GetParam().name + " in " + c10::toString(type) + ", products " + products_in_use();
        // Fused attention of bf16 counts the larger of its products of blocks.
        const bool is_bf16 = type == at::kBFloat16;
        const Slack slack{.above = GetParam().above + (is_bf16 ? int64_t{8} << 10 : 0),
                          .below = is_bf16 ? GetParam().below : 0};
        expect_same(taken_by(GetParam(), at::kCPU, type), taken_by(GetParam(), at::kMeta, type), what, slack);
      }
    }
  }
  use_products(chosen);
}

std::string name_of(const ::testing::TestParamInfo<Case>& info) {
  std::string name = info.param.name;
  std::erase_if(name, [](char c) { return c == ' '; });
  return name;
}

INSTANTIATE_TEST_SUITE_P(All, MetaLayers, ::testing::ValuesIn(cases()), name_of);

}  // namespace
}  // namespace caravan::testing::meta_layers_test
