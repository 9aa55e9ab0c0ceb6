#include "caravan/global/plain_check.h"

#include <cstddef>
#include <span>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <fmt/format.h>

#include "caravan/base/content_hash.h"
#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/comm/tensor.h"
#include "caravan/mesh/fit.h"

namespace caravan {
namespace {

uint64_t hash_of(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.detach().cpu().contiguous();
  const ContentHash content =
      content_hash(std::span(static_cast<const std::byte*>(flat.const_data_ptr()), flat.nbytes()));
  const ContentHash shape = content_hash(std::as_bytes(std::span(flat.sizes().data(), flat.sizes().size())));
  return content.low ^ (shape.low * 0x9ddfea08eb382d69ULL);
}

/// The ranks whose value differs from that of rank 0. Collective.
std::vector<int64_t> different_ranks(uint64_t value, const std::string& what, GlobalState& state) {
  Communicator& world = state.mesh().world();
  const at::Tensor own = at::full({1}, static_cast<int64_t>(value), at::kLong);
  const at::Tensor all = at::empty({world.size()}, at::kLong);
  all_gather_async(world, own, all, {}, Call(what)).wait();
  std::vector<int64_t> others;
  const auto* values = all.const_data_ptr<int64_t>();
  for (int rank = 1; rank < world.size(); ++rank) {
    if (values[rank] != values[0]) others.push_back(rank);
  }
  return others;
}

std::string ranks_text(const std::vector<int64_t>& ranks) {
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", join(std::span<const int64_t>(ranks)));
}

}  // namespace

void check_same_plain(const at::Tensor& tensor, const std::string& op, GlobalState& state) {
  const auto others = different_ranks(hash_of(tensor), "check of a plain operand of " + op, state);
  if (others.empty()) return;
  throw UsageError({"global", op,
                    fmt::format("takes a plain tensor {} that rank 0 and {} have with different values",
                                shape_text(tensor.sizes().data(), tensor.sizes().size()), ranks_text(others)),
                    state.mesh().where(), "distribute() what ranks have different parts of, or make it equal on all"});
}

void check_same_values(const std::vector<NamedTensor>& tensors, const std::string& op, GlobalState& state) {
  uint64_t hash = tensors.size();
  std::vector<uint64_t> each;
  for (const NamedTensor& named : tensors) {
    each.push_back(hash_of(named.tensor));
    hash = (hash ^ each.back()) * 0x9ddfea08eb382d69ULL;
  }
  if (different_ranks(hash, op, state).empty()) return;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto others = different_ranks(each[i], op, state);
    if (others.empty()) continue;
    throw UsageError({op, tensors[i].name, fmt::format("rank 0 and {} have different values", ranks_text(others)),
                      state.mesh().where(), "seed all ranks alike before the net is made, or load the same weights"});
  }
  throw UsageError({op, "the tensors", "ranks have different numbers of them", state.mesh().where(),
                    "make the same net on every rank"});
}

}  // namespace caravan
