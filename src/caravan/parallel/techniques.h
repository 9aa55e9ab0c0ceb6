#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "caravan/parallel/precision_choice.h"

namespace caravan {

/// The names of the data-parallel techniques, the default first: the choices of data_parallel.technique in a recipe,
/// known without libtorch. make_strategy knows what each is.
const std::vector<std::string>& data_parallel_techniques();
/// The choices of data_parallel.hook: how gradients are summed with fewer bytes, the default first.
const std::vector<std::string>& communication_hooks();

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

  /// What rests in shards is gathered: units, prefetch and share have a meaning.
  bool is_sharded() const { return technique != "ddp"; }
  /// Gradients rest in shards too: accumulate has a meaning.
  bool shards_gradients() const { return is_sharded() && technique != "zero1"; }
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
};

/// What is wrong with the hook beside that technique and precision; "" if nothing.
std::string wrong_with_hook(const DataParallelChoice& choice, const PrecisionChoice& precision);
/// The dtype that gradients are reduced in: of the hook, or of `precision`.
const std::string& reduced_in(const DataParallelChoice& choice, const PrecisionChoice& precision);

/// The names of the techniques of which `holds` is true: {"zero3", "hsdp"}.
std::vector<std::string> techniques_where(bool (DataParallelChoice::*holds)() const);

}  // namespace caravan
