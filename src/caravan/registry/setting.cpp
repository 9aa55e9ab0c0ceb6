#include "caravan/registry/setting.h"

#include <algorithm>

#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/registry/registry.h"

namespace caravan {
namespace {

const SettingKey& key_of(const Family& family, std::string_view name) {
  const auto& keys = keys_of(family.name);
  const auto found = std::ranges::find_if(keys, [&](const SettingKey& key) { return key.name == name; });
  if (found != keys.end()) return *found;
  throw InternalError({"registry", std::string(name), "is not a key of " + std::string(family.name), "",
                       "list it in an entry of the family"});
}

}  // namespace

Setting::Setting(std::string_view family) : family_(&family_of(family)), entry_(&first_of(family)) {}

Setting::Setting(std::string_view family, std::string_view name,
                 const std::vector<std::pair<std::string, RecipeValue>>& values)
    : Setting(family) {
  choose(name);
  std::vector<std::string> known;
  for (const SettingKey& each : keys_of(family)) known.push_back(each.name);
  const auto refuse = [&](std::string_view key, const std::string& fact, const std::string& action) {
    throw UsageError({std::string(family_->section), full_name(key), fact, "", action});
  };
  for (const auto& [key, value] : values) {
    if (std::ranges::find(known, key) == known.end()) {
      refuse(key, "is not a key of " + entry_->name, "the nearest is " + nearest(key, known));
    }
    if (const std::string wrong = set(key, value); !wrong.empty()) refuse(key, wrong, "change it");
  }
  for (const auto& [key, value] : values) {
    if (const std::string why = why_idle(*this, key); !why.empty()) refuse(key, why, "leave it out");
  }
}

Setting::Setting(const Setting&) = default;
Setting::Setting(Setting&&) noexcept = default;
Setting& Setting::operator=(const Setting&) = default;
Setting& Setting::operator=(Setting&&) noexcept = default;
Setting::~Setting() = default;

const std::string& Setting::name() const noexcept { return entry_->name; }

void Setting::choose(std::string_view name) {
  const Entry* entry = find_entry(family_->name, name);
  if (entry == nullptr) {
    const std::vector<std::string> names = names_of(family_->name);
    const std::string known = what_to_say_of(family_->name, std::string(name));
    throw UsageError(
        {"strategy", full_name(), known.empty() ? not_one_of(name, names) : known, "", "use one of these names"});
  }
  entry_ = entry;
}

std::string Setting::set(std::string_view key, const RecipeValue& value) {
  RecipeValue taken;
  std::string wrong = key_of(*family_, key).kind.take(value, taken);
  if (wrong.empty()) values_.insert_or_assign(std::string(key), std::move(taken));
  return wrong;
}

const RecipeValue& Setting::value(std::string_view key) const {
  const auto found = values_.find(key);
  if (found != values_.end()) return found->second;
  const auto own = std::ranges::find(entry_->keys, key, &SettingKey::name);
  return own != entry_->keys.end() ? own->initial : key_of(*family_, key).initial;
}

bool Setting::operator==(const Setting& other) const {
  return entry_ == other.entry_ && std::ranges::all_of(keys_of(family_->name), [&](const SettingKey& key) {
           return value(key.name) == other.value(key.name);
         });
}

bool Setting::is_first() const { return entry_ == &first_of(family_->name); }

bool Setting::is_none() const noexcept { return entry_->is_none; }

bool Setting::reads(std::string_view key) const {
  return std::ranges::any_of(entry_->keys, [&](const SettingKey& each) { return each.name == key; });
}

Traits Setting::traits() const { return entry_->traits(*this); }

std::string Setting::full_name(std::string_view key) const {
  return std::string(family_->section) + "." + std::string(key.empty() ? family_->key : key);
}

}  // namespace caravan
