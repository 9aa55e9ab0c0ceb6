#include "caravan/parallel/ddp.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "caravan/base/error.h"
#include "caravan/comm/same.h"
#include "caravan/comm/tensor.h"

namespace caravan {
namespace {

bool needs_copies(const DdpOptions& options) { return options.compute_dtype != at::kFloat; }

std::string describe(const at::Tensor& tensor, at::IntArrayRef shape) {
  return fmt::format("{} [{}]", tensor.defined() ? c10::toString(tensor.scalar_type()) : "without memory",
                     fmt::join(shape, ", "));
}

/// What the collectives of Ddp go by: ranks that differ in it would wait for each other, or mix up their parameters.
std::vector<SharedFact> facts_of(Module& model, const DdpOptions& options) {
  std::vector<SharedFact> facts{{"bucket_bytes", std::to_string(options.bucket_bytes)},
                                {"compute_dtype", c10::toString(options.compute_dtype)},
                                {"allow_unused", options.allow_unused ? "true" : "false"}};
  for (const Parameter* parameter : model.parameters()) {
    facts.push_back({parameter->name(), describe(parameter->rest(), parameter->global_shape()) +
                                            (parameter->requires_grad() ? "" : ", frozen")});
  }
  for (const auto& [name, buffer] : model.buffers()) facts.push_back({name, describe(buffer, buffer.sizes())});
  return facts;
}

FlatState checked_state(Module& model, const MeshAxis& axis, const DdpOptions& options) {
  check_same_on_all_ranks(axis.comm(), "ddp", facts_of(model, options), "ddp options and parameters");
  if (options.compute_dtype != at::kFloat && options.compute_dtype != at::kBFloat16) {
    throw UsageError({"ddp", "compute_dtype", fmt::format("{} is not supported", c10::toString(options.compute_dtype)),
                      "", "use fp32 or bf16"});
  }
  for (const Parameter* parameter : model.parameters()) {
    if (!parameter->rest().defined()) {
      throw UsageError({"ddp", parameter->name(), "has no memory", "", "materialise the model first"});
    }
    if (needs_copies(options) && parameter->computes_at_rest()) {
      throw UsageError({"ddp", parameter->name(),
                        "belongs to a torch::nn::Module, which computes with its own parameters and sees no copies", "",
                        "use compute_dtype fp32"});
    }
    if (axis.size() > 1 && !parameter->rest_layout()[axis.name()].is_invariant()) {
      throw LayoutError({"ddp", parameter->name(), fmt::format("does not rest invariant on axis {}", axis.name()),
                         "layout " + parameter->rest_layout().to_string(),
                         "leave the axis of data parallelism out of its layout"});
    }
  }
  return flatten(model.parameters(), axis.comm());
}

}  // namespace

Ddp::Ddp(Module& model, const MeshAxis& axis, const DdpOptions& options)
    : axis_(axis), options_(options), state_(checked_state(model, axis, options)) {
  const at::NoGradGuard no_grad;
  broadcast_from_coordinate_0(model);
  if (needs_copies(options)) make_compute_copies(model);
  buckets_ = std::make_unique<GradientBuckets>(
      state_, options.bucket_bytes, [this](const Bucket& bucket, const at::Tensor& range) {
        return all_reduce_async(axis_.comm(), range, range, ReduceOp::sum,
                                fmt::format("gradient bucket {}", bucket.index));
      });
  std::vector<Parameter*> trained;
  for (const auto& slot : state_.layout.slots()) trained.push_back(slot.parameter);
  dispatcher_ = std::make_unique<GradientDispatcher>(trained, *buckets_);
}

Ddp::~Ddp() = default;

void Ddp::broadcast_from_coordinate_0(Module& model) {
  std::vector<Work> works{broadcast_async(axis_.comm(), state_.values, 0, "parameters")};
  for (const Parameter* parameter : model.parameters()) {
    if (state_.layout.has(*parameter)) continue;
    works.push_back(broadcast_async(axis_.comm(), parameter->rest(), 0, parameter->name()));
  }
  for (const auto& [name, buffer] : model.buffers()) works.push_back(broadcast_async(axis_.comm(), buffer, 0, name));
  for (Work& work : works) work.wait();
}

void Ddp::make_compute_copies(Module& model) {
  compute_values_ = state_.values.to(options_.compute_dtype);
  for (const auto& slot : state_.layout.slots()) {
    slot.parameter->set_compute(state_.layout.view(compute_values_, *slot.parameter).detach().requires_grad_());
  }
  for (Parameter* parameter : model.parameters()) {
    if (!state_.layout.has(*parameter)) parameter->set_compute(parameter->rest().to(options_.compute_dtype));
  }
}

void Ddp::check_all_used() const {
  if (options_.allow_unused) return;
  for (const Parameter* parameter : buckets_->unused()) {
    throw UsageError({"ddp", parameter->name(), "got no gradient in this step",
                      fmt::format("coordinate {} of axis {}", axis_.coord(), axis_.name()),
                      "use it in the forward pass, freeze it before wrapping, or set allow_unused"});
  }
}

void Ddp::refresh_compute_copies() {
  const at::NoGradGuard no_grad;
  if (compute_values_.defined()) compute_values_.copy_(state_.values);
}

void Ddp::begin_step() {
  buckets_->begin_step();
  for (const auto& slot : state_.layout.slots()) slot.parameter->rest().mutable_grad() = at::Tensor();
  refresh_compute_copies();
}

void Ddp::finish(const Bucket& bucket) {
  if (bucket.index == 0) check_all_used();
  buckets_->finish(bucket.index);
}

void Ddp::finish_step() {
  for (const Bucket& bucket : buckets()) finish(bucket);
  for (const auto& slot : state_.layout.slots()) {
    // Detached: torch's zero_grad refuses views that autograd knows of.
    slot.parameter->rest().mutable_grad() = state_.layout.view(state_.gradients, *slot.parameter).detach();
  }
}

}  // namespace caravan
