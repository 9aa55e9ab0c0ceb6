#include "caravan/optim/lion.h"

#include <type_traits>

#include "caravan/module/count_kernel.h"
#include "caravan/optim/kernels.h"
#include "caravan/optim/sweep_elements.h"

namespace caravan {

Lion::Lion(FlatState& state, const LionOptions& options)
    : Optimizer(state, {"exp_avg"}, [options](const Part& part, double lr, double gradient_scale) {
        return update(part, options, lr, gradient_scale);
      }) {
  check_option("beta1", options.beta1, {.low = 0, .high = 1, .has_high = false});
  check_option("beta2", options.beta2, {.low = 0, .high = 1, .has_high = false});
  check_option("weight_decay", options.weight_decay, {.low = 0, .high = 1e3});
}

bool Lion::update(const Part& part, const LionOptions& options, double lr, double gradient_scale) {
  const bool writes = part.copies.defined() && part.copies.scalar_type() == at::kBFloat16;
  count_kernel("lion", part.values, part.values, part.gradients, part.moments[0], part.moments[0],
               writes ? part.copies : at::Tensor());
  if (part.values.is_meta()) return writes;
  const kernels::LionStep numbers{.gradient_scale = gradient_scale,
                                  .decay = 1 - lr * part.decay(options.weight_decay),
                                  .beta1 = options.beta1,
                                  .beta2 = options.beta2,
                                  .lr = lr};
  auto* copies = writes ? static_cast<kernels::Bf16*>(part.copies.data_ptr()) : nullptr;
  sweep_elements(part.values, part.gradients, [&](auto* values, const auto* gradients, int64_t begin, int64_t count) {
    using T = std::remove_pointer_t<decltype(values)>;
    kernels::lion(values, gradients, static_cast<T*>(part.moments[0].data_ptr()) + begin,
                  copies == nullptr ? nullptr : copies + begin, count, numbers);
  });
  return writes;
}

}  // namespace caravan
