#include "caravan/plan/auto_layout.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/memory/memory_counter.h"
#include "caravan/base/text.h"
#include "caravan/comm/calls/agree.h"
#include "caravan/cost/hardware_costs.h"
#include "caravan/cost/measured_job.h"
#include "caravan/plan/neighbours.h"
#include "caravan/plan/plan_text.h"
#include "caravan/plan/search.h"
#include "caravan/recipe/is_override.h"
#include "caravan/recipe/layout.h"
#include "caravan/recipe/recipe_key.h"
#include "caravan/registry/compose.h"
#include "caravan/train/dataset/prepare.h"
#include "caravan/train/folder/run_folder.h"
#include "caravan/train/numerics.h"
#include "caravan/train/run_setup.h"

namespace caravan {
namespace {

constexpr size_t kRowsOfSearch = 3;  // rehearsed whole; a user of --auto sees one
constexpr size_t kReasonsToShow = 2;

/// Keys of the layout that the command line gives, with their values; "auto" leaves the choice.
std::vector<std::pair<const RecipeKey*, RecipeValue>> fixed_keys(const Recipe& recipe) {
  std::vector<std::pair<const RecipeKey*, RecipeValue>> fixed;
  for (const RecipeKey& key : recipe_keys()) {
    if (!is_override(recipe, key.name) || !is_layout_key(key.name)) continue;
    const RecipeValue value = key.get(recipe);
    if (value != RecipeValue("auto")) fixed.emplace_back(&key, value);
  }
  return fixed;
}

/// The first of these keys that the recipe uses with another value; null: none.
const RecipeKey* changed_key(const std::vector<std::pair<const RecipeKey*, RecipeValue>>& fixed, const Recipe& recipe,
                             int num_ranks) {
  // One data-parallel rank has nothing to choose: there all techniques are one.
  const bool has_data_axis = plan_batch(recipe, num_ranks).dp > 1;
  for (const auto& [key, value] : fixed) {
    if (!has_data_axis && key->name.starts_with("data_parallel.")) continue;
    if (key->idle(recipe).empty() && key->get(recipe) != value) return key;
  }
  return nullptr;
}

/// The recipe with the layout of a record. Throws UsageError if that is not legal on so many ranks.
Recipe with_record(const Recipe& recipe, const PlanRecord& record, int num_ranks) {
  Recipe planned = recipe;
  copy_layout(Recipe(), planned);
  for (const auto& [name, value] : record.keys) {
    const auto& keys = recipe_keys();
    const auto key = std::ranges::find(keys, name, &RecipeKey::name);
    const std::string wrong = key == keys.end() ? "is no key" : key->set(planned, value);
    if (!wrong.empty()) throw UsageError({"train", "plan.json", name + " " + wrong, "", "remove it"});
  }
  planned = legal_recipe(planned, num_ranks);
  Recipe whole = recipe;
  copy_layout(planned, whole);
  std::erase_if(whole.locations, [](const auto& given) { return is_layout_key(given.first); });
  for (const auto& [name, value] : record.keys) whole.locations[name] = "chosen by --auto";
  return whole;
}

/// A plan changes how a gradient is computed, and never which.
void refuse_other_gradients(const Recipe& recipe) {
  const std::string why = "chooses among layouts that compute the gradient of one process";
  const std::vector<Demand> demands{{Trait::whole_gradient, "--auto", why, "leave --auto out"},
                                    {Trait::rehearses, "--auto", "rehearses steps", "leave --auto out"}};
  for (const Setting& technique : techniques_of(recipe)) {
    const auto misfit = find_misfit({&technique, 1}, demands);
    if (!misfit) continue;
    throw UsageError({"train", misfit->key, misfit->fact, recipe.where(technique.full_name()), misfit->action});
  }
}

/// Why a recorded layout is not that of this run; "": it is.
std::string misfit_of(const Recipe& recipe, const PlanRecord& record, int num_ranks) {
  if (record.num_ranks != num_ranks) {
    return fmt::format("is for {} rank{}, and this run has {}", record.num_ranks, record.num_ranks == 1 ? "" : "s",
                       num_ranks);
  }
  try {
    const Recipe planned = with_record(recipe, record, num_ranks);
    refuse_other_gradients(planned);
    if (layout_text(planned, num_ranks) != record.layout) return "has keys that are not those of its layout";
    const RecipeKey* key = changed_key(fixed_keys(recipe), planned, num_ranks);
    if (key == nullptr) return "";
    return fmt::format("has {} = {}, and --set gives {}", key->name, to_toml(key->get(planned)),
                       to_toml(key->get(recipe)));
  } catch (const UsageError& error) {
    return "does not fit this recipe: " + error.text().fact;
  }
}

/// Decides on rank 0. Returns the record as text; "": there is none that this run can use.
std::string recorded(const Recipe& recipe, int num_ranks, const AutoOptions& options) {
  if (options.plans) open_run_folder(recipe, /*resume=*/true);  // before anything is measured: it throws what is wrong
  const std::filesystem::path run = folder_to_resume(recipe);
  const std::optional<PlanRecord> record = run.empty() ? std::nullopt : read_plan(run);
  if (!record) return "";
  const std::string misfit = misfit_of(recipe, *record, num_ranks);
  if (misfit.empty()) {
    options.say(fmt::format("plan      {}: as --auto chose before{}", record->layout,
                            options.plans ? ", so that nothing is measured or chosen again" : ""));
    return record->to_json();
  }
  options.say(fmt::format("plan      what --auto chose before {}: {}", misfit,
                          options.plans ? "it chooses again" : "the layout is the recipe's; --auto chooses again"));
  return "";
}

/// Before anything is measured: whether a search has anywhere to start from. Throws what is wrong with the recipe as it
/// is if not.
void require_a_layout(const Recipe& recipe, int num_ranks) {
  if (has_legal_degrees(recipe, num_ranks)) return;
  ErrorText text{"train", "--auto", fmt::format("no layout of {} ranks is legal", num_ranks), "",
                 "use another number of ranks"};
  try {
    legal_recipe(recipe, num_ranks);
  } catch (const Error& error) {
    text.fact += "; as the recipe is: " + error.text().subject + " " + error.text().fact;
    if (!error.text().action.empty()) text.action = error.text().action;
  }
  throw UsageError(std::move(text));
}

MeasureLimits limits_of(const Recipe& recipe, double seconds) {
  // What is beside the arithmetic, as the optimizer, computes in fp32.
  MeasureLimits limits{.dtypes = {"fp32"}, .seconds = seconds};
  if (recipe.precision.compute == "bf16") limits.dtypes.emplace_back("bf16");
  return limits;
}

std::string age_text(double seconds) {
  if (seconds < 90) return fmt::format("{:.0f} s", seconds);
  return seconds < 5400 ? fmt::format("{:.0f} min", seconds / 60) : fmt::format("{:.0f} h", seconds / 3600);
}

[[noreturn]] void refuse_result(const SearchResult& result, int num_ranks) {
  if (!result.best.empty()) {
    std::vector<std::string> sentences = advice_of(result, num_ranks);
    sentences.resize(std::min<size_t>(sentences.size(), 2));  // by how much, and which layout
    throw ResourceError(
        {"train", "--auto", join(sentences, "; "), "", "use more ranks, a smaller model, or a shorter context"});
  }
  throw UsageError({"train", "--auto",
                    result.is_complete ? "no layout can be rehearsed" : "no layout was estimated in time",
                    result.own_error.substr(0, result.own_error.find('\n')), "choose a layout: caravan inspect"});
}

/// On rank 0: the best layout, as a record.
PlanRecord search(const Recipe& recipe, const Hardware& hardware, int num_ranks, const AutoOptions& options,
                  DataObserver& observer) {
  const int64_t vocabulary = options.vocabulary();
  Recipe start = recipe;
  start.model.vocabulary = vocabulary;
  const HardwareCosts costs(hardware);
  const Predictor predictor(hardware, costs, num_ranks, vocabulary);
  const auto fixed = fixed_keys(recipe);
  const SearchResult result =
      search_layouts(start, predictor,
                     {.seconds = options.search_seconds,
                      .most_rows = kRowsOfSearch,
                      .progress = [&](size_t) { observer.advance(0); },  // throws if a rank is lost
                      .allows = [&](const Recipe& other) { return changed_key(fixed, other, num_ranks) == nullptr; }});
  if (!result.fits()) refuse_result(result, num_ranks);
  const PlannedLayout& best = result.best.front();
  PlanRecord record{.num_ranks = num_ranks,
                    .layout = best.text,
                    .keys = layout_keys(best.recipe),
                    .step_seconds = best.prediction.seconds,
                    .memory_bytes = best.prediction.memory.total(),
                    .reasons = advice_of(result, num_ranks),
                    .hardware = hardware.source};
  const std::string room = best.prediction.room_bytes > 0 ? " of " + format_bytes(best.prediction.room_bytes) : "";
  options.say(fmt::format("plan      {}: {} a step, {}{}", best.text, short_seconds(record.step_seconds),
                          format_bytes(record.memory_bytes), room));
  if (result.own && result.own->text != best.text) {
    options.say(fmt::format("          the recipe as it is: {}: {}{}", result.own->text,
                            short_seconds(result.own->prediction.seconds),
                            result.own->prediction.fits() ? "" : ", and it does not fit"));
  }
  for (size_t i = 0; i < std::min(kReasonsToShow, record.reasons.size()); ++i) {
    options.say("          " + record.reasons[i]);
  }
  options.say(fmt::format("          {} layouts estimated{}", result.estimated.size(),
                          result.is_complete ? "" : ", not all for lack of time"));
  return record;
}

/// Every rank calls it; returns the record as text on all of them.
std::string planned(const Recipe& recipe, Communicator& world, const AutoOptions& options) {
  if (!options.resumes)
    on_rank_0(
        world, [&] { refuse_used_folder(recipe); }, "run folder");
  refuse_other_gradients(recipe);
  require_a_layout(recipe, world.size());
  std::vector<std::string> notes;
  const Numerics numerics = agree_on_numerics(world, recipe.comm.threads_per_rank, std::nullopt, notes);
  const JobHardware measured =
      job_hardware(world, {.host = options.host, .threads = options.threads, .choices = numerics.products},
                   options.cache, limits_of(recipe, options.measure_seconds));
  MemoryCounter::current().reset_peak();  // the peak of the run is its own
  std::string text;
  std::exception_ptr error;
  const auto work = [&](DataObserver& observer) {
    try {
      text = search(recipe, measured.hardware, world.size(), options, observer).to_json();
    } catch (const Error&) {
      error = std::current_exception();
    }
  };
  if (world.rank() == 0) {
    options.say(measured.measured_seconds > 0
                    ? fmt::format("plan      {} rank{} measured in {:.1f} s", world.size(),
                                  world.size() == 1 ? "" : "s", measured.measured_seconds)
                    : fmt::format("plan      {} rank{}: measured {} ago (caravan cache)", world.size(),
                                  world.size() == 1 ? "" : "s", age_text(measured.age_seconds)));
  }
  constexpr double kBusy = 0.5;
  if (world.rank() == 0 && measured.load_of_core > kBusy) {
    options.say(
        fmt::format("          other programs were running (load {:.1f} a core), so predictions may be too slow; the "
                    "measurement is kept for a day, `caravan cache clear` removes it",
                    measured.load_of_core));
  }
  const bool searches = world.rank() == 0;
  work_jointly(world, searches ? std::function<void(DataObserver&)>(work) : nullptr, {.beat = beat_of(recipe)});
  throw_on_all_ranks(world, error, "plan");
  return broadcast_text(world, text, 0, "plan");
}

}  // namespace

AutoLayout choose_layout(const Recipe& recipe, Communicator& world, const AutoOptions& options) {
  std::string text;
  if (options.resumes) {
    text = text_of_rank_0(
        world, [&] { return recorded(recipe, world.size(), options); }, "plan");
  }
  if (text.empty() && options.plans) text = planned(recipe, world, options);
  if (text.empty()) return {recipe, std::nullopt};
  PlanRecord record = PlanRecord::parse(text, "plan");
  Recipe chosen = with_record(recipe, record, world.size());
  return {std::move(chosen), std::move(record)};
}

}  // namespace caravan
