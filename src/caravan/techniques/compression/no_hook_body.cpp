#include "caravan/engine/gradients/reduction_hook.h"
#include "caravan/registry/setting.h"

namespace caravan {

std::shared_ptr<ReductionHook> no_hook_body(const Setting&) { return nullptr; }

}  // namespace caravan
