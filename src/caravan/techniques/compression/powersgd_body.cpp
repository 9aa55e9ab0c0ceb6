#include "caravan/registry/setting.h"
#include "caravan/techniques/compression/power_sgd.h"

namespace caravan {

std::shared_ptr<CommHook> powersgd_body(const Setting& hook) {
  return std::make_shared<PowerSgdHook>(hook.whole("hook_rank"));
}

}  // namespace caravan
