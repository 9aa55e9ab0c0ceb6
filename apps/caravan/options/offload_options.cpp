#include <algorithm>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "apps/caravan/options/option_groups.h"
#include "caravan/base/error.h"
#include "caravan/base/text.h"

namespace caravan::app {
namespace {

CLI::Validator tier_name() {
  return {[](const std::string& text) {
            const std::vector<std::string> tiers{"none", "host", "disk"};
            if (std::ranges::find(tiers, text) != tiers.end()) return std::string();
            return "'" + text + "' is not one of " + join(tiers) + "; the nearest is '" + nearest(text, tiers) + "'";
          },
          "", "tier"};
}

}  // namespace

void add_offload(CLI::App& command, OffloadArguments& offload) {
  command
      .add_option("--offload", offload.tier,
                  "where the weights of a layer rest while it does not run: none (in memory), host or disk; "
                  "docs/offload.md")
      ->check(tier_name());
  command
      .add_option("--disk-dirs", offload.disk_dirs,
                  "folders on local disks for --offload disk, separated by commas; weights are striped over them")
      ->delimiter(',')
      ->check(not_empty());
}

void check_offload(const OffloadArguments& offload, const std::string& command) {
  const bool is_on_disk = offload.tier == "disk";
  if (is_on_disk && offload.disk_dirs.empty()) {
    throw UsageError({command, "--offload", "disk needs folders", "", "name some on local disks: --disk-dirs DIR,.."});
  }
  if (!is_on_disk && !offload.disk_dirs.empty()) {
    throw UsageError({command, "--disk-dirs", "names folders, but the weights do not rest on disk", "",
                      "use --offload disk, or leave it out"});
  }
}

}  // namespace caravan::app
