#include "caravan/comm/types.h"

#include <array>

namespace caravan {
namespace {

struct DtypeRow {
  std::string_view name;
  int64_t bytes;
};

constexpr std::array<DtypeRow, kNumDtypes> kDtypes{
    {{"fp32", 4}, {"fp64", 8}, {"bf16", 2}, {"fp16", 2}, {"int64", 8}, {"int32", 4}, {"uint8", 1}, {"boolean", 1}}};

constexpr std::array<std::string_view, 3> kOps{"sum", "max", "min"};

constexpr std::array<std::string_view, kNumVerbs> kVerbs{
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "send", "recv", "barrier"};

}  // namespace

int64_t size_bytes(Dtype dtype) noexcept { return kDtypes[static_cast<size_t>(dtype)].bytes; }
std::string_view name(Dtype dtype) noexcept { return kDtypes[static_cast<size_t>(dtype)].name; }
std::string_view name(ReduceOp op) noexcept { return kOps[static_cast<size_t>(op)]; }
std::string_view name(Verb verb) noexcept { return kVerbs[static_cast<size_t>(verb)]; }

bool reduces(ReduceOp op, Dtype dtype) noexcept { return dtype != Dtype::boolean || op != ReduceOp::sum; }

}  // namespace caravan
