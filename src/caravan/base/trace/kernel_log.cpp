#include "caravan/base/trace/kernel_log.h"

namespace caravan {
namespace {

thread_local constinit KernelLog* current_kernel_log = nullptr;

}  // namespace

double KernelWork::flops() const noexcept {
  if (kind == Kind::memory) return 0;
  const double size = static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  return 2.0 * static_cast<double>(batch * products) * size * (is_causal ? 0.5 : 1);
}

KernelLog* KernelLog::current() noexcept { return current_kernel_log; }

KernelLogScope::KernelLogScope(KernelLog* log) noexcept : before_(current_kernel_log) { current_kernel_log = log; }

KernelLogScope::~KernelLogScope() { current_kernel_log = before_; }

}  // namespace caravan
