#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace caravan {

/// Which modules keep their inputs alone and run forward again in backward.
struct RecomputeChoice {
  enum class Kind : uint8_t {
    none,
    selective,  ///< attention cores: modules whose name ends in "attention.core"
    full,       ///< the blocks of a model's list of blocks: "blocks.0", .. but neither embedding nor head
    stage,      ///< a whole stage of a pipeline keeps its input alone: a pass of the schedule (parallel/pipeline.h)
    modules,    ///< those of `patterns`
  };
  Kind kind = Kind::none;
  std::vector<std::string> patterns{};  ///< names of modules, * stands for any characters; modules inside go with them

  bool operator==(const RecomputeChoice&) const = default;
  /// "none", "selective", "full", "stage", or the patterns: "blocks.0, blocks.2".
  std::string to_string() const;
};

/// The pattern of Kind::selective.
inline constexpr const char* kAttentionCores = "*attention.core";

/// The names of the kinds, without `modules`, in their order.
const std::vector<std::string>& recompute_kinds();

/// What is wrong with a list of patterns whatever the model, "" if nothing: it is empty, or holds "" or a kind.
std::string wrong_with_patterns(const std::vector<std::string>& patterns);

}  // namespace caravan
