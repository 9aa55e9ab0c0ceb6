#include "caravan/registry/registry.h"

#include <algorithm>
#include <map>

#include "caravan/base/error.h"
#include "caravan/base/text.h"

namespace caravan {

#define CARAVAN_ENTRY(name) Entry name##_entry();
#include "caravan/registry/entries.def"

namespace {

struct Registered {
  std::vector<Entry> entries;
  std::vector<SettingKey> keys;
};

void add(std::map<std::string, Registered, std::less<>>& all, const char* body, Entry entry) {
  entry.body = body;
  family_of(entry.family);  // throws for an unknown family
  Registered& family = all[entry.family];
  for (const SettingKey& key : entry.keys) {
    const bool is_known =
        std::ranges::any_of(family.keys, [&](const SettingKey& other) { return other.name == key.name; });
    if (!is_known) family.keys.push_back(key);
  }
  family.entries.push_back(std::move(entry));
}

/// By family. Created once, since settings point to the entries.
const std::map<std::string, Registered, std::less<>>& registered() {
  static const auto all = [] {
    std::map<std::string, Registered, std::less<>> made;
#define CARAVAN_ENTRY(name) add(made, #name, name##_entry());
#include "caravan/registry/entries.def"
    return made;
  }();
  return all;
}

const Registered& registered(std::string_view family) {
  static const Registered none;
  const auto found = registered().find(family);
  return found == registered().end() ? none : found->second;
}

/// The key of this name that the entry lists; null if it lists none.
const SettingKey* listed(const Entry& entry, std::string_view key) {
  const auto found = std::ranges::find(entry.keys, key, &SettingKey::name);
  return found == entry.keys.end() ? nullptr : &*found;
}

}  // namespace

std::set<Trait> usual_traits() {
  return {Trait::whole_gradient,    Trait::clips_norm,      Trait::scales_loss,        Trait::rounds_gradients,
          Trait::rounds_reductions, Trait::bounded_lead,    Trait::ties_weights,       Trait::splits_layers,
          Trait::splits_stages,     Trait::runs_processes,  Trait::whole_weights,      Trait::all_reduces,
          Trait::rehearses,         Trait::many_reductions, Trait::threads_may_differ, Trait::offloads,
          Trait::whole_matrices};
}

Traits usual_traits_of(const Setting&) { return {.has = usual_traits()}; }

const std::vector<Family>& families() {
  static const std::vector<Family> all{
      {"data_parallel", "data_parallel", "technique", "dp", "data-parallel technique", OnResume::listed},
      {"hook", "data_parallel", "hook", "", "sum gradients with fewer numbers", OnResume::listed},
      {"tensor_parallel", "tensor_parallel", "kind", "tp", "how layers are split", OnResume::free},
      {"expert_parallel", "expert_parallel", "", "ep", "experts over the ranks of mesh.ep", OnResume::free},
      {"context_parallel", "context_parallel", "kind", "cp", "attention over the ranks of mesh.cp", OnResume::free},
      {"pipeline", "pipeline", "schedule", "pp", "order of the passes", OnResume::listed},
      {"tiling", "tiling", "", "", "layers in tiles of rows", OnResume::free},
      {"recompute", "memory", "recompute", "", "computed again in backward", OnResume::free},
      {"offload", "offload", "", "", "what rests outside of the device", OnResume::free},
      {"chunks", "chunks", "", "", "offloaded parameters in chunks of one size", OnResume::free},
      {"optimizer", "optimizer", "kind", "", "the optimizer", OnResume::history},
      {"learning_rate", "optimizer", "schedule", "", "learning rate schedule", OnResume::listed},
  };
  return all;
}

const Family& family_of(std::string_view name) {
  const auto found = std::ranges::find(families(), name, &Family::name);
  if (found != families().end()) return *found;
  throw InternalError({"registry", std::string(name), "is not a family", "", "add it to registry/registry.cpp"});
}

std::span<const Entry> entries_of(std::string_view family) { return registered(family).entries; }

const Entry& first_of(std::string_view family) {
  // A build without an entry of the family refuses everything that needs one.
  static const Entry absent{.family = "",
                            .name = "none",
                            .summary = "",
                            .traits = usual_traits_of,
                            .check_model =
                                [](const Setting& setting, int64_t ranks, const ModelConfig&, const SplitParts&) {
                                  if (ranks == 1) return std::optional<Misfit>();
                                  return std::optional(Misfit{"mesh." + std::string(setting.family().axis),
                                                              "this build has no technique for it", "use 1"});
                                },
                            .is_none = true};
  const std::span<const Entry> entries = entries_of(family);
  return entries.empty() ? absent : entries.front();
}

const Entry* find_entry(std::string_view family, std::string_view name) {
  const std::span<const Entry> entries = entries_of(family);
  const auto found = std::ranges::find(entries, name, &Entry::name);
  return found == entries.end() ? nullptr : &*found;
}

std::string what_to_say_of(std::string_view family, const std::string& name) {
  for (const Entry& entry : entries_of(family)) {
    const auto found = entry.mistaken.find(name);
    if (found != entry.mistaken.end()) return found->second;
  }
  return "";
}

std::vector<std::string> names_of(std::string_view family) {
  std::vector<std::string> names;
  for (const Entry& entry : entries_of(family)) {
    if (entry.by_list.empty()) names.push_back(entry.name);
  }
  return names;
}

std::vector<std::string> names_with_key(std::string_view family, std::string_view key) {
  std::vector<std::string> names;
  for (const Entry& entry : entries_of(family)) {
    if (listed(entry, key) != nullptr) names.push_back(entry.name);
  }
  return names;
}

const Entry* entry_by_list(std::string_view family) {
  const std::span<const Entry> entries = entries_of(family);
  const auto found = std::ranges::find_if(entries, [](const Entry& entry) { return !entry.by_list.empty(); });
  return found == entries.end() ? nullptr : &*found;
}

const std::vector<SettingKey>& keys_of(std::string_view family) { return registered(family).keys; }

std::string why_idle(const Setting& setting, std::string_view key) {
  if (const SettingKey* own = listed(setting.entry(), key); own != nullptr) return own->idle(setting);
  return "is used with " + setting.full_name() + " = \"" + join(names_with_key(setting.family().name, key), "\", \"") +
         "\" only";
}

}  // namespace caravan
