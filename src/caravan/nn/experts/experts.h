#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "caravan/module/module.h"
#include "caravan/nn/config.h"

namespace caravan {

/// The MLPs of the experts, as tables that are split by whole experts over ranks: rows [e f, (e + 1) f) of `up` and
/// `gate` [experts f, width], rows [e width, (e + 1) width) of `down` [experts width, f], f =
/// ModelConfig::hidden_width(). down(silu(gate x) * up x) of Llama; down(gelu(up x)) with biases of GPT-2.
///
/// {x [batch, sequence, width], gates and experts [batch, sequence, top_k], as Router gives them} -> {y, like x}: the
/// sum over a token's experts that are here, times their gates. Undefined gates are 1. Experts are computed one after
/// another on the rows of all their tokens, without padding or a capacity.
class Experts final : public Module {
 public:
  explicit Experts(const ModelConfig& config);

  int64_t num_experts() const noexcept { return num_experts_; }
  /// The experts that this rank holds: [first, first + count).
  int64_t first() const noexcept { return first_; }
  int64_t count() const noexcept { return count_; }
  /// Keeps part `index` of `parts` equal parts of the experts held. Returns a function that undoes it.
  std::function<void()> take_part(int64_t index, int64_t parts);

 protected:
  Tensors forward(Tensors inputs, const ForwardContext& context) override;

 private:
  at::Tensor through_mlps(const at::Tensor& rows, const std::vector<int64_t>& counts, const ForwardContext& context);

  int64_t num_experts_;
  int64_t first_ = 0;
  int64_t count_;
  Parameter* gate_ = nullptr;
  Parameter& up_;
  Parameter* up_bias_ = nullptr;
  Parameter& down_;
  Parameter* down_bias_ = nullptr;
};

/// The names of its parameters.
const std::vector<std::string>& expert_tables(ModelKind kind);

}  // namespace caravan
