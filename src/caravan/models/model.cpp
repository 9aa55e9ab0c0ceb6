#include "caravan/models/model.h"

#include <array>
#include <string>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/models/block.h"
#include "caravan/nn/experts/experts.h"
#include "caravan/nn/linear.h"
#include "caravan/nn/lora.h"

namespace caravan {
namespace {

const ModelConfig& valid(const ModelConfig& config) {
  config.validate();
  return config;
}

}  // namespace

BlockList::BlockList(const ModelConfig& config) {
  std::vector<std::shared_ptr<RopeTable>> ropes;  // of different settings
  const auto rope_of = [&](int64_t layer) -> std::shared_ptr<RopeTable> {
    if (!config.rotates(layer)) return nullptr;
    const RopeSettings settings = rope_settings(config, layer);
    for (const auto& rope : ropes) {
      if (rope->settings() == settings) return rope;
    }
    return ropes.emplace_back(std::make_shared<RopeTable>(settings));
  };
  std::array<Parameter*, 2> buckets{};  // of encoder and decoder
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    Parameter*& shared = buckets[config.is_of_encoder(layer) ? 0 : 1];
    auto& block = register_module<Block>(std::to_string(layer), config, layer,
                                         Attention::Shared{.rope = rope_of(layer), .buckets = shared});
    shared = block.attention().buckets();
    list_.push_back(&block);
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
      head_(register_module<Head>("head", config_, config_.ties_head() ? &embedding_.token_weight() : nullptr)) {
  if (!config_.lora.is_used()) return;
  for (Parameter* parameter : parameters()) {
    parameter->set_requires_grad(is_saved_with_adapters(config_, parameter->name()));
  }
  for (const LinearShape& layer : adapted_layers(config_)) {
    if (layer.experts > 0) {
      dynamic_cast<Experts&>(find(layer.parent())).add_adapter(layer.own_name(), config_.lora);
    } else {
      dynamic_cast<Linear&>(find(layer.name)).add_adapter(config_.lora);
    }
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
