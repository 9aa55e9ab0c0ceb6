#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "caravan/device/event.h"

namespace caravan {

/// Work of one rank beside its computation, done in the order of the calls. Its destructor waits for what is left.
/// An error ends the job that throws it; later jobs run.
class CopyStream {
 public:
  CopyStream() = default;
  virtual ~CopyStream() = default;
  CopyStream(const CopyStream&) = delete;
  CopyStream& operator=(const CopyStream&) = delete;

  /// Runs `job` on the host.
  virtual Event run(std::function<void()> job) = 0;
  /// For a job of this stream: copies between host and device memory, in either direction, and returns when it is done.
  virtual void copy(void* to, const void* from, size_t bytes) = 0;
};

/// Where forward and backward have their tensors: all that the rest of the library knows of it. Its memory is an arena
/// with a budget (MemoryCounter::set_budget), which holds every tensor of a step.
class Accelerator {
 public:
  Accelerator() = default;
  virtual ~Accelerator() = default;
  Accelerator(const Accelerator&) = delete;
  Accelerator& operator=(const Accelerator&) = delete;

  /// Memory of the arena, aligned to 64 bytes, charged to the rank. Throws ResourceError if it exceeds the budget.
  virtual std::shared_ptr<void> allocate(size_t bytes) = 0;
  virtual std::unique_ptr<CopyStream> make_stream() = 0;
};

struct CpuDeviceOptions {
  /// Each stream copies at most this fast; 0: as fast as it can. For tests: device and host are the same memory here.
  double link_bytes_per_second = 0;
};

/// The processor's cores, whose arena is what torch allocates on this rank. A stream is a thread.
std::unique_ptr<Accelerator> make_cpu_device(const CpuDeviceOptions& options = {});

}  // namespace caravan
