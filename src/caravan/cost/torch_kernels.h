#pragma once

#include <cstdint>

namespace caravan {

/// While it lives, operators of torch that this thread calls, in backward too, count in its KernelLog. A composite
/// operator counts by what it calls; for another what it calls is not counted. Views and allocations are free.
/// Operators without products count the bytes of the tensors that they read and write, each once; those that pick rows,
/// the rows.
class TorchKernelScope {
 public:
  TorchKernelScope();
  ~TorchKernelScope();
  TorchKernelScope(const TorchKernelScope&) = delete;
  TorchKernelScope& operator=(const TorchKernelScope&) = delete;

 private:
  uint64_t handle_;
};

}  // namespace caravan
