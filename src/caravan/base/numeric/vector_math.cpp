#include "caravan/base/numeric/vector_math.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/tanh.h>

#include "caravan/base/trace/kernel_log.h"

namespace caravan {

void settle_vector_math() {
  static const bool is_settled = [] {
    const KernelLogScope uncounted(nullptr);
    float number = 1;  // memory of our own: in a ShapesOnlyScope new tensors have none
    at::from_blob(&number, {1}, at::kFloat).tanh_();
    return true;
  }();
  static_cast<void>(is_settled);
}

}  // namespace caravan
