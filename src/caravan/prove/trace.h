#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "caravan/base/trace/path_log.h"
#include "caravan/comm/communicator.h"
#include "caravan/prove/prove.h"

namespace caravan {

/// The numbers of one step: whole tensors in fp64, of all parameters in model order.
struct StepTrace {
  double loss = 0;
  double grad_norm = 0;
  std::vector<at::Tensor> before;     ///< parameters
  std::vector<at::Tensor> gradients;  ///< not clipped; undefined for a frozen parameter
  std::vector<at::Tensor> after;      ///< parameters
};

/// What one rank recorded of a case.
struct Trace {
  std::string where{};
  std::vector<std::string> names{};  ///< of the parameters
  std::vector<StepTrace> steps{};
  int64_t slice_rows = 0;        ///< of a micro-batch of this rank
  PathCounts paths{};            ///< what its steps executed
  bool splits_products = false;  ///< its arithmetic differs from that of one process on the same rows
  /// For one process: the gradients of the first step for each slice of the batch alone.
  std::vector<std::vector<at::Tensor>> summands{};
  /// For one process in 16 bits, of a case that splits products: the same steps in the dtype of the parameters.
  std::vector<StepTrace> exact{};
};

/// Whether layers compute in bf16 or fp16: then every step starts from new values (see prove).
bool rounds_to_16_bits(const ProveCase& what);

/// Runs the case on this rank. Every rank of `world` calls it.
Trace trace_on_ranks(const ProveCase& what, const std::shared_ptr<Communicator>& world);

/// The sums over the ranks. Every rank of `world` calls it.
PathCounts gather_paths(const PathCounts& own, const std::shared_ptr<Communicator>& world);

/// The traces of all ranks on rank 0, in rank order; nothing on the others. Every rank of `world` calls it.
std::vector<Trace> gather_traces(Trace own, const std::shared_ptr<Communicator>& world);

/// Runs the case on one rank, with the communicator `world`, without its arrangement. `arranged`: the trace of a rank.
Trace trace_on_one(const ProveCase& what, const std::shared_ptr<Communicator>& world, const Trace& arranged);

}  // namespace caravan
