#include "caravan/registry/registry.h"

namespace caravan {
namespace {

std::string idle_without_chunks(const Setting& setting) {
  return setting.text("size") == "none" ? "is used with " + setting.full_name("size") + " other than \"none\" only"
                                        : "";
}

}  // namespace

Entry parameter_chunks_entry() {
  return {
      .family = "chunks",
      .name = "parameter_chunks",
      .summary = "offloaded parameters are fetched, gathered and freed in chunks of one size",
      .paper = "Fang et al., arXiv 2108.05818",
      .keys = {{{"size", OnResume::free},
                "bytes of a chunk of one rank, in the dtype of the arithmetic, such as \"16M\"; \"auto\": the size "
                "that wastes least; \"none\": no chunks",
                "none",
                byte_count_or({"none", "auto"})},
               {{"policy", OnResume::free},
                "which chunk leaves the device for another: the one that is used latest, weighed with what its moves "
                "cost (\"recorded\") or not (\"latest\"), or the one that was used longest ago (\"lru\")",
                "recorded",
                one_of({"recorded", "latest", "lru"}),
                idle_without_chunks},
               {{"device", OnResume::free},
                "room for chunks on the device of a rank, such as \"256M\"; \"auto\": what offload.device_budget "
                "leaves, or the least",
                "auto",
                byte_count_or({"auto"}),
                idle_without_chunks}},
      .traits = usual_traits_of};
}

}  // namespace caravan
