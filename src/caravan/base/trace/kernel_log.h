#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

namespace caravan {

/// What a device computes by one kernel, as far as a model of its time needs to know.
struct KernelWork {
  enum class Kind : uint8_t {
    product,    ///< `batch` products of m x k and k x n
    attention,  ///< fused: `batch` heads of m queries and n keys of width k
    memory,     ///< the time of anything else follows from its bytes
  };
  Kind kind = Kind::memory;
  std::string what{};   ///< operator of torch, or kernel of this library: "mm", "gelu"
  std::string dtype{};  ///< of operands and arithmetic: "fp32"
  int64_t batch = 1, m = 0, n = 0, k = 0;
  int64_t products = 1;    ///< of this size: attention has 2, its backward 5
  bool is_causal = false;  ///< of attention: a query sees half of the keys
  int64_t window = 0;      ///< and at most so many; 0: any number
  int64_t bytes = 0;       ///< read and written
  /// Of a product: rows or columns of a matrix, whichever are contiguous, do not all begin at a multiple of 8 elements.
  bool is_unaligned = false;
  bool is_on_host = false;  ///< computed by the host, beside the device: see HostKernelScope

  /// Multiplications and additions; 0 for Kind::memory.
  double flops() const noexcept;
  auto operator<=>(const KernelWork&) const = default;
};

/// Gets the work of the kernels that run while a KernelLogScope makes it the log of its thread, also on meta tensors,
/// where nothing is computed.
class KernelLog {
 public:
  virtual ~KernelLog() = default;
  virtual void add(KernelWork work) = 0;
  /// The log of this thread, or null.
  static KernelLog* current() noexcept;
};

/// While it lives, `log` is the log of this thread; null suspends counting.
class KernelLogScope {
 public:
  explicit KernelLogScope(KernelLog* log) noexcept;
  ~KernelLogScope();
  KernelLogScope(const KernelLogScope&) = delete;
  KernelLogScope& operator=(const KernelLogScope&) = delete;

 private:
  KernelLog* before_;
};

/// While it lives, kernels of its thread run on the host, not on the device.
class HostKernelScope {
 public:
  HostKernelScope() noexcept;
  ~HostKernelScope();
  HostKernelScope(const HostKernelScope&) = delete;
  HostKernelScope& operator=(const HostKernelScope&) = delete;
  static bool is_active() noexcept;

 private:
  bool before_;
};

}  // namespace caravan
