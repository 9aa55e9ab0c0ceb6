#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

namespace caravan {

/// The versions of manifest.json: 1 has neither "data" nor "numerics"; up to 2 a piece is an object that names its file
/// and its key, since 3 a list with the number of its file; since 3 "optimizer" may be present.
inline constexpr int kManifestVersion = 3;
inline constexpr int kOldestManifestVersion = 1;

/// The hash of a manifest without its "hash" member.
std::string manifest_hash(const nlohmann::json& root);

}  // namespace caravan
