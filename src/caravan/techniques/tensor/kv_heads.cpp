#include "caravan/techniques/tensor/kv_heads.h"

#include <map>
#include <memory>
#include <string>
#include <utility>

#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/module/plan/layout_table.h"

namespace caravan {
namespace {

constexpr int kHeadDim = 2;

at::Tensor taken(const at::Tensor& x, const KvHeads& heads) {
  if (heads.count > 0) return x.narrow(kHeadDim, heads.first, heads.count);
  return x.index_select(kHeadDim, at::tensor(heads.each, at::TensorOptions().dtype(at::kLong).device(x.device())));
}

/// What a dry run finds about one core.
class Finding {
 public:
  Finding(const Tensors& inputs, const Mesh& mesh, const ForwardContext& context, const std::string& what)
      : context_(context),
        what_(what),
        inputs_(inputs),
        of_q_(context.layouts->of(inputs.at(0), what)),
        of_k_(context.layouts->of(inputs.at(1), what)),
        q_(heads_of(inputs[0], of_q_, mesh)),
        k_(heads_of(inputs[1], of_k_, mesh)) {}

  bool has_all() const { return of_q_.sharding(kHeadDim) == of_k_.sharding(kHeadDim); }

  KvHeads heads() const {
    if (k_.all == 0 || q_.all % k_.all != 0) {
      throw ShapeError({"attention", what_, fmt::format("{} query heads share {} key heads", q_.all, k_.all), "",
                        "use a number of key heads that divides that of the query heads"});
    }
    KvHeads heads = kv_heads_of(q_.first, q_.count, q_.all / k_.all);
    const int64_t least = heads.count > 0 ? heads.first : heads.each.front();
    const int64_t most = heads.count > 0 ? heads.first + heads.count - 1 : heads.each.back();
    if (least < k_.first || most >= k_.first + k_.count) refuse("not all that the query heads here use");
    heads.first -= heads.count > 0 ? k_.first : 0;
    for (int64_t& head : heads.each) head -= k_.first;
    return heads;
  }

  /// The layout of keys and values with these heads.
  Layout layout() const {
    const bool are_alike = of_k_ == context_.layouts->of(inputs_.at(2), what_);
    if (!are_alike) refuse("not laid out as the values");
    std::vector<Layout::Entry> entries = of_q_.entries();
    for (auto& [axis, placement] : entries) {
      const Placement& of_k = of_k_[axis];
      if (!placement.is_shard(kHeadDim)) {
        if (of_k.is_shard(kHeadDim)) refuse("split where query heads are not");
        placement = of_k;
      } else if (!of_k.is_shard(kHeadDim) && !is_whole(of_k)) {
        refuse("neither split nor R there");
      }
    }
    return Layout(std::move(entries));
  }

 private:
  struct Heads {
    int64_t all, first, count;
  };
  static Heads heads_of(const at::Tensor& x, const Layout& layout, const Mesh& mesh) {
    const std::vector<int64_t> whole = global_shape(x.sizes().vec(), layout, mesh);
    const Box box = local_box(whole, layout, mesh);
    return {whole.at(kHeadDim), box.offset.at(kHeadDim), box.size.at(kHeadDim)};
  }
  bool is_whole(const Placement& of_k) const {
    return of_k.is_replicate() || (context_.phase == Phase::generate && of_k.is_invariant());
  }
  [[noreturn]] void refuse(const char* fact) const {
    throw LayoutError({"attention", what_,
                       fmt::format("key heads are {}, query heads {}: {}", of_k_.to_string(), of_q_.to_string(), fact),
                       context_.layouts->origin(inputs_[1]),
                       "make keys and values R on the axes that split query heads but not key and value heads"});
  }

  const ForwardContext& context_;
  const std::string& what_;
  const Tensors& inputs_;
  Layout of_q_;
  Layout of_k_;
  Heads q_;
  Heads k_;
};

/// By name of the core; missing: it has all heads.
using Known = std::map<std::string, KvHeads>;

Tensors take(Known& known, const Mesh& mesh, const std::string& what, Tensors inputs, const ForwardContext& context,
             const Next& next) {
  if (context.layouts == nullptr) {
    if (const auto heads = known.find(what); heads != known.end()) {
      for (const size_t i : {1, 2}) inputs.at(i) = taken(inputs[i], heads->second);
    }
    return next(std::move(inputs), context);
  }
  const Finding finding(inputs, mesh, context, what);
  if (finding.has_all()) return next(std::move(inputs), context);
  const Layout layout = finding.layout();
  const KvHeads heads = finding.heads();
  for (const size_t i : {1, 2}) {
    const std::string origin = "the heads in use of " + context.layouts->origin(inputs[i]);
    inputs[i] = taken(inputs[i], heads);
    context.layouts->set(inputs[i], layout, origin);
  }
  known[what] = heads;
  return next(std::move(inputs), context);
}

}  // namespace

KvHeads kv_heads_of(int64_t first, int64_t count, int64_t group) {
  if (count == 0) return {};
  std::vector<int64_t> each;
  for (int64_t i = 0; i < count; ++i) each.push_back((first + i) / group);
  const int64_t used = each.back() - each.front() + 1;
  bool is_even = count % used == 0;
  for (int64_t i = 0; i < count; ++i) is_even &= each[static_cast<size_t>(i)] == each.front() + i * used / count;
  if (is_even) return {.first = each.front(), .count = used};
  return {.each = std::move(each)};
}

Around kv_heads(const Mesh& mesh) {
  return [mesh, known = std::make_shared<Known>()](Module& module, Tensors inputs, const ForwardContext& context,
                                                   const Next& next) {
    return take(*known, mesh, module.name(), std::move(inputs), context, next);
  };
}

}  // namespace caravan
