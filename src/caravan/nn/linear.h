#pragma once

#include <memory>
#include <span>
#include <utility>

#include "caravan/module/module.h"
#include "caravan/nn/config.h"
#include "caravan/nn/row_reduction.h"
#include "caravan/nn/tiles.h"

namespace caravan {

inline constexpr double kInitStd = 0.02;  ///< of every weight matrix and embedding, as in GPT-2

class Dropout;
class LoraAdapter;

/// y = x W^T + b, plus what an adapter adds. Weight [out, in], as in torch; bias [out]. Column split: both S(0). Row
/// split: weight S(1), and P for the bias in compute (I -> P adds it once) and the output, which a hook then reduces.
class Linear final : public Layer, public Tileable {
 public:
  struct Options {
    int64_t in = 0;
    int64_t out = 0;
    bool bias = true;
    double init_std = kInitStd;
  };
  explicit Linear(const Options& options);

  /// Without memory if it is cut into tiles.
  Parameter& weight() noexcept { return weight_; }
  Parameter* bias() noexcept { return bias_; }

  /// Creates the child "lora", and "lora_dropout" if its input is dropped, before the layer has memory.
  void add_adapter(const LoraConfig& lora);
  /// Whether the outputs have trained magnitudes, whose norms need the weight whole.
  bool has_magnitudes() const noexcept;
  /// `y` plus the output of the adapter, if any, for the layer's input: with the layout of y. For adapters without
  /// magnitudes.
  at::Tensor with_adapter(const at::Tensor& y, const at::Tensor& input, const ForwardContext& context);

  /// {layer(input, context), ..}. Layers without hooks, adapters and tiles are computed together, so that the gradient
  /// of their input is one sum.
  static Tensors outputs_of(std::span<Linear* const> layers, const at::Tensor& input, const ForwardContext& context);

  std::vector<Weight> weights_to_cut() override { return {{&weight_}}; }
  std::vector<Module*> cut(const std::vector<std::vector<TileCut>>& cuts, bool follows_trained) override;

 protected:
  at::Tensor forward(const at::Tensor& input, const ForwardContext& context) override;

 private:
  bool is_plain() const noexcept { return !has_hooks() && adapter_ == nullptr && tiles_.empty(); }
  void record_layouts(const at::Tensor& y, const at::Tensor& input, const ForwardContext& context) const;
  at::Tensor times_weight(const at::Tensor& input, const ForwardContext& context);
  at::Tensor with_bias(const at::Tensor& y, const ForwardContext& context) const;
  at::Tensor dropped(const at::Tensor& input, const ForwardContext& context);
  at::Tensor with_magnitudes_of(const at::Tensor& input, const ForwardContext& context);

  Options options_;
  Parameter& weight_;
  Parameter* bias_ = nullptr;
  LoraAdapter* adapter_ = nullptr;
  Dropout* adapter_dropout_ = nullptr;
  Tiles tiles_{};
};

/// {x} -> {scale B A x}, a low-rank addition to a linear layer (LoraConfig). Children "a" [rank, in] and "b" [out,
/// rank]. With magnitudes m, the parameter "magnitude" [out]: {x, W x} -> {m / |W + scale B A| (W x + scale B A x)}.
/// Column split: S(0). Row split: R, since each rank has a summand of the output; a reduction then sums the squares of
/// rows.
class LoraAdapter final : public Module {
 public:
  /// `weight`: W, which outlives this.
  LoraAdapter(const Linear::Options& of, const LoraConfig& lora, const Parameter& weight);

  bool has_magnitudes() const noexcept { return magnitude_ != nullptr; }
  /// The columns of W are split over ranks: `reduction` sums the squares of rows. Null: they are whole.
  void set_row_reduction(std::shared_ptr<RowReduction> reduction) { reduction_ = std::move(reduction); }

 protected:
  Tensors forward(Tensors inputs, const ForwardContext& context) override;

 private:
  at::Tensor row_norms(const ForwardContext& context);

  double scale_;
  const Parameter& weight_;
  Parameter* magnitude_ = nullptr;
  Linear& a_;
  Linear& b_;
  std::shared_ptr<RowReduction> reduction_{};
};

/// Init of the two linear layers of a block that write into the residual stream, scaled down as in GPT-2 because
/// 2 x layers of them add up there.
double residual_init_std(const ModelConfig& config);
/// Dropout probability of the embedding and of both branches.
inline double branch_dropout(const ModelConfig& config) { return config.arch.drops_branches ? config.dropout : 0; }

}  // namespace caravan
