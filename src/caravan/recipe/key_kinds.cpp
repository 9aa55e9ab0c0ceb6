#include "caravan/recipe/key_kinds.h"

#include <algorithm>

#include <fmt/format.h>

#include "caravan/base/text.h"

namespace caravan {
namespace {

template <typename T>
T read(const Field<T>& field, const Recipe& recipe) {
  return field(const_cast<Recipe&>(recipe));  // NOLINT: only read
}

/// Takes a name, or a list if an entry of the family is chosen by one. Returns what is wrong with it, or "".
std::string choose(Setting& setting, const RecipeValue& value) {
  const std::string_view family = setting.family().name;
  const std::vector<std::string> names = names_of(family);
  const Entry* by_list = entry_by_list(family);
  if (by_list != nullptr && std::holds_alternative<std::vector<std::string>>(value)) {
    std::string wrong = setting.set(by_list->keys.front().name, value);
    if (wrong.empty()) setting.choose(by_list->name);
    return wrong;
  }
  const auto* given = std::get_if<std::string>(&value);
  if (given == nullptr) return is_not(value, "a string" + (by_list == nullptr ? "" : " or " + by_list->by_list));
  if (std::ranges::find(names, *given) == names.end()) {
    if (by_list != nullptr) {
      return fmt::format("'{}' is not one of {}, nor {}; the nearest is '{}'", *given, join(names), by_list->by_list,
                         nearest(*given, names));
    }
    std::string known = what_to_say_of(family, *given);
    return known.empty() ? not_one_of(*given, names) : known;
  }
  setting.choose(*given);
  return "";
}

template <typename T>
RecipeKey field_key(KeyName name, std::string help, Field<T> field, ValueKind kind) {
  return {std::move(name), std::move(help),
          [field, show = kind.show](const Recipe& recipe) { return show(read(field, recipe)); },
          [field, take = kind.take](Recipe& recipe, const RecipeValue& value) {
            RecipeValue taken;
            std::string wrong = take(value, taken);
            if (wrong.empty()) field(recipe) = std::get<T>(std::move(taken));
            return wrong;
          }};
}

}  // namespace

RecipeKey integer(KeyName name, std::string help, Field<int64_t> field, Range range) {
  return field_key(std::move(name), std::move(help), std::move(field), whole_number(range));
}

RecipeKey real(KeyName name, std::string help, Field<double> field, Range range) {
  return field_key(std::move(name), std::move(help), std::move(field), real_number(range));
}

RecipeKey boolean(KeyName name, std::string help, Field<bool> field) {
  return field_key(std::move(name), std::move(help), std::move(field), true_or_false());
}

RecipeKey text(KeyName name, std::string help, Field<std::string> field) {
  return field_key(std::move(name), std::move(help), std::move(field), any_text());
}

RecipeKey texts(KeyName name, std::string help, Field<std::vector<std::string>> field) {
  return field_key(std::move(name), std::move(help), std::move(field), list_of_texts());
}

RecipeKey integer_or(KeyName name, std::string help, Field<int64_t> field, Range range, std::string word,
                     int64_t value_of_word) {
  return field_key(std::move(name), std::move(help), std::move(field),
                   whole_number_or(range, std::move(word), value_of_word));
}

RecipeKey choice(KeyName name, std::string help, Field<std::string> field, std::vector<std::string> choices) {
  return field_key(std::move(name), std::move(help), std::move(field), one_of(std::move(choices)));
}

RecipeKey only_with(RecipeKey key, std::function<bool(const Recipe&)> condition, std::string reason) {
  key.idle = [condition = std::move(condition), reason = std::move(reason)](const Recipe& recipe) {
    return condition(recipe) ? std::string() : reason;
  };
  return key;
}

std::vector<RecipeKey> family_keys(std::string_view name, const Field<Setting>& setting) {
  const Family& family = family_of(name);
  const Entry* by_list = entry_by_list(name);
  const std::string or_list = by_list == nullptr ? "" : ", or " + by_list->by_list;
  const auto full = [&](std::string_view key) { return std::string(family.section) + "." + std::string(key); };
  std::vector<RecipeKey> keys;
  if (!family.key.empty()) {
    keys.push_back({{full(family.key), family.on_resume},
                    std::string(family.help) + ": " + join(names_of(name)) + or_list,
                    [setting](const Recipe& recipe) -> RecipeValue {
                      const Setting& chosen = read(setting, recipe);
                      if (chosen.entry().by_list.empty()) return chosen.name();
                      return chosen.value(chosen.entry().keys.front().name);
                    },
                    [setting](Recipe& recipe, const RecipeValue& value) { return choose(setting(recipe), value); }});
  }
  for (const SettingKey& key : keys_of(name)) {
    if (by_list != nullptr && key.name == by_list->keys.front().name) continue;
    keys.push_back(
        {{full(key.name), key.on_resume, key.across_ranks},
         key.help,
         [setting, key](const Recipe& recipe) { return key.kind.show(read(setting, recipe).value(key.name)); },
         [setting, key](Recipe& recipe, const RecipeValue& value) { return setting(recipe).set(key.name, value); },
         [setting, key](const Recipe& recipe) { return why_idle(read(setting, recipe), key.name); }});
  }
  return keys;
}

std::vector<RecipeKey> on_axis(std::vector<RecipeKey> keys, const std::string& axis,
                               const std::function<bool(const Recipe&)>& is_used) {
  for (RecipeKey& key : keys) {
    key.idle = [is_used, idle = key.idle, axis](const Recipe& recipe) {
      return is_used(recipe) ? idle(recipe) : "is used with mesh." + axis + " above 1 only";
    };
  }
  return keys;
}

std::vector<RecipeKey> split_keys(std::string_view family, const Field<Split>& split) {
  return on_axis(family_keys(
                     family, [split](Recipe & recipe) -> auto& { return split(recipe).kind; }),
                 std::string(family_of(family).axis),
                 [split](const Recipe& recipe) { return read(split, recipe).is_used(); });
}

}  // namespace caravan
