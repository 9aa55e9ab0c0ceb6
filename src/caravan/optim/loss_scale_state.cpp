#include "caravan/optim/loss_scale_state.h"

#include <ATen/ops/tensor.h>

namespace caravan {
namespace {

class LossScaleState final : public StateOwner {
 public:
  explicit LossScaleState(LossScale& scale) : scale_(scale) {}

  void walk(const Visit& visit) override {
    const LossScale::State& state = scale_.state();
    const at::Tensor numbers = at::tensor(
        {state.value, static_cast<double>(state.num_good), static_cast<double>(state.num_skipped)}, at::kFloat);
    visit({.kind = StatePiece::Kind::scale,
           .name = kLossScaleTensor,
           .tensor = numbers,
           .spread = StatePiece::Spread::everywhere,
           .loaded = [this, numbers] { take(numbers); }});
  }

 private:
  void take(const at::Tensor& numbers) {
    if (!scale_.is_dynamic()) return;
    scale_.set_state({.value = numbers[0].item<float>(),
                      .num_good = static_cast<int64_t>(numbers[1].item<float>()),
                      .num_skipped = static_cast<int64_t>(numbers[2].item<float>())});
  }

  LossScale& scale_;
};

}  // namespace

std::unique_ptr<StateOwner> state_of(LossScale& scale) { return std::make_unique<LossScaleState>(scale); }

}  // namespace caravan
