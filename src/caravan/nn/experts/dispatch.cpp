#include "caravan/nn/experts/dispatch.h"

#include <c10/core/ScalarType.h>
#include <fmt/format.h>

#include "caravan/base/error.h"

namespace caravan {

void check_device(std::string_view op, const at::Tensor& tensor) {
  if (tensor.is_cpu() || tensor.is_meta()) return;
  throw UsageError({std::string(op), "", fmt::format("has no kernel for device {}", tensor.device().str()), "",
                    "keep the model on the CPU"});
}

void refuse_dtype(std::string_view op, at::ScalarType type) {
  throw UsageError({std::string(op), "", fmt::format("does not support {}", c10::toString(type)), "",
                    "compute in fp32, bf16 or fp16"});
}

}  // namespace caravan
