#include "tests/cost/formulas/data_parallel_choice.h"

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

}  // namespace caravan
