#include "caravan/module/meta/accelerator_scope.h"

#include <utility>

namespace caravan {
namespace {

thread_local constinit bool stands_for_accelerator = false;

}  // namespace

AcceleratorScope::AcceleratorScope(bool is_accelerator) noexcept
    : before_(std::exchange(stands_for_accelerator, is_accelerator)) {}
AcceleratorScope::~AcceleratorScope() { stands_for_accelerator = before_; }
bool AcceleratorScope::is_active() noexcept { return stands_for_accelerator; }

bool is_on_accelerator(const at::Tensor& x) { return x.is_cuda() || (x.is_meta() && AcceleratorScope::is_active()); }

}  // namespace caravan
