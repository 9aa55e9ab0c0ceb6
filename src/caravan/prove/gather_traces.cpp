#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include "caravan/comm/agree.h"
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

/// "path\tcount" lines.
std::string to_text(const PathCounts& paths) {
  std::string text;
  for (const auto& [path, count] : paths) text += fmt::format("{}\t{}\n", path, count);
  return text;
}

PathCounts paths_from(const std::string& text) {
  PathCounts paths;
  for (size_t begin = 0; begin < text.size();) {
    const size_t tab = text.find('\t', begin);
    const size_t end = text.find('\n', tab);
    paths[text.substr(begin, tab - begin)] += std::stoll(text.substr(tab + 1, end - tab - 1));
    begin = end + 1;
  }
  return paths;
}

}  // namespace

PathCounts gather_paths(const PathCounts& own, const std::shared_ptr<Communicator>& world) {
  PathCounts all;
  for (const std::string& text : gather_texts(*world, to_text(own), "paths")) {
    for (const auto& [path, count] : paths_from(text)) all[path] += count;
  }
  return all;
}

std::vector<Trace> gather_traces(Trace own, const std::shared_ptr<Communicator>& world) {
  const std::vector<std::string> places = gather_texts(*world, own.where, "places of ranks");
  const std::vector<std::string> paths = gather_texts(*world, to_text(own.paths), "paths");
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
    all.back().paths = paths_from(paths[static_cast<size_t>(rank)]);
  }
  return all;
}

}  // namespace caravan
