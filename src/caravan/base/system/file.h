#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace caravan {

/// Throws for a system call that failed on `path` with `error` (an errno): DataError if the file is missing or not a
/// file, else ResourceError. `op` is the first part of the message; `fact` says what failed: "cannot be opened".
[[noreturn]] void throw_file_error(std::string_view op, const std::filesystem::path& path, std::string_view fact,
                                   int error);

/// Creates `folder` and its missing parents. Throws as throw_file_error, with `fact`.
void create_folders(std::string_view op, const std::filesystem::path& folder,
                    std::string_view fact = "cannot be created");

/// A whole regular file, mapped read-only. The file must not shrink while it is mapped.
class MappedFile {
 public:
  MappedFile() = default;
  /// Throws DataError if `path` is missing or not a regular file, ResourceError if it cannot be opened or mapped.
  MappedFile(const std::filesystem::path& path, std::string_view op);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::span<const std::byte> bytes() const noexcept { return {static_cast<const std::byte*>(data_), size_}; }
  std::string_view text() const noexcept { return {static_cast<const char*>(data_), size_}; }

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
};

/// A new file, truncated if it exists, and removed unless `finish` is called: written under a temporary name, it
/// appears complete, by `rename_durably`, or not at all. Every error is a ResourceError naming the path.
class OutputFile {
 public:
  OutputFile(std::filesystem::path path, std::string_view op);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  const std::filesystem::path& path() const noexcept { return path_; }
  /// Allocates the space of a file of `bytes`, so that a full disk is found before the work. A no-op if the file system
  /// does not support it.
  void reserve(int64_t bytes);
  /// Writes after the bytes that this function wrote before.
  void append(std::span<const std::byte> bytes);
  void append(std::string_view text) { append(std::as_bytes(std::span(text))); }
  void write_at(int64_t offset, std::span<const std::byte> bytes);
  /// Flushes to disk and closes. Nothing may be written after it.
  void finish();
  /// `finish`, then `rename_durably` to `to`; if that fails, the file is removed.
  void finish_as(const std::filesystem::path& to);

 private:
  std::filesystem::path path_;
  std::string op_;
  int descriptor_ = -1;
  int64_t end_ = 0;
};

/// Flushes the names in `folder` to disk. Throws ResourceError.
void sync_folder(const std::filesystem::path& folder, std::string_view op);

/// Renames within one folder, replacing `to`, and fsyncs the folder. Throws ResourceError.
void rename_durably(const std::filesystem::path& from, const std::filesystem::path& to, std::string_view op);

/// A temporary name in the folder of `path` that no other writer uses, on any host: `<path>.<random>.tmp`.
std::filesystem::path name_aside(const std::filesystem::path& path);

/// Replaces the content of `path` by `text`, through a temporary file that is flushed to disk and renamed. If several
/// ranks do so at once, the last one wins. Throws ResourceError.
void write_file_durably(const std::filesystem::path& path, std::string_view text, std::string_view op);

}  // namespace caravan
