#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "caravan/parallel/precision_choice.h"

namespace caravan {

/// The names of the data-parallel techniques, the default first: the choices of data_parallel.technique in a recipe,
/// known without libtorch. make_strategy knows what each is.
const std::vector<std::string>& data_parallel_techniques();
/// The choices of data_parallel.hook: how gradients are summed with fewer numbers, the default first.
const std::vector<std::string>& communication_hooks();
/// Why `name` is none of them, and what to use; "" if it is one.
std::string wrong_with_hook_name(const std::string& name);

/// The section data_parallel of a recipe.
struct DataParallelChoice {
  std::string technique = data_parallel_techniques().front();
  int64_t bucket_bytes = int64_t{25} << 20;  ///< of gradients that are all-reduced
  std::vector<std::string> units{};          ///< modules inside blocks that are gathered on their own, by pattern
  int64_t shard = 0;                         ///< hsdp: ranks that share one set of shards
  bool reshard_after_forward = true;         ///< zero3, hsdp
  int64_t prefetch = 1;
  std::string accumulate = "sharded";  ///< zero2, zero3, hsdp: or "full"
  std::string share = "auto";          ///< "auto", "on", "off"
  std::string hook = communication_hooks().front();
  int64_t hook_rank = 4;        ///< powersgd: columns of a factor
  double hook_fraction = 0.01;  ///< topk: of the gradients that are sent
  int64_t servers = 0;          ///< param_server: the first so many ranks hold the shards; 0: all
  std::string mode = "sync";    ///< param_server: or "async", "bounded"
  int64_t staleness = 1;        ///< bounded: steps that a worker may be ahead of the slowest
  int64_t drain = 50;           ///< async, bounded: steps between drains

  /// What rests in shards is gathered: units have a meaning.
  bool is_sharded() const { return technique != "ddp"; }
  /// Gradients rest in shards too.
  bool shards_gradients() const { return is_sharded() && technique != "zero1"; }
  /// All ranks gather and reduce together: prefetch has a meaning, and if gradients rest in shards, accumulate.
  bool is_gathered() const { return is_sharded() && !is_asynchronous(); }
  bool accumulates() const { return shards_gradients() && !is_asynchronous(); }
  /// What is gathered may lie in memory that the ranks share: share has a meaning.
  bool may_share() const { return is_gathered() && !is_replicated(); }
  /// The first ranks are servers: servers and mode have a meaning.
  bool has_servers() const { return technique == "param_server"; }
  /// Workers do not wait for each other: drain has a meaning, with a bound staleness too.
  bool is_asynchronous() const { return has_servers() && mode != "sync"; }
  bool is_bounded() const { return has_servers() && mode == "bounded"; }
  /// One process, the first rank its controller: it has the batch, and gives each replica its rows.
  bool is_replicated() const { return technique == "replicas"; }
  /// Some ranks may hold no shard.
  bool has_holders() const { return has_servers() || is_replicated(); }
  /// Ranks that hold shards, of the `ranks` that gather them.
  int64_t holders(int64_t ranks) const {
    return is_replicated() ? 1 : servers == 0 || !has_servers() ? ranks : servers;
  }
  /// Parameters are freed between uses, where they do not lie in shared memory: reshard_after_forward has a meaning.
  bool frees_parameters() const { return technique == "zero3" || technique == "hsdp"; }
  /// Shards are cut inside groups of ranks: shard has a meaning.
  bool has_groups() const { return technique == "hsdp"; }
  /// Gradients are all-reduced: a hook that keeps what it leaves out has a meaning.
  bool all_reduces() const { return technique == "ddp" || has_groups(); }
  /// The hook keeps what it leaves out for the next step, 4 bytes a parameter.
  bool has_residual() const { return hook == "powersgd" || hook == "topk"; }

  /// What is wrong with `shard` on an axis of `dp` ranks; "" if nothing. And what to use instead.
  std::string wrong_with_shard(int64_t dp) const;
  std::string instead_of_shard(int64_t dp) const;
  /// What is wrong with `servers` on an axis of `dp` ranks; "" if nothing. Use at most `dp`.
  std::string wrong_with_servers(int64_t dp) const;
  /// What is wrong with the back-end of this name; "" if nothing.
  std::string wrong_with_backend(const std::string& backend) const;
};

/// The ways of sharding parameters, gradients and optimizer state over a data axis, with what they do when: "zero3,
/// gathered once, gradients each micro-batch". Other settings as in `like`.
std::vector<std::pair<std::string, DataParallelChoice>> sharding_choices(const DataParallelChoice& like);

/// What is wrong with the hook beside that technique and precision; "" if nothing.
std::string wrong_with_hook(const DataParallelChoice& choice, const PrecisionChoice& precision);
/// What is wrong with the precision beside that technique; "" if nothing. Use fp32 or bf16 to compute in, and fp32 for
/// the rest.
std::string wrong_with_precision(const DataParallelChoice& choice, const PrecisionChoice& precision);
/// The choices of `mode`, the default first.
const std::vector<std::string>& server_modes();

/// The names of the techniques of which `holds` is true: {"zero3", "hsdp"}.
std::vector<std::string> techniques_where(bool (DataParallelChoice::*holds)() const);

}  // namespace caravan
