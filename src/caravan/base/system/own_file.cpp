#include "caravan/base/system/own_file.h"

#include <system_error>

namespace caravan {

std::filesystem::path own_file(const std::string& name) {
  std::error_code error;
  std::filesystem::path folder = std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  for (int up = 0; up < 4 && !folder.empty(); ++up, folder = folder.parent_path()) {
    std::filesystem::path path = folder / "lib" / "caravan" / name;
    if (std::filesystem::exists(path, error)) return path;
  }
  return {};
}

}  // namespace caravan
