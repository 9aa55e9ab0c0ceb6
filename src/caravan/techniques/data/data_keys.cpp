#include "caravan/techniques/data/data_keys.h"

#include "caravan/engine/bucket_bytes.h"

namespace caravan {

SettingKey bucket_bytes_key() {
  return {{"bucket_bytes", OnResume::free}, "bytes of gradients per all-reduce", kBucketBytes, whole_number({1})};
}

SettingKey units_key() {
  return {{"units", OnResume::free},
          "modules inside blocks that are gathered separately, such as \"blocks.*.mlp\"",
          std::vector<std::string>(),
          list_of_texts()};
}

SettingKey prefetch_key() {
  return {{"prefetch", OnResume::free}, "number of units gathered ahead", int64_t{1}, whole_number({0, 2})};
}

SettingKey share_key() {
  return {{"share", OnResume::free},
          "store parameters once, in memory that ranks share: \"auto\" if possible, \"on\", \"off\"",
          "auto",
          one_of({"auto", "on", "off"})};
}

SettingKey accumulate_key() {
  return {{"accumulate", OnResume::free},
          "gradients of micro-batches accumulate \"sharded\", or \"full\" with one reduction a step",
          "sharded",
          one_of({"sharded", "full"})};
}

SettingKey reshard_key() {
  return {{"reshard_after_forward", OnResume::free},
          "free parameters after forward, gather them again for backward; false: once a step",
          true,
          true_or_false()};
}

std::set<Trait> traits_of_shards() {
  std::set<Trait> traits = usual_traits();
  traits.erase(Trait::whole_weights);
  traits.erase(Trait::all_reduces);
  return traits;
}

}  // namespace caravan
