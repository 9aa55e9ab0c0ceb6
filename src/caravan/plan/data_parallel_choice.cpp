#include "caravan/plan/data_parallel_choice.h"

#include "caravan/registry/registry.h"

namespace caravan {

DataParallelChoice::DataParallelChoice(const Setting& setting, const Setting& of_hook)
    : technique(setting.name()), hook(of_hook.name()) {
  const auto whole = [](const Setting& of, const char* key, int64_t& value) {
    if (of.reads(key)) value = of.whole(key);
  };
  const auto text = [&](const char* key, std::string& value) {
    if (setting.reads(key)) value = setting.text(key);
  };
  whole(setting, "shard", shard);
  whole(setting, "prefetch", prefetch);
  whole(setting, "servers", servers);
  text("accumulate", accumulate);
  text("share", share);
  text("mode", mode);
  if (setting.reads("reshard_after_forward")) reshard_after_forward = setting.flag("reshard_after_forward");
  whole(of_hook, "hook_rank", hook_rank);
  if (of_hook.reads("hook_fraction")) hook_fraction = of_hook.real("hook_fraction");
}

std::vector<std::pair<std::string, DataParallelChoice>> sharding_choices(const DataParallelChoice& like) {
  std::vector<std::pair<std::string, DataParallelChoice>> choices;
  const auto add = [&](const std::string& name, const char* technique, bool reshards, const char* accumulate) {
    DataParallelChoice choice = like;
    choice.technique = technique;
    choice.reshard_after_forward = reshards;
    choice.accumulate = accumulate;
    choices.emplace_back(name, choice);
  };
  add("zero1", "zero1", true, "sharded");
  for (const char* accumulate : {"sharded", "full"}) {
    const std::string sums = std::string(", gradients ") + (accumulate[0] == 's' ? "each micro-batch" : "once a step");
    add("zero2" + sums, "zero2", true, accumulate);
    add("zero3, gathered each pass" + sums, "zero3", true, accumulate);
    add("zero3, gathered once" + sums, "zero3", false, accumulate);
  }
  return choices;
}

}  // namespace caravan
