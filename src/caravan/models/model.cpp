#include "caravan/models/model.h"

#include <string>
#include <type_traits>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/models/block.h"
#include "caravan/nn/experts/moe.h"
#include "caravan/nn/lora.h"
#include "caravan/nn/mlp.h"
#include "caravan/nn/norm.h"

namespace caravan {
namespace {

template <class Feed>
using Gpt2Block = PreNormBlock<LayerNorm, Feed>;
template <class Feed>
using LlamaBlock = PreNormBlock<RmsNorm, Feed>;

const ModelConfig& valid(const ModelConfig& config) {
  config.validate();
  return config;
}

}  // namespace

BlockList::BlockList(const ModelConfig& config) {
  const auto rope =
      config.kind == ModelKind::llama ? std::make_shared<RopeTable>(config.head_width(), config.rope_theta) : nullptr;
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    const std::string name = std::to_string(layer);
    const auto add = [&]<class Block>(std::type_identity<Block>) {
      list_.push_back(&register_module<Block>(name, config, rope));
    };
    const bool has_experts = config.moe.is_used();
    if (config.kind == ModelKind::gpt2) {
      has_experts ? add(std::type_identity<Gpt2Block<Moe<Mlp>>>{}) : add(std::type_identity<Gpt2Block<Mlp>>{});
    } else {
      has_experts ? add(std::type_identity<LlamaBlock<Moe<GatedMlp>>>{})
                  : add(std::type_identity<LlamaBlock<GatedMlp>>{});
    }
  }
}

Tensors BlockList::forward(Tensors inputs, const ForwardContext& context) {
  for (Module* block : list_) inputs = block->run(std::move(inputs), context);
  return inputs;
}

Model::Model(const ModelConfig& config)
    : config_(valid(config)),
      embedding_(register_module<InputEmbedding>("embedding", config_)),
      blocks_(register_module<BlockList>("blocks", config_)),
      head_(register_module<Head>("head", config_, config_.tie_embeddings ? &embedding_.token_weight() : nullptr)) {
  if (!config_.lora.is_used()) return;
  for (Parameter* parameter : parameters()) parameter->set_requires_grad(false);
  for (const LinearShape& layer : adapted_layers(config_)) {
    dynamic_cast<Linear&>(find(layer.name)).add_adapter(config_.lora.rank, config_.lora.scale());
  }
}

std::vector<Module*> Model::blocks() {
  std::vector<Module*> all{&embedding_};
  for (Module* block : blocks_.blocks()) all.push_back(block);
  all.push_back(&head_);
  return all;
}

Tensors Model::forward(Tensors inputs, const ForwardContext& context) {
  if (inputs.empty() || inputs.size() > 2 || (inputs.size() == 2 && inputs[0].sizes() != inputs[1].sizes())) {
    throw ShapeError({"model", "",
                      fmt::format("takes ids, and perhaps labels of their shape; got {} tensors", inputs.size()), "",
                      "call run({ids}) or run({ids, labels})"});
  }
  return head_.run(blocks_.run(embedding_.run(std::move(inputs), context), context), context);
}

at::Tensor Model::next_logits(const at::Tensor& ids, const ForwardContext& context) {
  const size_t head = blocks().size() - 1;
  const at::Tensor stream = run_blocks(0, head, {ids}, context).front();
  const at::Tensor last = stream.narrow(1, stream.size(1) - 1, 1);
  return run_blocks(head, head + 1, {last}, context).front().squeeze(1);
}

std::unique_ptr<Model> make_model(const ModelConfig& config) { return std::make_unique<Model>(config); }

}  // namespace caravan
