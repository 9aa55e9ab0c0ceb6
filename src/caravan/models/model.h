#pragma once

#include <memory>
#include <vector>

#include "caravan/models/head.h"
#include "caravan/module/module.h"
#include "caravan/nn/config.h"
#include "caravan/nn/embedding.h"

namespace caravan {

/// The children "0", "1", .., run in order.
class BlockList final : public Module {
 public:
  explicit BlockList(const ModelConfig& config);
  std::vector<Module*> blocks() override { return list_; }

 protected:
  Tensors forward(Tensors inputs, const ForwardContext& context) override;

 private:
  std::vector<Module*> list_;
};

/// A model of texts, as its config's architecture says. run({ids}) -> {logits [batch, sequence, vocabulary]}; run({ids,
/// labels}) -> {loss}: labels[b, t] is the target of ids[b, t] (already shifted), kIgnoredLabel for none.
///
/// With an encoder, a row is a source followed by its target (ForwardContext::sources); logits and loss are of the
/// target, and labels of the source do not count. With classes, logits are [batch, sequence, classes], and a text has
/// its label at the token that speaks for it: the first one of an encoder, the last one of a decoder.
///
/// Modules: "embedding", "blocks.0", .., "head". blocks() lists them; running them in order runs the model (labels pass
/// through to the head, or are given only to it). Not thread-safe.
class Model final : public Module {
 public:
  /// Throws UsageError like ModelConfig::validate.
  explicit Model(const ModelConfig& config);

  const ModelConfig& config() const noexcept { return config_; }
  std::vector<Module*> blocks() override;

  /// Logits [batch, vocabulary] of the token after the last of `ids`: the head runs at the last position only. Hooks on
  /// the model fire twice, as around two stages of a pipeline.
  at::Tensor next_logits(const at::Tensor& ids, const ForwardContext& context);

 protected:
  Tensors forward(Tensors inputs, const ForwardContext& context) override;

 private:
  ModelConfig config_;
  InputEmbedding& embedding_;
  BlockList& blocks_;
  Head& head_;
};

std::unique_ptr<Model> make_model(const ModelConfig& config);

}  // namespace caravan
