#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "caravan/comm/communicator.h"
#include "caravan/formats/checkpoint/manifest.h"

namespace caravan {

/// Hashes file `name` of `folder`. Throws DataError naming it if the manifest lists another hash.
void verify_file(const std::filesystem::path& folder, const std::string& name, const ManifestFile& listed);

/// Verifies each file once: every rank of `world` calls it and hashes its share. If a file is damaged or cannot be
/// read, all ranks throw the error of the lowest rank that found one. Sends 8 bytes.
void verify_files(const std::filesystem::path& folder, const std::map<std::string, ManifestFile>& files,
                  Communicator& world);

/// The files that `rank` of `num_ranks` hashes: the largest are assigned first, each to the rank with the fewest bytes
/// so far. All ranks compute the same assignment.
std::vector<std::string> files_of_rank(const std::map<std::string, ManifestFile>& files, int rank, int num_ranks);

}  // namespace caravan
