#include "caravan/nn/attention/visible_keys.h"

#include <algorithm>
#include <limits>
#include <unordered_map>
#include <utility>

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/module/plan/dim_index.h"

namespace caravan {
namespace {

constexpr int32_t kNoLimit = std::numeric_limits<int32_t>::max();

at::Tensor empty_bounds(int64_t rows, int64_t queries, const at::Tensor& like) {
  return at::empty({rows, 2, queries},
                   at::TensorOptions().dtype(at::kInt).device(like.defined() && like.is_meta() ? at::kMeta : at::kCPU));
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
  VisibleKeys seen(false, empty_bounds(1, queries, last));
  seen.last_ = last;
  if (last.is_meta()) return seen;
  seen.last_ = last.cpu().contiguous();
  const auto* of_queries = seen.last_.const_data_ptr<int64_t>();
  auto* first = seen.bounds_.mutable_data_ptr<int32_t>();
  std::fill_n(first, queries, 0);
  std::transform(of_queries, of_queries + queries, first + queries,
                 [](int64_t key) { return static_cast<int32_t>(key + 1); });
  return seen;
}

VisibleKeys VisibleKeys::within_documents(const at::Tensor& of_queries, const at::Tensor& of_keys) const {
  const int64_t rows = of_queries.size(0), queries = of_queries.size(1), keys = of_keys.size(1);
  if (query_documents_.defined()) {
    throw InternalError({"attention", "", "keys within documents are restricted to documents again", "", ""});
  }
  VisibleKeys within = *this;
  within.bounds_ = empty_bounds(rows, queries, of_queries);
  if (of_queries.is_meta()) return within;
  const at::Tensor wanted = as_int64(of_queries), given = as_int64(of_keys);
  const at::Tensor query_numbers = at::empty({rows, queries}, within.bounds_.options());
  const at::Tensor key_numbers = at::empty({rows, keys}, within.bounds_.options());
  bool are_stretches = true;
  for (int64_t row = 0; row < rows; ++row) {
    std::unordered_map<int64_t, Document> documents;
    are_stretches &= find_documents(given.const_data_ptr<int64_t>() + row * keys, keys, documents,
                                    key_numbers.mutable_data_ptr<int32_t>() + row * keys);
    auto* first = within.bounds_.mutable_data_ptr<int32_t>() + row * 2 * queries;
    auto* number = query_numbers.mutable_data_ptr<int32_t>() + row * queries;
    for (int64_t i = 0; i < queries; ++i) {
      const auto place = documents.find(wanted.const_data_ptr<int64_t>()[row * queries + i]);
      const Document document = place == documents.end() ? Document{-1, 0, 0} : place->second;
      const Range own = range(row, i, kNoLimit);
      first[i] = std::max(document.first, own.first);
      first[queries + i] = std::min(document.end, own.end);
      number[i] = document.number;
    }
  }
  if (!are_stretches) {
    within.query_documents_ = query_numbers;
    within.key_documents_ = key_numbers;
  }
  return within;
}

template <class FirstOf>
VisibleKeys VisibleKeys::from_first(int64_t window, int64_t queries, int64_t keys, const FirstOf& first_of) const {
  VisibleKeys within = *this;
  within.window_ = window_ > 0 ? std::min(window, window_) : window;
  within.bounds_ = empty_bounds(num_rows(), queries, has_ranges() ? bounds_ : at::Tensor());
  if (within.bounds_.is_meta()) return within;
  for (int64_t row = 0; row < num_rows(); ++row) {
    auto* first = within.bounds_.mutable_data_ptr<int32_t>() + row * 2 * queries;
    for (int64_t i = 0; i < queries; ++i) {
      const Range own = range(row, i, keys);
      first[i] = static_cast<int32_t>(std::max<int64_t>(own.first, first_of(i)));
      first[queries + i] = own.end;
    }
  }
  return within;
}

VisibleKeys VisibleKeys::within_window(int64_t window) const {
  if (window < 1 || (!is_causal_ && !last_.defined())) {
    throw InternalError({"attention", "", fmt::format("a window of {} keys up to a query's own", window), "", ""});
  }
  if (has_ranges()) {
    const int64_t* last = is_causal_ || last_.is_meta() ? nullptr : last_.const_data_ptr<int64_t>();
    return from_first(window, bounds_.size(2), kNoLimit,
                      [&](int64_t i) { return (last != nullptr ? last[i] : i) + 1 - window; });
  }
  VisibleKeys within = *this;
  within.window_ = window_ > 0 ? std::min(window, window_) : window;
  return within;
}

VisibleKeys VisibleKeys::within_window(int64_t window, const at::Tensor& of_queries, const at::Tensor& of_keys) const {
  if (window < 1) throw InternalError({"attention", "", fmt::format("a window of {} positions", window), "", ""});
  if (of_queries.is_meta()) {
    VisibleKeys within = *this;
    within.window_ = window_ > 0 ? std::min(window, window_) : window;
    within.bounds_ = empty_bounds(num_rows(), of_queries.numel(), of_queries);
    return within;
  }
  const at::Tensor queries = as_int64(of_queries), keys = as_int64(of_keys);
  const auto* position = queries.const_data_ptr<int64_t>();
  const auto* begin = keys.const_data_ptr<int64_t>();
  const auto* end = begin + keys.numel();
  return from_first(window, queries.numel(), keys.numel(),
                    [&](int64_t i) { return std::lower_bound(begin, end, position[i] - window + 1) - begin; });
}

VisibleKeys VisibleKeys::restored(bool is_causal, int64_t window, const std::array<at::Tensor, 3>& saved) {
  VisibleKeys seen(is_causal, saved[0]);
  seen.window_ = window;
  seen.query_documents_ = saved[1];
  seen.key_documents_ = saved[2];
  return seen;
}

void VisibleKeys::ranges(int64_t row, int64_t query, int64_t count, int64_t keys, int32_t* first, int32_t* end) const {
  const auto all = static_cast<int32_t>(keys);
  if (has_ranges()) {
    const int64_t queries = bounds_.size(2);
    const auto* bounds = bounds_.const_data_ptr<int32_t>() + (bounds_.size(0) == 1 ? 0 : row * 2 * queries) + query;
    for (int64_t i = 0; i < count; ++i) {
      first[i] = std::max(bounds[i], 0);
      end[i] = std::min(bounds[queries + i], all);
    }
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    const auto own = static_cast<int32_t>(query + i + 1);
    first[i] = is_causal_ && window_ > 0 ? static_cast<int32_t>(std::max<int64_t>(own - window_, 0)) : 0;
    end[i] = is_causal_ ? std::min(own, all) : all;
  }
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
    const at::Tensor last =
        (is_causal_ ? counted_up(0, queries, like.device()) : counted_up(keys, 1, like.device())).unsqueeze(-1);
    at::Tensor seen = key.le(last);
    if (window_ > 0) seen = seen.logical_and_(key.gt(last - window_));
    return seen.expand({queries, keys}).unsqueeze(0).unsqueeze(0);
  }
  const at::Tensor bounds = bounds_.to(like.device()).unsqueeze(-1);
  at::Tensor seen = key.ge(bounds.select(1, 0)).logical_and_(key.lt(bounds.select(1, 1)));
  if (query_documents_.defined()) {
    seen = seen.logical_and_(query_documents_.unsqueeze(2).eq(key_documents_.unsqueeze(1)).to(like.device()));
  }
  return seen.unsqueeze(1);
}

}  // namespace caravan
