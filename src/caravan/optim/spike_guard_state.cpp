#include "caravan/optim/spike_guard_state.h"

#include <algorithm>

#include <ATen/ops/empty.h>

namespace caravan {
namespace {

class SpikeGuardState final : public StateOwner {
 public:
  explicit SpikeGuardState(SpikeGuard& guard) : guard_(guard) {}

  void walk(const Visit& visit) override {
    const at::Tensor numbers = at::empty({2 * kWindow + 4}, at::TensorOptions(at::kFloat));
    const SpikeGuard::State& state = guard_.state();
    auto* to = numbers.data_ptr<float>();
    to = std::ranges::copy(state.losses, to).out;
    to = std::ranges::copy(state.norms, to).out;
    for (const int64_t count : {state.count, state.next, state.num_in_a_row, state.num_skipped}) {
      *to++ = static_cast<float>(count);
    }
    visit({.kind = StatePiece::Kind::window,
           .name = kSpikeTensor,
           .tensor = numbers,
           .spread = StatePiece::Spread::everywhere,
           .loaded = [this, numbers] { take(numbers); }});
  }

 private:
  static constexpr auto kWindow = static_cast<int64_t>(SpikeGuard::kWindow);

  void take(const at::Tensor& numbers) {
    const auto* from = numbers.const_data_ptr<float>();
    SpikeGuard::State state;
    std::copy_n(from, kWindow, state.losses.begin());
    std::copy_n(from + kWindow, kWindow, state.norms.begin());
    const float* counts = from + 2 * kWindow;
    state.count = static_cast<int64_t>(counts[0]);
    state.next = static_cast<int64_t>(counts[1]);
    state.num_in_a_row = static_cast<int64_t>(counts[2]);
    state.num_skipped = static_cast<int64_t>(counts[3]);
    guard_.set_state(state);
  }

  SpikeGuard& guard_;
};

}  // namespace

std::unique_ptr<StateOwner> state_of(SpikeGuard& guard) { return std::make_unique<SpikeGuardState>(guard); }

}  // namespace caravan
