#include "caravan/engine/make_tiers.h"

#include <atomic>
#include <cstdlib>

#include <fmt/format.h>

namespace caravan {
namespace {

/// For tests: a limit of the link between host and device, which are the same memory here.
double link_limit() {
  const char* limit = std::getenv("CARAVAN_LINK_BYTES_PER_SECOND");
  return limit == nullptr ? 0 : std::strtod(limit, nullptr);
}

/// For tests: in a step, host memory may be touched by copies and the optimizer only.
bool protects_host() {
  const char* protects = std::getenv("CARAVAN_PROTECT_HOST");
  return protects != nullptr && *protects == '1';
}

/// Bytes that the state of this rank takes on disk, with two moments.
int64_t disk_bytes(const Strategy& strategy, const FlatLayout& layout, at::ScalarType dtype) {
  const auto size = [&](at::ScalarType type) {
    return static_cast<int64_t>(c10::elementSize(type == at::kFloat ? dtype : type));
  };
  const bool has_copies = strategy.parameters_tier != strategy.values_tier() || strategy.compute_dtype != at::kFloat;
  int64_t bytes = 0;
  for (const Bucket& bucket : layout.buckets()) {
    const auto add = [&](Tier tier, int64_t element_bytes) {
      if (tier == Tier::disk) bytes += DiskStore::padded(bucket.sharded_count * element_bytes);
    };
    add(strategy.values_tier(), size(dtype));
    if (has_copies) add(strategy.parameters_tier, size(strategy.compute_dtype));
    if (!bucket.is_trained) continue;
    add(strategy.gradients_tier, size(strategy.gradient_dtype));
    add(strategy.optimizer_tier, 2 * size(dtype));
  }
  return bytes;
}

}  // namespace

std::shared_ptr<Tiers> make_tiers(const Strategy& strategy, const FlatLayout& layout, at::ScalarType dtype,
                                  at::Device device) {
  static std::atomic<int> next{0};  // ranks may be threads of one process
  return std::make_shared<Tiers>(Tiers::Options{.disk_dirs = strategy.disk_dirs,
                                                .owner = fmt::format("rank_{}", next++),
                                                .expected_disk_bytes = disk_bytes(strategy, layout, dtype),
                                                .link_bytes_per_second = link_limit(),
                                                .is_meta = device.is_meta(),
                                                .protects_host = protects_host()});
}

}  // namespace caravan
