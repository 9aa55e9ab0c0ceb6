#include "caravan/parallel/power_sgd.h"
#include "caravan/registry/setting.h"

namespace caravan {

std::shared_ptr<ReductionHook> powersgd_body(const Setting& hook) {
  return std::make_shared<PowerSgdHook>(hook.whole("hook_rank"));
}

}  // namespace caravan
