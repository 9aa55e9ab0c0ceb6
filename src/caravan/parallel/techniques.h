#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace caravan {

/// The names of the data-parallel techniques, the default first: the choices of data_parallel.technique in a recipe,
/// known without libtorch. make_strategy knows what each is.
const std::vector<std::string>& data_parallel_techniques();

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

  /// What rests in shards is gathered: units, prefetch and share have a meaning.
  bool is_sharded() const { return technique != "ddp"; }
  /// Gradients rest in shards too: accumulate has a meaning.
  bool shards_gradients() const { return is_sharded() && technique != "zero1"; }
  /// Parameters are freed between uses, where they do not lie in shared memory: reshard_after_forward has a meaning.
  bool frees_parameters() const { return technique == "zero3" || technique == "hsdp"; }
  /// Shards are cut inside groups of ranks: shard has a meaning.
  bool has_groups() const { return technique == "hsdp"; }

  /// What is wrong with `shard` on an axis of `dp` ranks; "" if nothing. And what to use instead.
  std::string wrong_with_shard(int64_t dp) const;
  std::string instead_of_shard(int64_t dp) const;
};

/// The names of the techniques of which `holds` is true: {"zero3", "hsdp"}.
std::vector<std::string> techniques_where(bool (DataParallelChoice::*holds)() const);

}  // namespace caravan
