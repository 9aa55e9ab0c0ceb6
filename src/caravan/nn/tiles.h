#pragma once

#include <memory>
#include <string>
#include <vector>

#include <ATen/core/ivalue.h>

#include "caravan/module/module.h"

namespace caravan {

/// Rows of a weight that become a tile: [first, first + count) of those that this rank computes with.
struct TileCut {
  ParameterSpec spec;  ///< of the tile
  TileOf whole;        ///< what it is cut from
  int64_t first = 0;
  int64_t count = 0;
  Parameter* shared = nullptr;  ///< the tile, if another layer has it already (tied embeddings)
};

/// A layer whose weights can be cut into tiles of rows (techniques/tiling/tiling.h), which it then uses one after
/// another: each tile is a module with parameters of its own, so that it can be gathered, reduced and freed alone.
class Tileable {
 public:
  struct Weight {
    Parameter* parameter = nullptr;
    int64_t row_unit = 1;  ///< so many rows stay together
  };

  Tileable() = default;
  virtual ~Tileable() = default;
  Tileable(const Tileable&) = delete;
  Tileable& operator=(const Tileable&) = delete;

  virtual std::vector<Weight> weights_to_cut() = 0;
  /// `cuts[t][i]`: tile t of weight i. Creates the tiles, children "tile_0", .., in the order in which forward uses
  /// them, whose own_parameters() are in the order of the weights. The weights are no longer parameters of the model.
  /// `follows_trained`: an earlier unit is trained, so that backward reaches this layer even if nothing before it
  /// requires a gradient. Called once, before the layer has memory.
  virtual std::vector<Module*> cut(const std::vector<std::vector<TileCut>>& cuts, bool follows_trained) = 0;
};

/// "tile_3"
inline std::string tile_name(size_t index) { return "tile_" + std::to_string(index); }

/// Registers the parameter of a tile: `name`, with its place in the whole.
class TileSlot : public Module {
 protected:
  Parameter& slot_of(const std::string& name, const TileCut& cut);
};

/// A tile as a task uses it.
struct TileRows {
  Parameter& weight;
  int64_t first = 0;  ///< of the rows that this rank computes with
  int64_t count = 0;
};

class TileTask;
using TileTaskPtr = c10::intrusive_ptr<TileTask>;

/// A tile of one weight.
class Tile final : public TileSlot {
 public:
  explicit Tile(const TileCut& cut) : rows_{slot_of("weight", cut), cut.first, cut.count} {}

  const TileRows& rows() const noexcept { return rows_; }

 protected:
  /// {link} -> {link}: tensors without elements, which put the tiles into one order, forward and backward.
  Tensors forward(Tensors inputs, const ForwardContext& context) override;

 private:
  friend class Tiles;
  TileRows rows_;
  TileTaskPtr task_;  ///< of the run that begins
};

/// What a layer computes with its tiles, once: forward() for each tile, result(), and in backward begin_backward(),
/// backward() for each tile in reverse order, and end_backward(). Tensors are detached; `values` are those of the tile.
class TileTask : public torch::CustomClassHolder {
 public:
  virtual void forward(const TileRows& tile, const at::Tensor& values) = 0;
  /// Gives up what forward needs.
  virtual at::Tensor result() = 0;
  /// `wants_input`: the gradient of the input is needed.
  virtual void begin_backward(const at::Tensor& input, const at::Tensor& gradient, bool wants_input) = 0;
  /// Adds to the gradient of the input, and, if it is trained, to that of the tile.
  virtual void backward(const TileRows& tile, const at::Tensor& values, bool is_trained) = 0;
  /// Gives up what backward needs. Returns the gradient of the input, if it is needed.
  virtual at::Tensor end_backward() = 0;
};

/// The tiles of one weight of a layer. Without any, the layer uses the weight itself.
class Tiles {
 public:
  bool empty() const noexcept { return tiles_.empty(); }
  /// The rows of all tiles.
  int64_t num_rows() const noexcept { return tiles_.back()->rows().first + tiles_.back()->rows().count; }
  /// A tile, which has the dtype and the width of all.
  const Parameter& example() const noexcept { return tiles_.front()->rows().weight; }
  size_t size() const noexcept { return tiles_.size(); }
  void add(Tile& tile) { tiles_.push_back(&tile); }
  /// Keeps name and shape of the weight; null if another layer does.
  void set(std::unique_ptr<Parameter> whole, bool follows_trained);
  std::vector<Module*> modules() const { return {tiles_.begin(), tiles_.end()}; }

  /// Runs `task` for `input` over all tiles: the result, differentiable once. `bias` [.., n]: what the task adds to the
  /// result, or null.
  at::Tensor run(const at::Tensor& input, const TileTaskPtr& task, const ForwardContext& context,
                 Parameter* bias = nullptr) const;

 private:
  std::vector<Tile*> tiles_;
  std::unique_ptr<Parameter> whole_;
  bool follows_trained_ = false;
};

/// x W^T + b with the rows of W in tiles: as linear() (nn/product/product.h), but the gradient of x is a sum over tiles
/// in fp32 (fp64 for fp64), from the last to the first, rounded once. `weight`: its name, for errors.
at::Tensor linear(const at::Tensor& x, const Tiles& tiles, Parameter* bias, const std::string& weight,
                  const ForwardContext& context);

}  // namespace caravan
