#pragma once

#include "caravan/module/module.h"
#include "caravan/nn/config.h"
#include "caravan/nn/dropout.h"

namespace caravan {

/// Rows of a table [rows, width] by id. ids: int64, any shape. Throws DataError with the first id out of range.
class Embedding final : public Layer {
 public:
  Embedding(int64_t rows, int64_t width);
  Parameter& weight() noexcept { return weight_; }

 protected:
  at::Tensor forward(const at::Tensor& input, const ForwardContext& context) override;

 private:
  Parameter& weight_;
};

/// Adds row `position` of a table [context, width] to every position of x [batch, sequence, width].
class PositionEmbedding final : public Layer {
 public:
  PositionEmbedding(int64_t context, int64_t width);

 protected:
  at::Tensor forward(const at::Tensor& input, const ForwardContext& context) override;

 private:
  Parameter& weight_;
};

/// The first block of a model: {ids [batch, sequence], ..} -> {stream [batch, sequence, width], ..}; token rows,
/// learned positions (GPT-2), dropout. Throws UsageError if the sequence, plus what generation has cached, is longer
/// than the context.
class InputEmbedding final : public Module {
 public:
  explicit InputEmbedding(const ModelConfig& config);
  Parameter& token_weight() noexcept { return token_.weight(); }

 protected:
  Tensors forward(Tensors inputs, const ForwardContext& context) override;

 private:
  int64_t context_;
  Embedding& token_;
  PositionEmbedding* position_ = nullptr;
  Dropout& dropout_;
};

}  // namespace caravan
