#include "caravan/mesh/placement.h"

#include <algorithm>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/mesh/fit.h"

namespace caravan {

Placement::Placement(Shard shard) : kind_(Kind::shard), shard_(std::move(shard)) {
  std::string fact;
  std::string action;
  if (shard_.dim < 0) {
    fact = fmt::format("dim {} is negative", shard_.dim);
    action = "count dims from 0: the last dim of a tensor is its number of dims - 1";
  } else if (std::any_of(shard_.sizes.begin(), shard_.sizes.end(), [](int64_t size) { return size < 0; })) {
    fact = "a size is negative";
    action = "give the rows of each coordinate, 0 or more";
  } else if (shard_.owner < -1) {
    fact = fmt::format("owner {} is not a coordinate", shard_.owner);
    action = "use a coordinate of the axis, or -1 for no owner";
  } else if (shard_.owner >= 0 && !shard_.sizes.empty()) {
    fact = "has sizes and an owner";
    action = "give only one of them";
  } else if (shard_.rows < -1 || (shard_.rows >= 0 && shard_.owner < 0)) {
    fact = fmt::format("has {} rows {}", shard_.rows, shard_.owner < 0 ? "and no owner" : "on its owner");
    action = "set rows only together with an owner, to 0 or more";
  } else if (shard_.blocks < 1) {
    fact = fmt::format("has {} blocks", shard_.blocks);
    action = "use 1 or more";
  } else if (shard_.blocks > 1 && shard_.owner >= 0) {
    fact = fmt::format("has {} blocks and an owner, who holds all rows", shard_.blocks);
    action = "give only one of them";
  }
  if (fact.empty()) return;
  throw LayoutError({"placement", to_string(), fact, "", action});
}

std::vector<int64_t> Placement::split(int64_t rows, int n, const std::string& what) const {
  if (!is_shard()) {
    throw LayoutError(
        {"split", what, to_string() + " does not split a dim", "", "call it on a shard; the others hold all rows"});
  }
  if (const auto wrong = misfit(*this, rows, n, "")) {
    throw ShapeError({"split", what, wrong->fact, "", wrong->action});
  }
  return rows_of(*this, rows, n);
}

std::string Placement::to_string() const {
  switch (kind_) {
    case Kind::replicate: return "R";
    case Kind::invariant: return "I";
    case Kind::partial: return "P";
    case Kind::shard: break;
  }
  if (shard_.owner >= 0) return fmt::format("S({}; on {})", shard_.dim, shard_.owner);
  std::string text = fmt::format("S({}", shard_.dim);
  if (!shard_.sizes.empty()) text += "; " + join(std::span<const int64_t>(shard_.sizes), " ");
  if (shard_.blocks != 1) text += fmt::format("; blocks {}", shard_.blocks);
  return text + ")";
}

bool Placement::operator==(const Placement& other) const noexcept {
  return kind_ == other.kind_ && shard_.dim == other.shard_.dim && shard_.owner == other.shard_.owner &&
         shard_.sizes == other.shard_.sizes && shard_.blocks == other.shard_.blocks;
}

Placement dual(const Placement& placement) {
  if (placement.is_replicate()) return Partial{};
  if (placement.is_partial()) return Replicate{};
  return placement;
}

}  // namespace caravan
