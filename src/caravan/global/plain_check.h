#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "caravan/global/state.h"

namespace caravan {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

/// Throws UsageError on every rank, naming the op and the ranks, if `tensor` differs between ranks. Collective: sends 8
/// bytes to every other rank.
void check_same_plain(const at::Tensor& tensor, const std::string& op, GlobalState& state);

/// The same of several tensors, all at once; names the first that differs.
void check_same_values(const std::vector<NamedTensor>& tensors, const std::string& op, GlobalState& state);

}  // namespace caravan
