#include "caravan/session/autocast.h"

#include <ATen/autocast_mode.h>
#include <fmt/format.h>

#include "caravan/base/error.h"

namespace caravan {

Autocast::Autocast(at::ScalarType dtype)
    : was_enabled_(at::autocast::is_autocast_enabled(at::kCPU)),
      was_dtype_(at::autocast::get_autocast_dtype(at::kCPU)) {
  if (dtype != at::kBFloat16 && dtype != at::kHalf) {
    throw UsageError(
        {"autocast", c10::toString(dtype), "is not a dtype of lower precision", "", "use at::kBFloat16 or at::kHalf"});
  }
  at::autocast::increment_nesting();
  if (dtype != was_dtype_) at::autocast::clear_cache();  // it does not ask for the dtype of a copy
  at::autocast::set_autocast_dtype(at::kCPU, dtype);
  at::autocast::set_autocast_enabled(at::kCPU, true);
}

Autocast::~Autocast() {
  if (at::autocast::get_autocast_dtype(at::kCPU) != was_dtype_) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(at::kCPU, was_enabled_);
  at::autocast::set_autocast_dtype(at::kCPU, was_dtype_);
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
}

}  // namespace caravan
