#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "caravan/registry/traits.h"
#include "caravan/registry/value.h"

namespace caravan {

struct Entry;
struct Family;

/// A chosen entry of a family, and the values of the keys of the family. The kinds of keys have checked the values one
/// by one; Entry::check tells whether they fit each other and the run.
class Setting {
 public:
  /// The first entry of `family`, with the initial values.
  explicit Setting(std::string_view family);
  /// The entry of this name. Throws UsageError, naming the nearest valid choice, for an invalid name, key or value, and
  /// for a key that is not used.
  Setting(std::string_view family, std::string_view name,
          const std::vector<std::pair<std::string, RecipeValue>>& values = {});

  // Not inlined: users make structs of settings, and g++ 12 warns that their members are not initialized.
  Setting(const Setting&);
  Setting(Setting&&) noexcept;
  Setting& operator=(const Setting&);
  Setting& operator=(Setting&&) noexcept;
  ~Setting();

  const Family& family() const noexcept { return *family_; }
  const Entry& entry() const noexcept { return *entry_; }
  const std::string& name() const noexcept;
  /// Whether it is the first of its family: the default.
  bool is_first() const;
  /// Whether the entry is the family's choice of doing nothing (Entry::is_none).
  bool is_none() const noexcept;
  /// Whether the entry lists the key.
  bool reads(std::string_view key) const;
  /// Chooses another entry of the family; keeps the values that were set.
  void choose(std::string_view name);

  // `key` is a key of the family, without its section; any other is an InternalError.

  /// Sets the key. Returns what is wrong with `value`, and leaves the key unchanged, or "".
  std::string set(std::string_view key, const RecipeValue& value);
  const RecipeValue& value(std::string_view key) const;
  bool flag(std::string_view key) const { return std::get<bool>(value(key)); }
  int64_t whole(std::string_view key) const { return std::get<int64_t>(value(key)); }
  double real(std::string_view key) const { return std::get<double>(value(key)); }
  const std::string& text(std::string_view key) const { return std::get<std::string>(value(key)); }
  const std::vector<std::string>& texts(std::string_view key) const {
    return std::get<std::vector<std::string>>(value(key));
  }
  const std::vector<StepPoint>& points(std::string_view key) const {
    return std::get<std::vector<StepPoint>>(value(key));
  }

  Traits traits() const;
  bool has(Trait trait) const { return traits().has.contains(trait); }
  /// "data_parallel.technique", or "data_parallel.`key`".
  std::string full_name(std::string_view key = "") const;

  bool operator==(const Setting& other) const;

 private:
  const Family* family_;
  const Entry* entry_;
  std::map<std::string, RecipeValue, std::less<>> values_;  ///< those that were set
};

}  // namespace caravan
