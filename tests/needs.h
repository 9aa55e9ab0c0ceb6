#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "caravan/registry/registry.h"

namespace caravan::testing {

/// Skips the case that runs, with a reason that names the entry, unless the registry has all of these: needs({"zero3",
/// "ring"}). Entries are named as in recipes, or by their line in registry/entries.def ("no_hook"). May be called in
/// any function that a case calls, on any rank, and leaves the case at once; but not inside the braces of an aggregate,
/// whose members g++ 12 then destroys twice. Tables of cases are created before any case runs: their rows end with a
/// RowNeeds.
void needs(std::initializer_list<std::string_view> entries);

/// The same for every case of this program; called by main().
void need_in_every_case(std::vector<std::string> entries);

/// As needs(), for the entry of one family, and for all entries chosen by settings of recipes ("mesh.ep=2",
/// "data_parallel.technique=zero3"), or by the lines of a TOML text.
void needs_entry(std::string_view family, std::string_view name);
void needs_chosen(const std::vector<std::string>& set);
void needs_chosen_in(const std::string& toml);

/// A setting of that entry; while tables are created, the default instead of an entry that the registry lacks.
Setting setting_of(std::string_view family, const std::string& name,
                   const std::vector<std::pair<std::string, RecipeValue>>& values = {});

/// The last member of a row: the missing entries that the previous members asked for.
class RowNeeds {
 public:
  RowNeeds();
  /// Called by the case of this row.
  void check() const;

 private:
  std::string missing_;
};

}  // namespace caravan::testing
