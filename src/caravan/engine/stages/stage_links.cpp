#include "caravan/engine/stages/stage_links.h"

#include <algorithm>
#include <chrono>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/module/path.h"

namespace caravan {
namespace {

constexpr int64_t kMostDims = 6;
constexpr size_t kMostTensors = 8;
/// What is sent about a tensor: its dtype, whether it has a gradient, its number of dims, its sizes.
constexpr int64_t kOfTensor = kMostDims + 3;
constexpr int64_t kHeader = 1 + static_cast<int64_t>(kMostTensors) * kOfTensor;

/// The label of a message for its sender and its receiver: "activation of micro-batch 3 for stage 1".
std::string label_of(const Action& entry, int stage) {
  return fmt::format("{} of micro-batch {} for stage {}", entry.is_gradient ? "gradient" : "activation",
                     entry.micro_batch, entry.is_gradient ? stage - 1 : stage);
}

std::string text_of(const std::vector<int64_t>& sizes) { return "[" + join(sizes) + "]"; }

}  // namespace

StageLinks::StageLinks(const Mesh& mesh, const Strategy& strategy, at::Device device)
    : mesh_(mesh), strategy_(strategy), device_(device) {
  if (strategy.pipeline_axis.empty()) return;
  Communicator& comm = mesh[strategy.pipeline_axis].comm();
  if (comm.shares_memory()) to_send_.emplace(comm, device.is_meta());
}

/// A boundary of the pipeline: S(0; on `from`) -> S(0; on `to`).
FlatCell StageLinks::cell(int from, int to) const {
  return {mesh_[strategy_.pipeline_axis], Shard{.dim = 0, .owner = from}, Shard{.dim = 0, .owner = to}};
}

/// A message in the communicator's memory is read by its receiver while this rank computes. Any other goes through
/// staging buffers, which this rank would have to refill repeatedly.
StageLinks::Works StageLinks::send_all(const FlatCell& cell, const Tensors& tensors, const Call& call,
                                       bool is_gradient) {
  const at::NoGradGuard no_grad;
  const char* path = is_gradient ? "stage link of gradients" : "stage link of activations";
  Works works;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.numel() == 0) continue;
    at::Tensor flat = taken(path, tensor.contiguous().view({-1}));
    if (to_send_ && !flat.is_cuda()) flat = to_send_->take(flat.numel(), flat.scalar_type()).copy_(flat);
    works.push_back(start(cell, flat, flat, call));
  }
  return works;
}

StageLinks::Works StageLinks::recv_all(const FlatCell& cell, const Tensors& tensors, const Call& call) const {
  Works works;
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor flat = tensor.view({-1});
    if (flat.numel() > 0) works.push_back(start(cell, flat, flat, call));
  }
  return works;
}

StageLinks::Shapes StageLinks::describe(const Tensors& tensors, int stage) const {
  const auto refuse = [&](const std::string& fact, const std::string& action) {
    throw ShapeError({"pipeline", fmt::format("input of stage {}", stage), fact, mesh_.where(), action});
  };
  if (tensors.size() > kMostTensors) {
    refuse(fmt::format("{} tensors", tensors.size()), fmt::format("pass at most {} from stage to stage", kMostTensors));
  }
  Shapes shapes;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined() || tensor.dim() > kMostDims) {
      refuse(tensor.defined() ? fmt::format("a tensor has {} dims", tensor.dim()) : "a tensor is undefined",
             fmt::format("pass tensors of at most {} dims from stage to stage", kMostDims));
    }
    shapes.push_back({tensor.scalar_type(), tensor.sizes().vec(), tensor.requires_grad()});
  }
  return shapes;
}

StageLinks::Key StageLinks::key(int stage, int micro_batch) const {
  return {stage, strategy_.has_static_shapes ? 0 : micro_batch};
}

/// `agreed` are the shapes that were agreed on.
void StageLinks::check_same(const Shapes& agreed, const Shapes& shapes, int stage, int micro_batch) const {
  if (agreed == shapes) return;
  const auto [was, is] = std::ranges::mismatch(agreed, shapes);
  const bool differs = was != agreed.end() && is != shapes.end();
  throw ShapeError({"pipeline", fmt::format("input of stage {}", stage),
                    differs ? fmt::format("tensor {} is {} {} in micro-batch {}, in the first it was {} {}",
                                          is - shapes.begin(), c10::toString(is->dtype), text_of(is->sizes),
                                          micro_batch, c10::toString(was->dtype), text_of(was->sizes))
                            : fmt::format("{} tensors in micro-batch {}, in the first there were {}", shapes.size(),
                                          micro_batch, agreed.size()),
                    mesh_.where(), "give all micro-batches the same shape, or set has_static_shapes = false"});
}

Work StageLinks::send_shapes(const FlatCell& cell, const Shapes& shapes) const {
  const at::Tensor header = at::empty({kHeader}, at::kLong);
  auto* next = header.mutable_data_ptr<int64_t>();
  std::fill_n(next, kHeader, 0);
  *next++ = static_cast<int64_t>(shapes.size());
  for (const Shape& shape : shapes) {
    next[0] = static_cast<int64_t>(shape.dtype);
    next[1] = shape.has_gradient ? 1 : 0;
    next[2] = static_cast<int64_t>(shape.sizes.size());
    std::ranges::copy(shape.sizes, next + 3);
    next += kOfTensor;
  }
  return start(cell, header, header, "shapes of activations");
}

StageLinks::Shapes StageLinks::recv_shapes(const FlatCell& cell) const {
  const at::Tensor header = at::zeros({kHeader}, at::kLong);
  start(cell, header, header, "shapes of activations").wait();
  const auto* next = header.const_data_ptr<int64_t>();
  if (*next == 0) {
    throw UsageError({"pipeline", "shapes of activations", "a communicator that only records brings none",
                      mesh_.where(), "record a rank of the first stage"});
  }
  Shapes shapes(static_cast<size_t>(*next++));
  for (Shape& shape : shapes) {
    shape = {static_cast<at::ScalarType>(next[0]), std::vector<int64_t>(next + 3, next + 3 + next[2]), next[1] != 0};
    next += kOfTensor;
  }
  return shapes;
}

Tensors StageLinks::make(const Shapes& shapes) const {
  Tensors tensors;
  for (const Shape& shape : shapes)
    tensors.push_back(at::empty(shape.sizes, at::TensorOptions(shape.dtype).device(device_)));
  return tensors;
}

void StageLinks::wait(Works& works) {
  const auto begin = std::chrono::steady_clock::now();
  for (Work& work : works) work.wait();
  waited_ms_ += std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  works.clear();
}

/// One message of a route may be in flight while the next is made.
void StageLinks::keep_one(Route route, Sent sent) {
  std::deque<Sent>& sends = sends_[route];
  while (sends.size() > 1) {
    wait(sends.front().works);
    sends.pop_front();
  }
  sends.push_back(std::move(sent));
}

/// Waits for the sends of a micro-batch of which more has arrived, and for earlier sends on their route.
void StageLinks::wait_for_sends(int micro_batch) {
  for (auto& [route, sends] : sends_) {
    while (std::ranges::find(sends, micro_batch, &Sent::micro_batch) != sends.end()) {
      wait(sends.front().works);
      sends.pop_front();
    }
  }
}

void StageLinks::begin_step(const Schedule& table, int num_micro_batches) {
  if (num_micro_batches != num_micro_batches_ || !strategy_.has_static_shapes) shapes_.clear();
  num_micro_batches_ = num_micro_batches;
  due_.clear();
  posted_.clear();
  sends_.clear();
  waited_ms_ = 0;
  for (const Action& entry : table) {
    if (entry.kind != Action::Kind::recv) continue;
    due_[strategy_.coord_of(entry.peer)].emplace_back(entry, strategy_.units[static_cast<size_t>(entry.unit)].stage);
  }
  for (const auto& [peer, entries] : due_) post_next(peer);
}

void StageLinks::finish_step() {
  for (auto& [route, sends] : sends_) {
    for (Sent& sent : sends) wait(sent.works);
  }
  sends_.clear();
}

const StageLinks::Shapes* StageLinks::shapes_of(int stage, int micro_batch) const {
  const auto found = shapes_.find(key(stage, micro_batch));
  return found == shapes_.end() ? nullptr : &found->second;
}

StageLinks::Shapes StageLinks::with_gradient(const Shapes& shapes, int stage) const {
  Shapes some;
  for (const Shape& shape : shapes) {
    if (shape.has_gradient) some.push_back(shape);
  }
  if (!some.empty()) return some;
  throw UsageError({"pipeline", fmt::format("input of stage {}", stage),
                    "no tensor of it has a gradient, but a stage before is trained", mesh_.where(),
                    "let a stage pass on what it computes from its parameters"});
}

void StageLinks::put(const Action& entry, int stage, const Tensors& tensors) {
  const int here = strategy_.coord_of(entry.is_gradient ? stage : stage - 1);
  const int there = strategy_.coord_of(entry.is_gradient ? stage - 1 : stage);
  const FlatCell route = cell(here, there);
  Works works;
  if (!entry.is_gradient) {
    Shapes shapes = describe(tensors, stage);
    if (const Shapes* agreed = shapes_of(stage, entry.micro_batch)) {
      check_same(*agreed, shapes, stage, entry.micro_batch);
    } else {
      works.push_back(send_shapes(route, shapes));
      shapes_[key(stage, entry.micro_batch)] = std::move(shapes);
    }
  }
  for (Work& work : send_all(route, tensors, label_of(entry, stage), entry.is_gradient))
    works.push_back(std::move(work));
  keep_one({there, entry.is_gradient}, {entry.micro_batch, std::move(works)});
}

/// Starts a receive whose shapes are known, or are sent with it.
StageLinks::Receipt StageLinks::post(const Action& entry, int stage) {
  const int there = strategy_.coord_of(entry.peer);
  const FlatCell route = cell(there, strategy_.coord_of(entry.is_gradient ? stage - 1 : stage));
  const Shapes* known = shapes_of(stage, entry.micro_batch);
  if (known == nullptr) {
    known = &(shapes_[key(stage, entry.micro_batch)] = recv_shapes(route));
  }
  Receipt receipt{make(entry.is_gradient ? with_gradient(*known, stage) : *known), {}};
  receipt.works = recv_all(route, receipt.tensors, label_of(entry, stage));
  return receipt;
}

void StageLinks::post_next(int peer) {
  const auto& entries = due_[peer];
  if (entries.empty() || posted_.contains(peer)) return;
  const auto& [entry, stage] = entries.front();
  if (shapes_of(stage, entry.micro_batch) != nullptr) posted_[peer] = post(entry, stage);
}

Tensors StageLinks::get(const Action& entry, int stage) {
  const int peer = strategy_.coord_of(entry.peer);
  const auto found = posted_.find(peer);
  const auto begin = std::chrono::steady_clock::now();
  Receipt receipt = found != posted_.end() ? std::move(found->second) : post(entry, stage);
  waited_ms_ += std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  posted_.erase(peer);
  wait(receipt.works);
  wait_for_sends(entry.micro_batch);
  due_[peer].pop_front();
  post_next(peer);
  if (!entry.is_gradient) {
    const Shapes& shapes = *shapes_of(stage, entry.micro_batch);
    for (size_t i = 0; i < shapes.size(); ++i) receipt.tensors[i].set_requires_grad(shapes[i].has_gradient);
  }
  return std::move(receipt.tensors);
}

void StageLinks::put_alone(int stage, const Tensors& outputs) {
  const Shapes shapes = describe(outputs, stage);
  const int there = strategy_.coord_of(stage);
  const FlatCell route = cell(strategy_.coord_of(stage - 1), there);
  Works works{send_shapes(route, shapes)};
  for (Work& work : send_all(route, outputs, "activation")) works.push_back(std::move(work));
  keep_one({there, false}, {0, std::move(works)});
}

Tensors StageLinks::get_alone(int stage) {
  const FlatCell route = cell(strategy_.coord_of(stage - 1), strategy_.coord_of(stage));
  Tensors tensors = make(recv_shapes(route));
  Works works = recv_all(route, tensors, "activation");
  wait(works);
  return tensors;
}

void StageLinks::poll() {
  for (auto& [peer, receipt] : posted_) {
    for (Work& work : receipt.works) work.done();
  }
  for (auto& [route, sends] : sends_) {
    for (Sent& sent : sends) {
      for (Work& work : sent.works) work.done();
    }
  }
}

}  // namespace caravan
