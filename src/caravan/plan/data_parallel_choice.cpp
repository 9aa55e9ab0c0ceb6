#include "caravan/plan/data_parallel_choice.h"

#include "caravan/registry/registry.h"

namespace caravan {

DataParallelChoice::DataParallelChoice(const Setting& setting, const Setting& of_hook)
    : technique(setting.name()),
      shard(setting.whole("shard")),
      reshard_after_forward(setting.flag("reshard_after_forward")),
      prefetch(setting.whole("prefetch")),
      accumulate(setting.text("accumulate")),
      share(setting.text("share")),
      hook(of_hook.name()),
      hook_rank(of_hook.whole("hook_rank")),
      hook_fraction(of_hook.real("hook_fraction")),
      servers(setting.whole("servers")),
      mode(setting.text("mode")) {}

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
