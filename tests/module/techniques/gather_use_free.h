#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/native/Resize.h>

#include "caravan/module/gradients.h"
#include "caravan/module/module.h"
#include "caravan/redistribute/redistribute.h"

namespace caravan::testing {

/// Test-only technique: parameters rest S(0); each block of the model gathers its own before its forward and before its
/// backward, and frees them after.
class GatherUseFree final : public GradientSink {
 public:
  GatherUseFree(Module& model, const MeshAxis& axis) : axis_(axis) {
    for (Parameter* parameter : model.parameters()) {
      parameter->set_compute(at::empty(parameter->global_shape(), parameter->rest().options()).requires_grad_());
      free(*parameter);
    }
    for (Module* block : model.blocks()) {
      block->add_pre_forward_hook([this](Module& self, Tensors&, const ForwardContext&) { gather(self); });
      block->add_post_forward_hook([this](Module& self, Tensors& outputs, const ForwardContext&) {
        outputs[0].register_hook([this, &self](const at::Tensor&) { gather(self); });
        for (Parameter* parameter : self.parameters()) free(*parameter);
      });
    }
    dispatcher_ = std::make_unique<GradientDispatcher>(model.parameters(), *this);
  }

  void deposit(Parameter& parameter, const at::Tensor& gradient) override {
    parameter.rest().mutable_grad() =
        redistribute(gradient, {{axis_.name(), Partial{}}}, axis_, Shard{0}, parameter.name());
    free(parameter);
  }

 private:
  void gather(Module& block) {
    const at::NoGradGuard no_grad;
    for (Parameter* parameter : block.parameters()) {
      const at::Tensor& full = parameter->compute();
      if (full.storage().nbytes() != 0) continue;
      const auto whole = redistribute(parameter->rest(), parameter->rest_layout(), axis_, Replicate{});
      at::native::resize_bytes_cpu(full.storage().unsafeGetStorageImpl(), full.numel() * full.element_size());
      const at::AutoDispatchBelowADInplaceOrView same_version;  // what autograd has saved of it is valid again
      full.copy_(whole);
    }
  }

  static void free(Parameter& parameter) {
    at::native::resize_bytes_cpu(parameter.compute().storage().unsafeGetStorageImpl(), 0);
  }

  MeshAxis axis_;
  std::unique_ptr<GradientDispatcher> dispatcher_;
};

}  // namespace caravan::testing
