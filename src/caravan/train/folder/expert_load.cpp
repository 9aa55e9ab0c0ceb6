#include "caravan/train/folder/expert_load.h"

#include <algorithm>

#include <ATen/ops/tensor.h>

#include "caravan/comm/tensor.h"
#include "caravan/nn/experts/router.h"

namespace caravan {

std::optional<ExpertLoad> take_expert_load(Engine& engine) {
  const std::vector<Router*> routers = routers_of(engine.model());
  if (routers.empty()) return std::nullopt;
  std::vector<double> sums;
  for (Router* router : routers) {
    const RouterLoad load = router->take_load();
    sums.insert(sums.end(), load.copies.begin(), load.copies.end());
    sums.insert(sums.end(), {load.dropped, load.balance});
  }
  at::Tensor all = at::tensor(sums, at::kDouble);
  if (!engine.strategy().counts_loss(engine.mesh())) all.zero_();  // another rank has the same tokens
  all_reduce_async(engine.mesh().world(), all, all, ReduceOp::sum, "load of experts").wait();

  ExpertLoad load;
  double dropped = 0, balance = 0, copies = 0;
  const double* next = all.const_data_ptr<double>();
  for (const Router* router : routers) {
    const double* end = next + router->config().experts;
    std::vector<int64_t>& layer = load.copies.emplace_back();
    std::transform(next, end, std::back_inserter(layer), [](double count) { return static_cast<int64_t>(count); });
    for (; next != end; ++next) copies += *next;
    dropped += *next++;
    balance += *next++ * static_cast<double>(router->config().top_k);
  }
  if (copies == 0) return load;
  load.dropped = dropped / copies;
  load.balance = balance / copies;
  return load;
}

}  // namespace caravan
