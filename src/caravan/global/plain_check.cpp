#include "caravan/global/plain_check.h"

#include <cstddef>
#include <map>
#include <span>
#include <utility>

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include "caravan/base/content_hash.h"
#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/comm/tensor.h"
#include "caravan/global/creating.h"
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

/// The ranks whose value differs from that of the first, which is at the front; empty if none does. Collective over the
/// axes that global tensors know.
std::vector<int64_t> different_ranks(uint64_t value, const std::string& what, GlobalState& state) {
  const NotCreatingGlobal plain;
  at::Tensor all = at::empty({2}, at::kLong);  // rank and value of each
  all.mutable_data_ptr<int64_t>()[0] = state.mesh().rank();
  all.mutable_data_ptr<int64_t>()[1] = static_cast<int64_t>(value);
  for (const std::string& name : state.axes()) {
    Communicator& axis = state.mesh()[name].comm();
    if (axis.size() == 1) continue;
    const at::Tensor own = std::exchange(all, at::empty({axis.size() * all.numel()}, at::kLong));
    all_gather_async(axis, own, all, {}, Call(what)).wait();
  }
  std::map<int64_t, int64_t> values;
  for (int64_t i = 0; i < all.numel(); i += 2)
    values[all.const_data_ptr<int64_t>()[i]] = all.const_data_ptr<int64_t>()[i + 1];
  std::vector<int64_t> ranks;
  for (const auto& [rank, each] : values) {
    if (rank == values.begin()->first || each != values.begin()->second) ranks.push_back(rank);
  }
  return ranks.size() == 1 ? std::vector<int64_t>{} : ranks;
}

/// "rank 0 and ranks 2, 3".
std::string ranks_text(const std::vector<int64_t>& ranks) {
  const std::span<const int64_t> others(ranks.begin() + 1, ranks.end());
  return fmt::format("rank {} and {} {}", ranks.front(), others.size() == 1 ? "rank" : "ranks", join(others));
}

}  // namespace

void check_same_plain(const at::Tensor& tensor, const std::string& op, GlobalState& state) {
  const auto others = different_ranks(hash_of(tensor), "check of a plain operand of " + op, state);
  if (others.empty()) return;
  throw UsageError({"global", op,
                    fmt::format("takes a plain tensor {} that {} have with different values",
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
  if (const auto ranks = different_ranks(tensors.size(), op, state); !ranks.empty()) {
    throw UsageError({op, "the tensors", ranks_text(ranks) + " have different numbers of them", state.mesh().where(),
                      "make the same net on every rank"});
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto others = different_ranks(each[i], op, state);
    if (others.empty()) continue;
    throw UsageError({op, tensors[i].name, fmt::format("{} have different values", ranks_text(others)),
                      state.mesh().where(), "seed all ranks alike before the net is made, or load the same weights"});
  }
}

}  // namespace caravan
