#include "caravan/nn/attention/visible_keys.h"

#include <algorithm>
#include <limits>
#include <unordered_map>
#include <utility>

#include <ATen/ops/empty.h>

#include "caravan/base/error.h"
#include "caravan/module/plan/dim_index.h"

namespace caravan {
namespace {

constexpr int32_t kNoLimit = std::numeric_limits<int32_t>::max();

at::Tensor empty_bounds(int64_t rows, int64_t queries, const at::Tensor& like) {
  return at::empty({rows, 2, queries},
                   at::TensorOptions().dtype(at::kInt).device(like.is_meta() ? at::kMeta : at::kCPU));
}

struct Document {
  int32_t number, first, end;
};

/// The documents of the keys of one sequence, numbered in the order in which they begin. Sets `numbers`, that of each
/// key. Returns whether each document is one stretch of keys.
bool find_documents(const int64_t* documents, int64_t keys, std::unordered_map<int64_t, Document>& found,
                    int32_t* numbers) {
  bool are_stretches = true;
  for (int64_t begin = 0, end = 0; begin < keys; begin = end) {
    while (end < keys && documents[end] == documents[begin]) ++end;
    const auto first = static_cast<int32_t>(begin);
    const auto [place, is_new] =
        found.emplace(documents[begin], Document{static_cast<int32_t>(found.size()), first, first});
    are_stretches = are_stretches && is_new;
    place->second.end = static_cast<int32_t>(end);
    std::fill(numbers + begin, numbers + end, place->second.number);
  }
  return are_stretches;
}

at::Tensor as_int64(const at::Tensor& documents) { return documents.to(at::kCPU, at::kLong).contiguous(); }

}  // namespace

VisibleKeys VisibleKeys::up_to(const at::Tensor& last) {
  const int64_t queries = last.numel();
  const at::Tensor bounds = empty_bounds(1, queries, last);
  if (last.is_meta()) return VisibleKeys(false, bounds);
  const at::Tensor of_queries = last.cpu().contiguous();
  auto* first = bounds.mutable_data_ptr<int32_t>();
  std::fill_n(first, queries, 0);
  std::transform(of_queries.const_data_ptr<int64_t>(), of_queries.const_data_ptr<int64_t>() + queries, first + queries,
                 [](int64_t key) { return static_cast<int32_t>(key + 1); });
  return VisibleKeys(false, bounds);
}

VisibleKeys VisibleKeys::within_documents(const at::Tensor& of_queries, const at::Tensor& of_keys) const {
  const int64_t rows = of_queries.size(0), queries = of_queries.size(1), keys = of_keys.size(1);
  if (query_documents_.defined()) {
    throw InternalError({"attention", "", "keys within documents are restricted to documents again", "", ""});
  }
  VisibleKeys within(is_causal_, empty_bounds(rows, queries, of_queries));
  if (of_queries.is_meta()) return within;
  const at::Tensor wanted = as_int64(of_queries), given = as_int64(of_keys);
  const at::Tensor query_numbers = at::empty({rows, queries}, within.bounds_.options());
  const at::Tensor key_numbers = at::empty({rows, keys}, within.bounds_.options());
  const int64_t row_of_own = has_ranges() && bounds_.size(0) > 1 ? 2 * queries : 0;
  bool are_stretches = true;
  for (int64_t row = 0; row < rows; ++row) {
    std::unordered_map<int64_t, Document> documents;
    are_stretches &= find_documents(given.const_data_ptr<int64_t>() + row * keys, keys, documents,
                                    key_numbers.mutable_data_ptr<int32_t>() + row * keys);
    auto* first = within.bounds_.mutable_data_ptr<int32_t>() + row * 2 * queries;
    auto* number = query_numbers.mutable_data_ptr<int32_t>() + row * queries;
    const int32_t* own = has_ranges() ? bounds_.const_data_ptr<int32_t>() + row * row_of_own : nullptr;
    for (int64_t i = 0; i < queries; ++i) {
      const auto place = documents.find(wanted.const_data_ptr<int64_t>()[row * queries + i]);
      const Document document = place == documents.end() ? Document{-1, 0, 0} : place->second;
      const int32_t limit = own != nullptr ? own[queries + i] : is_causal_ ? static_cast<int32_t>(i + 1) : kNoLimit;
      first[i] = std::max(document.first, own != nullptr ? own[i] : 0);
      first[queries + i] = std::min(document.end, limit);
      number[i] = document.number;
    }
  }
  if (!are_stretches) {
    within.query_documents_ = query_numbers;
    within.key_documents_ = key_numbers;
  }
  return within;
}

VisibleKeys VisibleKeys::restored(bool is_causal, const std::array<at::Tensor, 3>& saved) {
  VisibleKeys seen(is_causal, saved[0]);
  seen.query_documents_ = saved[1];
  seen.key_documents_ = saved[2];
  return seen;
}

bool VisibleKeys::is_nothing() const {
  if (!has_ranges() || bounds_.is_meta()) return false;
  return !bounds_.select(1, 0).lt(bounds_.select(1, 1)).any().item<bool>();
}

bool VisibleKeys::is_everything(int64_t keys) const {
  if (!has_ranges() || bounds_.is_meta()) return is_all();
  if (query_documents_.defined()) return false;
  return !bounds_.select(1, 0).gt(0).logical_or_(bounds_.select(1, 1).lt(keys)).any().item<bool>();
}

at::Tensor VisibleKeys::mask(int64_t queries, int64_t keys, const at::Tensor& like) const {
  const at::Tensor key = counted_up(0, keys, like.device());
  if (!has_ranges()) {
    const at::Tensor last = is_causal_ ? counted_up(0, queries, like.device()) : counted_up(keys, 1, like.device());
    return key.le(last.unsqueeze(-1)).expand({queries, keys}).unsqueeze(0).unsqueeze(0);
  }
  const at::Tensor bounds = bounds_.to(like.device()).unsqueeze(-1);
  at::Tensor seen = key.ge(bounds.select(1, 0)).logical_and_(key.lt(bounds.select(1, 1)));
  if (query_documents_.defined()) {
    seen = seen.logical_and_(query_documents_.unsqueeze(2).eq(key_documents_.unsqueeze(1)).to(like.device()));
  }
  return seen.unsqueeze(1);
}

}  // namespace caravan
