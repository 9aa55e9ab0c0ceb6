#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "caravan/engine/engine.h"
#include "caravan/train/folder/metrics.h"

namespace caravan {

/// The norms of each layer's trained parameters in one step (log.tensors). Between the two calls it holds a copy of the
/// values that this rank has of them.
class LayerNormsOfStep {
 public:
  /// The engine outlives this.
  explicit LayerNormsOfStep(Engine& engine);

  /// Before the update, with reduced gradients that are `gradient_scale` times those of the loss. Sends nothing.
  void before_update(double gradient_scale);
  /// After the update. Every rank of the mesh calls it, and gets the same: in the order of the model, whatever the
  /// layout. Sums 24 bytes a layer over the ranks.
  std::vector<LayerNorms> after_update();

 private:
  struct Piece {
    const Parameter* parameter;
    size_t layer;
    bool counts;  ///< of the ranks that hold the same piece one counts
    at::Tensor before{};
  };

  Engine& engine_;
  std::vector<std::string> layers_;
  std::vector<Piece> pieces_;
  std::vector<double> sums_;  ///< of squares, for each layer: values, gradients, updates
};

}  // namespace caravan
