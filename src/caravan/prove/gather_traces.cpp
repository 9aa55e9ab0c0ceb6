#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/tensor.h>
#include <nlohmann/json.hpp>

#include "caravan/comm/calls/agree.h"
#include "caravan/comm/tensor.h"
#include "caravan/prove/trace.h"

namespace caravan {
namespace {

/// All numbers of the steps, one after another; a trace of the same shapes reads them back.
template <class Visit>
void visit_numbers(Trace& trace, Visit visit) {
  for (StepTrace& step : trace.steps) {
    at::Tensor numbers = at::tensor({step.loss, step.grad_norm}, at::kDouble);
    visit(numbers);
    step.loss = numbers[0].item<double>();
    step.grad_norm = numbers[1].item<double>();
    for (auto* tensors : {&step.before, &step.gradients, &step.after}) {
      for (at::Tensor& tensor : *tensors) {
        if (tensor.defined()) visit(tensor);
      }
    }
  }
}

at::Tensor to_flat(Trace& trace) {
  std::vector<at::Tensor> all;
  visit_numbers(trace, [&](const at::Tensor& tensor) { all.push_back(tensor.flatten()); });
  return at::cat(all);
}

Trace from_flat(const at::Tensor& flat, const Trace& like) {
  Trace trace = like;
  int64_t begin = 0;
  visit_numbers(trace, [&](at::Tensor& tensor) {
    tensor = flat.narrow(0, begin, tensor.numel()).view(tensor.sizes());
    begin += tensor.numel();
  });
  return trace;
}

/// The paths of each rank.
std::vector<PathCounts> paths_of_ranks(const PathCounts& own, Communicator& world) {
  std::vector<PathCounts> all;
  for (const std::string& text : gather_texts(world, nlohmann::json(own).dump(), "paths")) {
    all.push_back(nlohmann::json::parse(text).get<PathCounts>());
  }
  return all;
}

}  // namespace

PathCounts gather_paths(const PathCounts& own, const std::shared_ptr<Communicator>& world) {
  PathCounts all;
  for (const PathCounts& paths : paths_of_ranks(own, *world)) add_paths(all, paths);
  return all;
}

std::vector<Trace> gather_traces(Trace own, const std::shared_ptr<Communicator>& world) {
  const std::vector<std::string> places = gather_texts(*world, own.where, "places of ranks");
  const std::vector<PathCounts> paths = paths_of_ranks(own.paths, *world);
  const at::Tensor flat = to_flat(own);
  if (world->rank() != 0) {
    send_async(*world, flat, 0, "trace").wait();
    return {};
  }
  std::vector<Trace> all;
  for (int rank = 0; rank < world->size(); ++rank) {
    const at::Tensor numbers = rank == 0 ? flat : at::empty_like(flat);
    if (rank > 0) recv_async(*world, numbers, rank, "trace").wait();
    all.push_back(from_flat(numbers, own));
    all.back().where = places[static_cast<size_t>(rank)];
    all.back().paths = paths[static_cast<size_t>(rank)];
  }
  return all;
}

}  // namespace caravan
