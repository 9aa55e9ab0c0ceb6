#pragma once

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "caravan/base/misfit.h"
#include "caravan/mesh/mesh.h"
#include "caravan/nn/config.h"
#include "caravan/registry/key.h"
#include "caravan/registry/setting.h"
#include "caravan/registry/split_parts.h"

namespace caravan {

/// As many ranks as a proof needs of an axis of `ranks`: 2 and 3 are enough, even and odd.
inline int64_t few_ranks(int64_t ranks) { return ranks > 3 ? 2 : ranks; }

/// A group of entries of which a recipe chooses one, by the value of one key.
struct Family {
  std::string_view name;  ///< "hook"
  std::string_view section;
  std::string_view key;   ///< of the choice: "hook" in [data_parallel]; "": there is one entry
  std::string_view axis;  ///< of the mesh, over which the choice works; "": none
  std::string_view help;
  OnResume on_resume;
};

/// What a recipe chooses by name, and all that the rest of the system knows of it: recipe, errors, launcher, `prove`,
/// `inspect` and completions go by these. Known without libtorch; its body is found by the same name.
struct Entry {
  std::string family;
  std::string name;
  std::string summary;             ///< one line
  std::string paper{};             ///< where it comes from; "": common knowledge
  std::vector<SettingKey> keys{};  ///< those of the family's section that it reads
  /// What it can stand beside: nothing, unless it says so. Optimizers, learning-rate schedules and what splits layers
  /// or sequences are not asked.
  std::function<Traits(const Setting&)> traits = [](const Setting&) { return Traits{}; };

  // Of a technique whose axis of the mesh has `ranks` ranks:

  /// Why its values do not fit these ranks: of data parallelism, or, of recomputation, of a pipeline. What it cannot
  /// stand beside, traits say.
  std::function<std::optional<Misfit>(const Setting&, int64_t ranks)> check = [](const Setting&, int64_t) {
    return std::optional<Misfit>();
  };
  /// Of what splits layers or sequences: in how many parts.
  std::function<SplitParts(const Setting&, int64_t ranks)> parts = [](const Setting&, int64_t) { return SplitParts{}; };
  /// And why its values and ranks, also one alone, cannot split that model, which other techniques split in `others`.
  std::function<std::optional<Misfit>(const Setting&, int64_t ranks, const ModelConfig& model,
                                      const SplitParts& others)>
      check_model =
          [](const Setting&, int64_t, const ModelConfig&, const SplitParts&) { return std::optional<Misfit>(); };
  /// The axes that its axis of `ranks` ranks is factored into; none: it stays whole.
  std::function<std::vector<AxisSize>(const Setting&, int64_t ranks)> factors = [](const Setting&, int64_t) {
    return std::vector<AxisSize>();
  };
  /// Chosen by a list of texts in place of a name, which is the value of its first key: what to say of such lists, "a
  /// list of modules such as [\"blocks.*\"]". "": chosen by its name.
  std::string by_list{};
  /// What the user should know about it beside that model; "": nothing.
  std::function<std::string(const Setting&, const ModelConfig& model)> note = [](const Setting&, const ModelConfig&) {
    return std::string();
  };
  /// The choice of doing nothing: "none".
  bool is_none = false;
  /// Of recomputation: stages of a pipeline keep their inputs alone, and their second forward is a pass of the
  /// schedule.
  bool repeats_stages = false;

  /// The fewest ranks of its axis with which it does something.
  std::function<int64_t(const Setting&)> least_ranks = [](const Setting&) { return int64_t{2}; };
  /// For comparisons: gives keys that have no usable initial value the smallest one that works on `ranks`.
  std::function<void(Setting&, int64_t ranks)> propose = [](Setting&, int64_t) {};
  /// For `prove`: changes the setting to the smallest that is still this technique, where it has sizes of its own.
  /// `ranks` of its axis become what is returned, 3 at most unless the technique needs more, for that model.
  std::function<int64_t(Setting&, int64_t ranks, const ModelConfig& model)> shrink =
      [](Setting&, int64_t ranks, const ModelConfig&) { return few_ranks(ranks); };

  /// Of a learning-rate schedule: the fraction of the peak in `step`, from 0, of `total` steps, after `warmup` of them.
  std::function<double(const Setting&, int64_t step, int64_t warmup, int64_t total)> rate =
      [](const Setting&, int64_t, int64_t, int64_t) { return 1.0; };
  /// Other names that users try, and what to say of them: {"bf16", "'bf16' is a dtype; use precision.reduce"}.
  std::map<std::string, std::string> mistaken{};
  std::string body{};  ///< its line in registry/entries.def; set by the registry
};

const std::vector<Family>& families();
/// Throws InternalError for another name.
const Family& family_of(std::string_view name);

/// All entries of a family, the default first.
std::span<const Entry> entries_of(std::string_view family);
/// The default; where the build has none, an entry that splits nothing.
const Entry& first_of(std::string_view family);
/// Null if there is none.
const Entry* find_entry(std::string_view family, std::string_view name);
/// What an entry says of another name for it (Entry::mistaken); "" if none knows it.
std::string what_to_say_of(std::string_view family, const std::string& name);
/// {"ddp", "zero1", ..}: those that are chosen by name.
std::vector<std::string> names_of(std::string_view family);
/// The names of the entries that list `key`.
std::vector<std::string> names_with_key(std::string_view family, std::string_view key);
/// The entry of a family that is chosen by a list; null if there is none.
const Entry* entry_by_list(std::string_view family);
/// The keys of all entries of a family, each once.
const std::vector<SettingKey>& keys_of(std::string_view family);
/// Why `key` of the setting is not used; "" if it is.
std::string why_idle(const Setting& setting, std::string_view key);

}  // namespace caravan
