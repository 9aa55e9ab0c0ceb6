#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "caravan/module/module.h"
#include "caravan/nn/config.h"
#include "caravan/nn/tiles.h"

namespace caravan {

class ExpertAdapter;
class ExpertAdapters;

/// The MLPs of the experts, as tables that are split by whole experts over ranks: rows [e f, (e + 1) f) of `up` and
/// `gate` [experts f, width], rows [e width, (e + 1) width) of `down` [experts width, f], f =
/// ModelConfig::hidden_width(). down(activation(gate x) * up x), or not gated down(activation(up x)); the biases of
/// arch.mlp_bias are `gate_bias`, `up_bias` and `down_bias`.
///
/// {x [batch, sequence, width], gates and experts [batch, sequence, top_k], as Router gives them} -> {y, like x}: the
/// sum over a token's experts that are here, times their gates. Undefined gates are 1. Experts are computed one after
/// another on the rows of all their tokens, without padding or a capacity.
/// A tile has the tables of some of the experts, and computes them.
class Experts final : public Module, public Tileable {
 public:
  explicit Experts(const ModelConfig& config);

  int64_t num_experts() const noexcept { return num_experts_; }
  /// The experts that this rank holds: [first, first + count).
  int64_t first() const noexcept { return first_; }
  int64_t count() const noexcept { return count_; }
  /// Keeps part `index` of `parts` equal parts of the experts held. Returns a function that undoes it.
  std::function<void()> take_part(int64_t index, int64_t parts);

  /// Creates the adapter of one of the tables "gate", "up" and "down", below the child "lora", before the layer has
  /// memory.
  void add_adapter(std::string_view table, const LoraConfig& lora);

  std::vector<Weight> weights_to_cut() override;
  std::vector<Module*> cut(const std::vector<std::vector<TileCut>>& cuts, bool follows_trained) override;

 protected:
  Tensors forward(Tensors inputs, const ForwardContext& context) override;

 private:
  class TileOfExperts;
  /// The tables, of all experts or of those of a tile.
  struct Tables {
    Activation activation = Activation::silu;
    Parameter* gate = nullptr;
    Parameter* gate_bias = nullptr;
    Parameter* up = nullptr;
    Parameter* up_bias = nullptr;
    Parameter* down = nullptr;
    Parameter* down_bias = nullptr;
    ExpertAdapter* gate_adapter = nullptr;
    ExpertAdapter* up_adapter = nullptr;
    ExpertAdapter* down_adapter = nullptr;
    /// Those that there are, in the order of their registration.
    std::vector<Parameter**> all();
    /// `here`: rows of each expert of this rank, also of those that are not in the tables.
    at::Tensor compute(const at::Tensor& rows, const std::vector<int64_t>& counts, const std::vector<int64_t>& here,
                       const ForwardContext& context, const std::string& name) const;
  };
  void record(const ForwardContext& context, const at::Tensor& result, const at::Tensor& x,
              const at::Tensor& gates) const;
  at::Tensor through_mlps(const at::Tensor& rows, const std::vector<int64_t>& counts, const ForwardContext& context);
  at::Tensor through_tiles(const at::Tensor& rows, const std::vector<int64_t>& counts, const ForwardContext& context);

  int64_t num_experts_;
  int64_t first_ = 0;
  int64_t count_;
  int64_t hidden_;
  int64_t width_;
  Tables tables_{};
  ExpertAdapters* adapters_ = nullptr;
  std::vector<TileOfExperts*> tiles_{};
  std::vector<std::unique_ptr<Parameter>> whole_{};  ///< names and shapes of tables that are cut
  bool follows_trained_ = false;
};

/// The names of its parameters.
std::vector<std::string> expert_tables(const Architecture& arch);

}  // namespace caravan
