#include "caravan/models/block.h"

#include <string>
#include <utility>

#include "caravan/nn/experts/moe.h"
#include "caravan/nn/mlp.h"

namespace caravan {
namespace {

at::Tensor tokens_of(const at::Tensor& all, int64_t begin, int64_t count) {
  return all.defined() ? all.narrow(-1, begin, count) : all;
}

/// The context of the source or target, of a row of both: [sources | targets].
ForwardContext context_of_part(const ForwardContext& context, int64_t begin, int64_t count) {
  ForwardContext part = context;
  part.positions = tokens_of(context.positions, begin, count);
  part.documents = tokens_of(context.documents, begin, count);
  return part;
}

}  // namespace

Block::Block(const ModelConfig& config, int64_t layer, const Attention::Shared& shared)
    : has_encoder_(config.has_encoder()),
      is_of_encoder_(config.is_of_encoder(layer)),
      is_last_(layer + 1 == (is_of_encoder_ ? config.encoder_layers : config.layers)),
      is_parallel_(config.arch.is_parallel),
      norms_sums_(config.arch.norm_place == NormPlace::sum) {
  const bool is_before = config.arch.has_norms_before(), is_after = config.arch.has_norms_after();
  attention_branch_.norm = add_norm("attention_norm", config, is_before);
  attention_ = &register_module<Attention>("attention", config, layer, shared);
  attention_branch_.post_norm = add_norm("attention_post_norm", config, is_after);
  if (has_encoder_ && !is_of_encoder_) {
    cross_branch_.norm = add_norm("cross_norm", config, is_before);
    cross_attention_ =
        &register_module<Attention>("cross_attention", config, layer, Attention::Shared{}, Attention::Role::cross);
    cross_branch_.post_norm = add_norm("cross_post_norm", config, is_after);
  }
  mlp_branch_.norm = add_norm("mlp_norm", config, is_before && !config.arch.has_one_norm);
  mlp_ = &add_feed(config, layer);
  mlp_branch_.post_norm = add_norm("mlp_post_norm", config, is_after);
  if (!is_of_encoder_ || !is_last_) return;
  output_norm_ = add_norm("output_norm", config, config.arch.has_last_norm());
  if (config.arch.drops_output) output_dropout_ = &register_module<Dropout>("output_dropout", config.dropout);
}

Norm* Block::add_norm(const std::string& name, const ModelConfig& config, bool is_there) {
  return is_there ? &register_module<Norm>(name, config, config.width) : nullptr;
}

Layer& Block::add_feed(const ModelConfig& config, int64_t layer) {
  if (config.has_experts(layer)) return register_module<Moe>("mlp", config);
  return register_module<Mlp>("mlp", config, config.dense_width());
}

template <class Body>
void Block::add_branch(ResidualStream& x, const Branch& branch, const ForwardContext& context, const Body& body) {
  at::Tensor y = body(branch.norm == nullptr ? x.value() : x.normed(*branch.norm));
  if (branch.post_norm != nullptr && !norms_sums_) y = (*branch.post_norm)(y, context);
  x += std::move(y);
  if (norms_sums_) x.replace(*branch.post_norm);
}

/// Both branches read the same stream.
void Block::add_parallel(ResidualStream& x, const ForwardContext& context) {
  const auto body = [&](const Branch& branch, at::Tensor y) {
    return branch.post_norm == nullptr ? y : (*branch.post_norm)(y, context);
  };
  const at::Tensor normed = attention_branch_.norm == nullptr ? x.value() : x.normed(*attention_branch_.norm);
  const at::Tensor of_mlp = mlp_branch_.norm == nullptr ? normed : (*mlp_branch_.norm)(x.value(), context);
  const at::Tensor attended = body(attention_branch_, (*attention_)(normed, context));
  x += add(attended, body(mlp_branch_, (*mlp_)(of_mlp, context)), context, name());
}

at::Tensor Block::layer(at::Tensor value, const at::Tensor& source, const ForwardContext& context) {
  ResidualStream x(std::move(value), context, name());
  if (is_parallel_) {
    add_parallel(x, context);
    return x.value();
  }
  add_branch(x, attention_branch_, context, [&](const at::Tensor& y) { return (*attention_)(y, context); });
  if (cross_attention_ != nullptr) {
    add_branch(x, cross_branch_, context, [&](const at::Tensor& y) {
      return cross_attention_->run({y, source}, context).front();
    });
  }
  add_branch(x, mlp_branch_, context, [&](const at::Tensor& y) { return (*mlp_)(y, context); });
  if (!is_of_encoder_ || !is_last_) return x.value();
  at::Tensor states = output_norm_ == nullptr ? x.value() : x.normed(*output_norm_);
  return output_dropout_ == nullptr ? states : (*output_dropout_)(states, context);
}

Tensors Block::forward(Tensors inputs, const ForwardContext& context) {
  if (!has_encoder_) {
    inputs.front() = layer(std::move(inputs.front()), {}, context);
    return inputs;
  }
  const int64_t targets = inputs[0].size(1), sources = inputs[1].size(1);
  if (is_of_encoder_) {
    if (sources == 0) return inputs;  // read by an earlier pass
    inputs[1] = layer(std::move(inputs[1]), {}, context_of_part(context, 0, sources));
    return inputs;
  }
  ForwardContext here = context_of_part(context, sources, targets);
  here.source_documents = tokens_of(context.documents, 0, sources);
  inputs[0] = layer(std::move(inputs[0]), inputs[1], here);
  if (is_last_) inputs.erase(inputs.begin() + 1);
  return inputs;
}

}  // namespace caravan
