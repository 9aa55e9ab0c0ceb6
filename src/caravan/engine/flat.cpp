#include "caravan/engine/flat.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/comm/tensor.h"

namespace caravan {

FlatLayout::FlatLayout(const std::vector<Parameter*>& parameters) {
  for (const bool decays : {true, false}) {
    for (auto it = parameters.rbegin(); it != parameters.rend(); ++it) {
      Parameter* parameter = *it;
      if (!parameter->requires_grad() || parameter->spec().decays != decays) continue;
      const int64_t count = parameter->rest().numel();
      index_.emplace(parameter, slots_.size());
      slots_.push_back({parameter, count_, count});
      count_ += (count + kAlignment - 1) / kAlignment * kAlignment;
    }
    if (decays) decayed_count_ = count_;
  }
}

at::Tensor FlatLayout::view(const at::Tensor& flat, const Parameter& parameter) const {
  const Slot& at = slot(parameter);
  return flat.narrow(0, at.offset, at.count).view(parameter.rest().sizes());
}

FlatState flatten(const std::vector<Parameter*>& parameters, Communicator& comm) {
  FlatLayout layout(parameters);
  if (layout.slots().empty()) {
    throw UsageError({"flatten", "model", "no parameter requires a gradient", "", "train at least one"});
  }
  const Parameter& first = *layout.slots().front().parameter;
  const at::ScalarType dtype = first.rest().scalar_type();
  for (const auto& slot : layout.slots()) {
    const at::Tensor& rest = slot.parameter->rest();
    if (rest.scalar_type() != dtype || rest.device() != first.rest().device()) {
      throw UsageError(
          {"flatten", slot.parameter->name(),
           fmt::format("rests as {} on {}, but {} as {} on {}", c10::toString(rest.scalar_type()), rest.device().str(),
                       first.name(), c10::toString(dtype), first.rest().device().str()),
           "", "let all parameters rest in one dtype on one device"});
    }
  }
  const at::NoGradGuard no_grad;
  const auto allocate = [&] {
    if (first.rest().is_meta()) return at::Tensor(first.rest().new_empty({layout.count()}));
    return allocate_flat(comm, layout.count(), dtype);
  };
  FlatState state{layout, allocate(), allocate()};
  for (const auto& slot : layout.slots()) {
    at::Tensor piece = state.layout.view(state.values, *slot.parameter);
    piece.copy_(slot.parameter->rest());
    at::Tensor rest = slot.parameter->rest();
    rest.set_data(piece);
  }
  return state;
}

}  // namespace caravan
