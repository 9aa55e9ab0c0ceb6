#include "caravan/memory/disk/folder.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>
#include <sstream>
#include <string_view>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/system/fd.h"
#include "caravan/base/text.h"

namespace caravan::disk {
namespace {

struct KnownFileSystem {
  uint32_t magic;  // linux/magic.h, and the sources of those that are not in it
  const char* name;
};
constexpr std::array kKnown{
    KnownFileSystem{0x6969, "nfs"},         KnownFileSystem{0xFF534D42, "cifs"},  KnownFileSystem{0xFE534D42, "smb3"},
    KnownFileSystem{0x517B, "smbfs"},       KnownFileSystem{0x01021997, "9p"},    KnownFileSystem{0x0BD00BD0, "lustre"},
    KnownFileSystem{0x00C36400, "ceph"},    KnownFileSystem{0x47504653, "gpfs"},  KnownFileSystem{0x19830326, "beegfs"},
    KnownFileSystem{0x5346414F, "afs"},     KnownFileSystem{0x6B414653, "afs"},   KnownFileSystem{0x73757245, "coda"},
    KnownFileSystem{0x7461636F, "ocfs2"},   KnownFileSystem{0x01161970, "gfs2"},  KnownFileSystem{0x20030528, "pvfs2"},
    KnownFileSystem{0x01021994, "tmpfs"},   KnownFileSystem{0x858458F6, "ramfs"}, KnownFileSystem{0xEF53, "ext4"},
    KnownFileSystem{0x58465342, "xfs"},     KnownFileSystem{0x9123683E, "btrfs"}, KnownFileSystem{0x2FC12FC1, "zfs"},
    KnownFileSystem{0x794C7630, "overlay"}, KnownFileSystem{0x65735546, "fuse"}};

/// The type of the mount with this device, from /proc/self/mountinfo; "" if it is not there. It tells apart what
/// statfs calls FUSE.
std::string type_of_mount(uint64_t device) {
  const std::string wanted = fmt::format("{}:{}", gnu_dev_major(device), gnu_dev_minor(device));
  std::ifstream mounts("/proc/self/mountinfo");
  for (std::string line; std::getline(mounts, line);) {
    std::istringstream words(line);
    std::string id;
    std::string parent;
    std::string found;
    words >> id >> parent >> found;
    const size_t dash = line.find(" - ");
    if (found != wanted || dash == std::string::npos) continue;
    return line.substr(dash + 3, line.find(' ', dash + 3) - dash - 3);
  }
  return "";
}

[[noreturn]] void refuse_folder(const std::filesystem::path& folder, const std::string& fact,
                                const std::string& action) {
  throw UsageError({.op = "disk", .subject = folder.string(), .fact = fact, .action = action});
}

[[noreturn]] void fail_on_folder(const std::filesystem::path& folder, const std::string& what, int error) {
  const bool is_forbidden = error == EACCES || error == EPERM || error == EROFS;
  throw ResourceError({.op = "disk",
                       .subject = folder.string(),
                       .fact = fmt::format("{}: {}", what, system_error(error)),
                       .action = is_forbidden ? "choose a folder that may be written, or change its permissions"
                                              : "choose another folder"});
}

}  // namespace

bool is_network_type(const std::string& type) {
  constexpr std::array<std::string_view, 20> kNetwork{
      "nfs", "nfs4", "cifs",  "smb3", "smbfs",     "9p",    "lustre",   "ceph",         "gpfs",   "beegfs",
      "afs", "coda", "pvfs2", "gfs2", "glusterfs", "ocfs2", "orangefs", "beegfs_nodev", "wekafs", "davfs"};
  if (std::ranges::find(kNetwork, type) != kNetwork.end()) return true;
  // sshfs, s3fs, rclone, gcsfuse and their like. The overlay of a container without root is on a local disk.
  return type.starts_with("fuse.") && type != "fuse.fuse-overlayfs";
}

FileSystem file_system_of(const std::filesystem::path& folder) {
  struct stat status {};
  struct statfs system {};
  if (::stat(folder.c_str(), &status) != 0 || ::statfs(folder.c_str(), &system) != 0) {
    fail_on_folder(folder, "cannot be examined", errno);
  }
  const auto magic = static_cast<uint32_t>(system.f_type);
  const auto* const known = std::ranges::find(kKnown, magic, &KnownFileSystem::magic);
  FileSystem result{.type = known == kKnown.end() ? fmt::format("{:#x}", magic) : known->name};
  if (known == kKnown.end() || result.type == "fuse") {
    if (const std::string named = type_of_mount(status.st_dev); !named.empty()) result.type = named;
  }
  result.is_network = is_network_type(result.type);
  result.is_memory = result.type == "tmpfs" || result.type == "ramfs";
  result.device = status.st_dev;
  return result;
}

std::filesystem::path prepare_folder(const std::filesystem::path& folder) {
  if (folder.empty()) refuse_folder(folder, "is an empty name", "name a folder on a local disk");
  std::filesystem::path path = std::filesystem::absolute(folder).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();  // "a/"
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (std::filesystem::exists(status) && !std::filesystem::is_directory(status)) {
    refuse_folder(path, "is not a folder", "name a folder on a local disk");
  }
  const bool is_there = std::filesystem::exists(status);
  if (!is_there && !std::filesystem::is_directory(path.parent_path(), error)) {
    refuse_folder(path, fmt::format("cannot be made: {} is not a folder", path.parent_path().string()),
                  "correct the path, or make that folder");
  }
  if (const FileSystem system = file_system_of(is_there ? path : path.parent_path()); system.is_network) {
    refuse_folder(path, fmt::format("is on a network file system ({})", system.type),
                  "name a folder on a disk of this host: `df -T` lists them");
  }
  if (!is_there && ::mkdir(path.c_str(), 0777) != 0 && errno != EEXIST) fail_on_folder(path, "cannot be made", errno);
  if (::access(path.c_str(), W_OK | X_OK) != 0) fail_on_folder(path, "cannot be written", errno);
  return path;
}

int64_t free_bytes(const std::filesystem::path& folder) {
  struct statvfs system {};
  if (::statvfs(folder.c_str(), &system) != 0) fail_on_folder(folder, "cannot be examined", errno);
  return static_cast<int64_t>(system.f_bavail) * static_cast<int64_t>(system.f_frsize);
}

void need_free_bytes(const std::filesystem::path& folder, int64_t needed) {
  const int64_t free = free_bytes(folder);
  if (free >= needed) return;
  throw ResourceError({.op = "disk",
                       .subject = folder.string(),
                       .fact = fmt::format("{} ({} bytes) are needed there, and {} ({} bytes) are free",
                                           format_bytes(needed), needed, format_bytes(free), free),
                       .action = "free some space, or add folders on other disks"});
}

}  // namespace caravan::disk
