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

/// The number of ranks that a proof needs of an axis of `ranks`: 2 and 3 suffice, even and odd.
inline int64_t few_ranks(int64_t ranks) { return ranks > 3 ? 2 : ranks; }

/// A group of entries from which a recipe chooses one by the value of one key.
struct Family {
  std::string_view name;  ///< "hook"
  std::string_view section;
  std::string_view key;   ///< of the choice: "hook" in [data_parallel]; "": there is only one entry
  std::string_view axis;  ///< axis of the mesh to which the choice applies; "": none
  std::string_view help;
  OnResume on_resume;
};

/// An alternative that a recipe chooses by name, and all that the rest of the system knows about it: recipe, errors,
/// launcher, `prove`, `inspect` and completions use it. Without libtorch; its body is found by the same name.
struct Entry {
  std::string family;
  std::string name;
  std::string summary;             ///< one line
  std::string paper{};             ///< its source; "": common knowledge
  std::vector<SettingKey> keys{};  ///< keys of the family's section that it reads
  /// What it can be combined with: nothing, unless it says so. Of optimizers only what they need of the others; not
  /// used for learning-rate schedules, and splits of layers or sequences.
  std::function<Traits(const Setting&)> traits = [](const Setting&) { return Traits{}; };

  // For a technique whose axis of the mesh has `ranks` ranks:

  /// Why its values do not fit these ranks: for data parallelism, or, for recomputation, of a pipeline. Traits say what
  /// it cannot be combined with. For an optimizer or a learning-rate schedule: why its values do not fit each other.
  std::function<std::optional<Misfit>(const Setting&, int64_t ranks)> check = [](const Setting&, int64_t) {
    return std::optional<Misfit>();
  };
  /// For splits of layers or sequences: the number of parts.
  std::function<SplitParts(const Setting&, int64_t ranks)> parts = [](const Setting&, int64_t) { return SplitParts{}; };
  /// Why its values and ranks, even one alone, cannot split this model, which other techniques split into `others`.
  std::function<std::optional<Misfit>(const Setting&, int64_t ranks, const ModelConfig& model,
                                      const SplitParts& others)>
      check_model =
          [](const Setting&, int64_t, const ModelConfig&, const SplitParts&) { return std::optional<Misfit>(); };
  /// The axes into which its axis of `ranks` ranks is factored; none: it stays whole.
  std::function<std::vector<AxisSize>(const Setting&, int64_t ranks)> factors = [](const Setting&, int64_t) {
    return std::vector<AxisSize>();
  };
  /// Chosen by a list of texts instead of a name, which is the value of its first key: describes such lists, "a list of
  /// modules such as [\"blocks.*\"]". "": chosen by its name.
  std::string by_list{};
  /// A note for the user about it with this model; "": none.
  std::function<std::string(const Setting&, const ModelConfig& model)> note = [](const Setting&, const ModelConfig&) {
    return std::string();
  };
  /// Whether it is the choice of doing nothing: "none".
  bool is_none = false;
  /// For recomputation: pipeline stages keep only their inputs, and their second forward is a pass of the schedule.
  bool repeats_stages = false;

  /// The smallest number of ranks of its axis with which it has an effect.
  std::function<int64_t(const Setting&)> least_ranks = [](const Setting&) { return int64_t{2}; };
  /// For comparisons: sets keys without a usable initial value to the smallest value that works on `ranks`.
  std::function<void(Setting&, int64_t ranks)> propose = [](Setting&, int64_t) {};
  /// For `prove`: reduces the setting to the smallest sizes of this technique for this model. Returns the number of
  /// ranks of its axis, instead of `ranks`: at most 3 unless the technique needs more.
  std::function<int64_t(Setting&, int64_t ranks, const ModelConfig& model)> shrink =
      [](Setting&, int64_t ranks, const ModelConfig&) { return few_ranks(ranks); };

  /// For a learning-rate schedule: the fraction of the peak in `step`, from 0, of `total` steps, after `warmup` of
  /// them.
  std::function<double(const Setting&, int64_t step, int64_t warmup, int64_t total)> rate =
      [](const Setting&, int64_t, int64_t, int64_t) { return 1.0; };
  /// Other names that users try, with an explanation: {"bf16", "'bf16' is a dtype; use precision.reduce"}.
  std::map<std::string, std::string> mistaken{};
  std::string body{};  ///< its line in registry/entries.def; set by the registry
};

const std::vector<Family>& families();
/// Throws InternalError for an unknown name.
const Family& family_of(std::string_view name);

/// All entries of a family, the default first.
std::span<const Entry> entries_of(std::string_view family);
/// The default; if the build has none, an entry that splits nothing.
const Entry& first_of(std::string_view family);
/// Null if there is none.
const Entry* find_entry(std::string_view family, std::string_view name);
/// The explanation of another name (Entry::mistaken); "" if no entry has it.
std::string what_to_say_of(std::string_view family, const std::string& name);
/// {"ddp", "zero1", ..}: the entries that are chosen by name.
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
