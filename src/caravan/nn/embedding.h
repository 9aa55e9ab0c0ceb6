#pragma once

#include <string_view>

#include "caravan/module/module.h"
#include "caravan/nn/config.h"
#include "caravan/nn/dropout.h"
#include "caravan/nn/norm.h"
#include "caravan/nn/tiles.h"

namespace caravan {

/// Rows of a table [rows, width] by id. ids: int64, any shape. Gradients of the rows that occur are accumulated, as
/// sums in fp32 (fp64 for fp64). If weight.compute() is a piece of the table, from row `first_row` on, ids of other
/// rows give zeros. Throws DataError naming `what` with the first id out of range.
at::Tensor embedding(const at::Tensor& ids, Parameter& weight, std::string_view what, int64_t first_row = 0);

/// embedding of ids [batch, sequence].
class Embedding final : public Layer, public Tileable {
 public:
  Embedding(int64_t rows, int64_t width, double init_std);
  Parameter& weight() noexcept { return weight_; }
  /// The table is split over ranks, and this rank has the rows from `first_row` on.
  void set_first_row(int64_t first_row) noexcept { first_row_ = first_row; }

  std::vector<Weight> weights_to_cut() override { return {{&weight_}}; }
  std::vector<Module*> cut(const std::vector<std::vector<TileCut>>& cuts, bool follows_trained) override;

 protected:
  at::Tensor forward(const at::Tensor& input, const ForwardContext& context) override;

 private:
  Parameter& weight_;
  int64_t first_row_ = 0;
  Tiles tiles_{};
};

/// x [batch, sequence, width] plus, for each token, the row of its position (see ForwardContext) in a table [context,
/// width].
class PositionEmbedding final : public Layer {
 public:
  PositionEmbedding(int64_t context, int64_t width);

 protected:
  at::Tensor forward(const at::Tensor& input, const ForwardContext& context) override;

 private:
  Parameter& weight_;
};

/// x [batch, sequence, width] plus, for each token, the row of its type (ForwardContext::token_types).
class TypeEmbedding final : public Layer {
 public:
  TypeEmbedding(int64_t types, int64_t width);

 protected:
  at::Tensor forward(const at::Tensor& input, const ForwardContext& context) override;

 private:
  Parameter& weight_;
};

/// The first block of a model: {ids [batch, sequence], ..} -> {stream [batch, sequence, width], ..}; token rows, scaled
/// or not, types, learned positions, norm, dropout, as config.arch says. Throws UsageError if a position is outside the
/// model's context.
///
/// With an encoder: {stream of the targets, stream of the sources, ..}.
class InputEmbedding final : public Module {
 public:
  explicit InputEmbedding(const ModelConfig& config);
  Parameter& token_weight() noexcept { return token_.weight(); }

 protected:
  Tensors forward(Tensors inputs, const ForwardContext& context) override;

 private:
  void check_positions(const at::Tensor& ids, const ForwardContext& context) const;
  int64_t sources_of(const ForwardContext& context) const;

  int64_t context_;
  int64_t source_context_;
  double scale_;
  Embedding& token_;
  TypeEmbedding* type_;          ///< null: tokens have none
  PositionEmbedding* position_;  ///< null: none are learned
  Norm* norm_;                   ///< null: none
  Dropout& dropout_;
};

}  // namespace caravan
