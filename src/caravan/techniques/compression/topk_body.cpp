#include "caravan/registry/setting.h"
#include "caravan/techniques/compression/top_k.h"

namespace caravan {

std::shared_ptr<CommHook> topk_body(const Setting& hook) {
  return std::make_shared<TopKHook>(hook.real("hook_fraction"));
}

}  // namespace caravan
