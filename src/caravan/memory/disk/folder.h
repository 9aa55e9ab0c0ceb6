#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace caravan::disk {

/// What a folder's file system is.
struct FileSystem {
  std::string type;  ///< "ext4"; a number in hexadecimal if its name is not known
  bool is_network = false;
  bool is_memory = false;  ///< tmpfs, ramfs
  uint64_t device = 0;     ///< equal for folders that share their free space
};

/// Of a folder that exists. Throws ResourceError if the system cannot say.
FileSystem file_system_of(const std::filesystem::path& folder);

/// Whether `type`, the name of a file system in /proc/self/mountinfo, is one that keeps its files on other hosts.
bool is_network_type(const std::string& type);

/// Makes `folder` if its parent exists. Returns its absolute path. Throws UsageError for one that is not a folder, has
/// no parent, or is on a network file system; ResourceError if it cannot be written.
std::filesystem::path prepare_folder(const std::filesystem::path& folder);

/// Bytes that this user may still write there.
int64_t free_bytes(const std::filesystem::path& folder);

/// Throws ResourceError if fewer than `needed` bytes are free.
void need_free_bytes(const std::filesystem::path& folder, int64_t needed);

}  // namespace caravan::disk
