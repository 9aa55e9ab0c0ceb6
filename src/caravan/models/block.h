#pragma once

#include <string>

#include "caravan/module/module.h"
#include "caravan/nn/attention/attention.h"
#include "caravan/nn/config.h"
#include "caravan/nn/dropout.h"
#include "caravan/nn/residual_stream.h"

namespace caravan {

/// One layer of a model, as config.arch says: x += attention(norm(x)); x += mlp(norm(x)), with norms before or after
/// the branches, both, or of the sums; one after the other or in parallel. {stream, ..} -> {stream, ..}: the other
/// inputs (labels) pass through, so that blocks can be chained.
///
/// With an encoder, {target, source, ..} -> {target, source, ..}: a layer of the encoder changes the source, and the
/// last one norms it; a layer of the decoder changes the target, with x += cross_attention(norm(x), source) between the
/// branches, and the last one drops the source.
///
/// Modules: "attention_norm", "attention", "attention_post_norm", "cross_norm", "cross_attention", "cross_post_norm",
/// "mlp_norm", "mlp", "mlp_post_norm", "output_norm", "output_dropout", as far as the layer has them.
class Block final : public Module {
 public:
  Block(const ModelConfig& config, int64_t layer, const Attention::Shared& shared);

  Attention& attention() noexcept { return *attention_; }

 protected:
  Tensors forward(Tensors inputs, const ForwardContext& context) override;

 private:
  /// The norms of a branch, x += body(norm(x)); they may be null.
  struct Branch {
    Norm* norm = nullptr;
    Norm* post_norm = nullptr;
  };
  Norm* add_norm(const std::string& name, const ModelConfig& config, bool is_there);
  Layer& add_feed(const ModelConfig& config, int64_t layer);
  template <class Body>
  void add_branch(ResidualStream& x, const Branch& branch, const ForwardContext& context, const Body& body);
  void add_parallel(ResidualStream& x, const ForwardContext& context);
  at::Tensor layer(at::Tensor value, const at::Tensor& source, const ForwardContext& context);

  bool has_encoder_;
  bool is_of_encoder_;
  bool is_last_;
  bool is_parallel_;
  bool norms_sums_;
  Branch attention_branch_{};
  Attention* attention_;
  Branch cross_branch_{};
  Attention* cross_attention_ = nullptr;  ///< null: none
  Branch mlp_branch_{};
  Layer* mlp_;
  Norm* output_norm_ = nullptr;  ///< of the last layer of an encoder
  Dropout* output_dropout_ = nullptr;
};

}  // namespace caravan
