#include "caravan/techniques/compression/error_feedback.h"

#include <ATen/ops/zeros.h>

#include "caravan/base/memory/memory_counter.h"

namespace caravan {

std::string ErrorFeedbackHook::wrong_with(at::ScalarType kept, at::ScalarType reduced) const {
  const bool is_wide = kept == at::kFloat || kept == at::kDouble;
  return is_wide && reduced == kept
             ? ""
             : "keeps a residual in the dtype of the parameters; leave gradient_dtype and reduce_dtype out";
}

void ErrorFeedbackHook::prepare(int64_t count, const at::TensorOptions& options) {
  const MemoryKindScope kind(MemoryKind::optimizer);
  residual_ = at::zeros({count}, options);
}

}  // namespace caravan
