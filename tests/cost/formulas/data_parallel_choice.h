#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "caravan/registry/setting.h"

namespace caravan {

/// The inputs of the formulas in state.h: the values of the section data_parallel, and how each technique lays out
/// parameters, gradients and optimizer state.
struct DataParallelChoice {
  DataParallelChoice() = default;
  DataParallelChoice(const Setting& technique, const Setting& hook);

  std::string technique = "ddp";
  int64_t shard = 0;
  bool reshard_after_forward = true;
  int64_t prefetch = 1;
  std::string accumulate = "sharded";
  std::string share = "auto";
  std::string hook = "none";
  int64_t hook_rank = 4;
  double hook_fraction = 0.01;
  int64_t servers = 0;
  std::string mode = "sync";

  bool is_sharded() const { return technique != "ddp"; }
  bool shards_gradients() const { return is_sharded() && technique != "zero1"; }
  bool is_gathered() const { return is_sharded() && !is_asynchronous(); }
  bool accumulates() const { return shards_gradients() && !is_asynchronous(); }
  bool may_share() const { return is_gathered() && !is_replicated(); }
  bool has_servers() const { return technique == "param_server"; }
  bool is_asynchronous() const { return has_servers() && mode != "sync"; }
  bool is_replicated() const { return technique == "replicas"; }
  /// Whether some ranks may hold no shard.
  bool has_holders() const { return has_servers() || is_replicated(); }
  /// The number of ranks that hold shards, among the `ranks` that gather them.
  int64_t holders(int64_t ranks) const {
    return is_replicated() ? 1 : servers == 0 || !has_servers() ? ranks : servers;
  }
  bool frees_parameters() const { return technique == "zero3" || technique == "hsdp"; }
  bool has_groups() const { return technique == "hsdp"; }
  /// Whether the hook keeps a residual for the next step, 4 bytes a parameter.
  bool has_residual() const { return hook == "powersgd" || hook == "topk"; }
};

}  // namespace caravan
