#pragma once

#include <filesystem>
#include <string>

#include "caravan/mesh/mesh.h"

namespace caravan::app {

/// The mesh of a command that runs on one rank.
Mesh mesh_of_one();

/// `source`, or the newest run if it is empty. Throws UsageError if there is none; `command` names the caller.
std::filesystem::path source_or_newest(const std::string& source, const char* command);

}  // namespace caravan::app
