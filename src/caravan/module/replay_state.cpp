#include "caravan/module/replay_state.h"

#include <mutex>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>

namespace caravan {
namespace {

at::Tensor generator_state() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

}  // namespace

ReplayState::ReplayState(Module& module, bool draws) {
  for (Module* part : module.modules()) {
    for (const auto& [name, buffer] : part->buffers()) {
      if (buffer.is_meta()) continue;
      // Without the buffer's version counter: the graph of a batch norm has saved the buffer, but does not read it.
      const at::Tensor data = buffer.variable_data();
      buffers_.push_back({data, data.clone()});
    }
  }
  if (draws) generator_ = generator_state();
}

void ReplayState::keep_changed() {
  std::erase_if(buffers_, [](const Buffer& buffer) { return at::equal(buffer.of, buffer.values); });
  if (generator_.defined() && at::equal(generator_, generator_state())) generator_ = at::Tensor();
}

ReplayState ReplayState::now() const {
  ReplayState copy = *this;
  for (Buffer& buffer : copy.buffers_) buffer.values = buffer.of.clone();
  if (generator_.defined()) copy.generator_ = generator_state();
  return copy;
}

void ReplayState::restore() const {
  const at::NoGradGuard no_grad;
  for (const Buffer& buffer : buffers_) buffer.of.copy_(buffer.values);
  if (!generator_.defined()) return;
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  generator.set_state(generator_);
}

}  // namespace caravan
