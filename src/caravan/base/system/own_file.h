#pragma once

#include <filesystem>
#include <string>

namespace caravan {

/// lib/caravan/NAME in the folder of the running program or one of its parents, in a build or an installation; "" if
/// there is none. For what is loaded or started by name: libcaravan_tables.so, caravan-template.
std::filesystem::path own_file(const std::string& name);

}  // namespace caravan
