#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace caravan {

/// CRC-32C (Castagnoli), as used in TensorBoard records.
uint32_t crc32c(std::string_view bytes) noexcept;

/// An event file that TensorBoard reads: records of TensorFlow's format with messages Event, of scalars only. Each
/// write is handed to the system when the call returns.
class EventFile {
 public:
  /// Creates `folder` and the file "events.out.tfevents.<seconds>.<host>" in it; removes existing event files, because
  /// this one contains the whole run. Throws ResourceError.
  EventFile(const std::filesystem::path& folder, double seconds, const std::string& host);

  using Scalars = std::vector<std::pair<std::string, double>>;  ///< tags, such as "train/loss", and values
  void write(int64_t step, double seconds, const Scalars& scalars);
  const std::filesystem::path& path() const noexcept { return path_; }

 private:
  void write_record(const std::string& message);

  std::filesystem::path path_;
  std::ofstream file_;
};

}  // namespace caravan
