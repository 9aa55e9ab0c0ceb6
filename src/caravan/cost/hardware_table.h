#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <toml++/toml.h>

#include "caravan/cost/quantity.h"

namespace caravan {

// What a device has of which a file says nothing.
inline constexpr double kReachedShare = 0.8;  // of the peak
inline constexpr int64_t kReservedBytes = int64_t{1} << 30;
inline constexpr double kLaunchSeconds = 5e-6;
inline constexpr double kHostRate = 25e9;  // PCIe 4 with 16 lanes
inline constexpr double kLinkLatency = 5e-6;
inline constexpr double kTimeError = 0.3;  // as of presets without any measurement

inline constexpr int64_t kMostDevices = INT32_MAX;  // ranks are ints

/// A table of a file that describes hardware. Every function throws DataError naming the file, the line and the key.
class HardwareTable {
 public:
  enum class Zero : uint8_t { refused, allowed };

  /// Refuses a node that is no table, and keys that are not in `keys`; without any, all are known.
  HardwareTable(const toml::node& node, std::string name, std::string file, const std::vector<std::string>& keys = {});

  const std::string& name() const noexcept { return name_; }
  const std::string& file() const noexcept { return file_; }
  const toml::node& node() const noexcept { return node_; }

  /// Null if it is missing.
  const toml::node* find(const std::string& key) const;
  std::optional<std::string> text(const std::string& key) const;

  // The value of a key, or `otherwise` if it is missing; required without one.

  double quantity(const std::string& key, Quantity quantity, std::optional<double> otherwise,
                  Zero zero = Zero::refused) const;
  int64_t bytes(const std::string& key, std::optional<int64_t> otherwise, Zero zero = Zero::refused) const;
  /// 1 or more.
  int64_t count(const std::string& key, std::optional<int64_t> otherwise) const;
  /// A number without a unit, in [least, most].
  double number(const std::string& key, double otherwise, double least, double most) const;
  bool flag(const std::string& key, bool otherwise) const;
  /// The tables of a list, such as [[host]]; none if it is missing.
  std::vector<HardwareTable> list(const std::string& key, const std::vector<std::string>& keys) const;

  [[noreturn]] void refuse(const std::string& key, const std::string& fact, const std::string& action) const;
  [[noreturn]] void refuse_at(const toml::node& node, const std::string& subject, const std::string& fact,
                              const std::string& action) const;

 private:
  std::string subject(const std::string& key) const;

  const toml::node& node_;
  std::string name_;  ///< "" for the whole file
  std::string file_;
};

/// The entries of a table in the order of the file.
std::vector<std::pair<std::string, const toml::node*>> in_order(const toml::table& table);

}  // namespace caravan
