#include "caravan/base/trace/kernel_log.h"

#include <utility>

namespace caravan {
namespace {

thread_local constinit KernelLog* current_kernel_log = nullptr;

thread_local constinit bool is_host_kernel = false;

}  // namespace

double KernelWork::flops() const noexcept {
  if (kind == Kind::memory) return 0;
  const double size = static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  double share = is_causal ? 0.5 : 1;
  if (window > 0 && window < n) {
    const double of_keys = static_cast<double>(window) / static_cast<double>(n);
    share = is_causal ? of_keys * (1 - of_keys / 2) : of_keys;
  }
  return 2.0 * static_cast<double>(batch) * static_cast<double>(products) * size * share;
}

KernelLog* KernelLog::current() noexcept { return current_kernel_log; }

KernelLogScope::KernelLogScope(KernelLog* log) noexcept : before_(current_kernel_log) { current_kernel_log = log; }

KernelLogScope::~KernelLogScope() { current_kernel_log = before_; }

HostKernelScope::HostKernelScope() noexcept : before_(std::exchange(is_host_kernel, true)) {}
HostKernelScope::~HostKernelScope() { is_host_kernel = before_; }
bool HostKernelScope::is_active() noexcept { return is_host_kernel; }

}  // namespace caravan
