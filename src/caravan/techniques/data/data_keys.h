#pragma once

#include <string>

#include "caravan/registry/registry.h"

namespace caravan {

// Keys of the section data_parallel that several techniques read.

SettingKey bucket_bytes_key();
SettingKey units_key();
SettingKey prefetch_key();
SettingKey share_key();
SettingKey accumulate_key();
SettingKey reshard_key();

/// The traits of techniques that shard parameters, and whose ranks step together.
std::set<Trait> traits_of_shards();

}  // namespace caravan
