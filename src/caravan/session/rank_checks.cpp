#include "caravan/session/rank_checks.h"

#include <ATen/ops/arange.h>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/comm/calls/same.h"

namespace caravan {

double checksum(const at::Tensor& tensor) {
  const at::Tensor weights = at::arange(1, tensor.numel() + 1, at::kDouble).view(tensor.sizes());
  return tensor.detach().to(at::kDouble).mul(weights).sum().item<double>();
}

void check_same_number(Communicator& comm, double number, const std::string& subject, const std::string& action) {
  const auto found = find_disagreement(comm, {{subject, fmt::format("{}", number)}});
  if (!found) return;
  throw UsageError({"parallelize", subject,
                    fmt::format("differs between ranks: {} and {}", found->first_value, found->other_value), "",
                    action});
}

}  // namespace caravan
