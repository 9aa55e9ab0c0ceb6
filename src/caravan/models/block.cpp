#include "caravan/models/block.h"

#include "caravan/nn/experts/moe.h"
#include "caravan/nn/mlp.h"

namespace caravan {

Block::Block(const ModelConfig& config, int64_t layer, std::shared_ptr<RopeTable> rope)
    : is_parallel_(config.arch.is_parallel),
      attention_norm_(add_norm("attention_norm", config, config.arch.has_norms_before())),
      attention_(register_module<Attention>("attention", config, layer, std::move(rope))),
      attention_post_norm_(add_norm("attention_post_norm", config, config.arch.has_norms_after())),
      mlp_norm_(add_norm("mlp_norm", config, config.arch.has_norms_before() && !config.arch.has_one_norm)),
      mlp_(add_feed(config, layer)),
      mlp_post_norm_(add_norm("mlp_post_norm", config, config.arch.has_norms_after())) {}

Norm* Block::add_norm(const char* name, const ModelConfig& config, bool is_there) {
  return is_there ? &register_module<Norm>(name, config, config.width) : nullptr;
}

Layer& Block::add_feed(const ModelConfig& config, int64_t layer) {
  if (config.has_experts(layer)) return register_module<Moe>("mlp", config);
  return register_module<Mlp>("mlp", config, config.dense_width());
}

at::Tensor Block::attend(const at::Tensor& x, const ForwardContext& context) {
  at::Tensor y = attention_(x, context);
  return attention_post_norm_ == nullptr ? y : (*attention_post_norm_)(y, context);
}

at::Tensor Block::feed(const at::Tensor& x, const ForwardContext& context) {
  at::Tensor y = mlp_(x, context);
  return mlp_post_norm_ == nullptr ? y : (*mlp_post_norm_)(y, context);
}

Tensors Block::forward(Tensors inputs, const ForwardContext& context) {
  ResidualStream x(std::move(inputs.front()), context, name());
  const auto read = [&](Norm* norm) { return norm == nullptr ? x.value() : x.normed(*norm); };
  if (is_parallel_) {
    const at::Tensor normed = read(attention_norm_);
    const at::Tensor of_mlp = mlp_norm_ == nullptr ? normed : (*mlp_norm_)(x.value(), context);
    x += add(attend(normed, context), feed(of_mlp, context), context, name());
  } else {
    x += attend(read(attention_norm_), context);
    x += feed(read(mlp_norm_), context);
  }
  inputs.front() = x.value();
  return inputs;
}

}  // namespace caravan
