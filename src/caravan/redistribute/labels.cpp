#include "caravan/redistribute/labels.h"

#include <algorithm>

#include <fmt/format.h>

#include "caravan/base/error.h"

namespace caravan {
namespace {

[[noreturn]] void refuse_labels(std::string_view labels, const std::string& fact) {
  throw UsageError({"infer", "op " + std::string(labels), fact, "", "write one letter a dim, as in \"bsk,nk->bsn\""});
}

/// "b(ht)1" as {"b", "ht", ""}.
Dims dims_of(std::string_view text, std::string_view labels) {
  Dims dims;
  bool is_open = false;
  for (const char c : text) {
    if (c == '(' || c == ')') {
      if (is_open == (c == '(')) refuse_labels(labels, "has parentheses that do not match");
      is_open = c == '(';
      if (is_open) dims.emplace_back();
    } else if (is_open) {
      dims.back() += c;
    } else {
      dims.push_back(c == '1' ? "" : std::string(1, c));
    }
  }
  if (is_open) refuse_labels(labels, "has parentheses that do not match");
  return dims;
}

std::vector<Dims> tensors_of(std::string_view text, std::string_view labels) {
  std::vector<Dims> tensors;
  for (size_t comma = text.find(','); comma != text.npos; comma = text.find(',')) {
    tensors.push_back(dims_of(text.substr(0, comma), labels));
    text.remove_prefix(comma + 1);
  }
  tensors.push_back(dims_of(text, labels));
  return tensors;
}

std::string all_labels(const std::vector<Dims>& tensors, std::string_view labels) {
  std::string all;
  for (const Dims& dims : tensors) {
    std::string own;
    for (const std::string& dim : dims) own += dim;
    for (size_t i = 0; i < own.size(); ++i) {
      if (own.find(own[i], i + 1) != own.npos) {
        refuse_labels(labels, fmt::format("names '{}' twice in one operand", own[i]));
      }
    }
    all += own;
  }
  return all;
}

int64_t extent_in(const std::map<char, int64_t>& extents, char label) {
  const auto found = extents.find(label);
  return found == extents.end() ? -1 : found->second;
}

AxisPlace place_in(const AxisPlaces& places, const std::string& axis) {
  const auto found = places.find(axis);
  return found == places.end() ? AxisPlace{0, 0} : found->second;
}

/// Elements of the labels before position `at`, or from it on.
int64_t product_of(const std::string& dim, size_t begin, size_t end, const std::map<char, int64_t>& extents) {
  int64_t product = 1;
  for (size_t i = begin; i < end; ++i) product *= extent_in(extents, dim[i]);
  return product;
}

/// The shard as one of label dim[at], if its parts hold whole elements of that label.
std::optional<Cut> cut_at(const Placement& shard, const std::string& dim, size_t at,
                          const std::map<char, int64_t>& local, int n) {
  const int64_t before = product_of(dim, 0, at, local);
  const int64_t inner = product_of(dim, at + 1, dim.size(), local);
  const int64_t extent = extent_in(local, dim[at]);
  if (before <= 0 || inner <= 0 || shard.blocks() % before != 0) return std::nullopt;
  const auto blocks = static_cast<int>(shard.blocks() / before);
  if (extent < 0 || extent % blocks != 0 || (extent == 1 && dim.size() > 1)) return std::nullopt;
  Cut cut{Cut::Kind::label, dim[at], {}, blocks, shard.owner(), -1};
  if (shard.is_even() && (n == 0 || extent / blocks % n != 0)) return std::nullopt;
  for (const int64_t size : shard.sizes()) {
    if (size % inner != 0) return std::nullopt;
    cut.sizes.push_back(size / inner);
  }
  if (shard.owner_rows() >= 0) cut.rows = shard.owner_rows() / inner;
  return cut;
}

/// `uneven`: labels whose parts differ between ranks, which must all find the same cut.
Cut shard_cut(const Placement& shard, const std::string& dim, const std::map<char, int64_t>& local, int n,
              const std::string& uneven) {
  if (dim.size() == 1) {
    return {Cut::Kind::label, dim[0], shard.sizes(), shard.blocks(), shard.owner(), shard.owner_rows()};
  }
  if (dim.find_first_of(uneven) != std::string::npos) return {Cut::Kind::between};
  for (size_t at = 0; at < dim.size(); ++at) {
    if (auto cut = cut_at(shard, dim, at, local, n)) return *cut;
  }
  return {Cut::Kind::between};
}

/// Elements of the label on this rank after the cut; -1 if they are not known.
int64_t part_of(const Cut& cut, int64_t extent, const AxisPlace& place) {
  if (extent < 0 || place.size == 0) return -1;
  if (cut.owner >= 0) return cut.owner == place.coord ? extent : 0;
  if (!cut.sizes.empty()) return cut.sizes[place.coord] * cut.blocks;
  return extent / place.size;
}

/// The placement that cuts position `at` of dim number `index`; nothing if its sizes would depend on the rank.
std::optional<Placement> placement_of(const Cut& cut, int index, const std::string& dim, size_t at,
                                      const std::map<char, int64_t>& local, const std::string& uneven) {
  if (dim.size() == 1) return Shard{index, cut.sizes, cut.owner, cut.rows, cut.blocks};
  const auto depends = [&](size_t begin, size_t end) {
    return std::any_of(dim.begin() + static_cast<int64_t>(begin), dim.begin() + static_cast<int64_t>(end),
                       [&](char label) { return uneven.find(label) != uneven.npos; });
  };
  if (depends(0, at) || (depends(at + 1, dim.size()) && (!cut.sizes.empty() || cut.rows >= 0))) return std::nullopt;
  const int64_t before = product_of(dim, 0, at, local);
  const int64_t inner = product_of(dim, at + 1, dim.size(), local);
  if (before <= 0 || inner < 0) return std::nullopt;
  if (cut.owner >= 0 && before * cut.blocks > 1) return std::nullopt;
  Shard shard{index, {}, cut.owner, cut.rows < 0 ? -1 : cut.rows * inner, static_cast<int>(before * cut.blocks)};
  for (const int64_t size : cut.sizes) shard.sizes.push_back(size * inner);
  return Placement(std::move(shard));
}

}  // namespace

LabelledOp::LabelledOp(const OpType& type, size_t num_operands)
    : text(type.labels), whole(type.whole), terms(type.terms), extents(type.extents) {
  const std::string_view labels = type.labels;
  const size_t arrow = labels.find("->");
  if (arrow == labels.npos) refuse_labels(labels, "has no \"->\"");
  inputs = tensors_of(labels.substr(0, arrow), labels);
  outputs = tensors_of(labels.substr(arrow + 2), labels);
  if (num_operands == 0 && arrow == 0) inputs.clear();
  if (inputs.size() != num_operands) {
    refuse_labels(labels, fmt::format("has {} operands, {} were given", inputs.size(), num_operands));
  }
  const std::string known = all_labels(inputs, labels);
  for (const char label : all_labels(outputs, labels)) {
    if (known.find(label) != known.npos || whole.find(label) != whole.npos) continue;
    refuse_labels(labels, fmt::format("makes '{}' from nothing", label));
  }
}

std::optional<std::pair<int, int>> position_of(const Dims& dims, char label) {
  for (size_t dim = 0; dim < dims.size(); ++dim) {
    const size_t at = dims[dim].find(label);
    if (at != std::string::npos) return std::pair(static_cast<int>(dim), static_cast<int>(at));
  }
  return std::nullopt;
}

bool Cut::operator==(const Cut& other) const noexcept {
  return kind == other.kind && label == other.label && sizes == other.sizes && blocks == other.blocks &&
         owner == other.owner;
}

AxisPlaces places_of(const Mesh& mesh) {
  AxisPlaces places;
  for (const std::string& name : mesh.names()) {
    if (mesh.has(name)) places.emplace(name, AxisPlace{mesh[name].size(), mesh[name].coord()});
  }
  return places;
}

std::vector<AxisCut> cuts_of(const Layout& layout, const Dims& dims, const std::map<char, int64_t>& extents,
                             const AxisPlaces& places) {
  std::vector<AxisCut> cuts;
  std::map<char, int64_t> local = extents;
  std::string uneven;
  for (const auto& [axis, placement] : layout.entries()) {
    Cut cut;
    if (placement.is_invariant()) cut.kind = Cut::Kind::invariant;
    if (placement.is_partial()) cut.kind = Cut::Kind::partial;
    if (placement.is_shard()) {
      const AxisPlace place = place_in(places, axis);
      cut = shard_cut(placement, dims[placement.dim()], local, place.size, uneven);
      if (cut.is_label()) local[cut.label] = part_of(cut, extent_in(local, cut.label), place);
      if (!cut.sizes.empty() || cut.owner >= 0) uneven += cut.label;
    }
    cuts.push_back({axis, std::move(cut)});
  }
  return cuts;
}

std::optional<Layout> layout_of(std::span<const AxisCut> cuts, const Dims& dims, const std::map<char, int64_t>& extents,
                                const AxisPlaces& places) {
  std::vector<Layout::Entry> entries;
  std::map<char, int64_t> local = extents;
  std::string uneven;
  for (size_t index = 0; index < dims.size(); ++index) {
    const std::string& dim = dims[index];
    for (size_t at = dim.size(); at-- > 0;) {  // the axes of the fastest label are the major ones
      for (const auto& [axis, cut] : cuts) {
        if (!cut.is_label() || cut.label != dim[at]) continue;
        const auto placement = placement_of(cut, static_cast<int>(index), dim, at, local, uneven);
        if (!placement) return std::nullopt;
        entries.emplace_back(axis, *placement);
        local[dim[at]] = part_of(cut, extent_in(local, dim[at]), place_in(places, axis));
        if (!cut.sizes.empty() || cut.owner >= 0) uneven += dim[at];
      }
    }
  }
  for (const auto& [axis, cut] : cuts) {
    if (cut.kind == Cut::Kind::replicate) entries.emplace_back(axis, Replicate{});
    if (cut.kind == Cut::Kind::invariant) entries.emplace_back(axis, Invariant{});
    if (cut.is_partial()) entries.emplace_back(axis, Partial{});
    if (cut.kind == Cut::Kind::between) return std::nullopt;
    if (cut.is_label() && !has_label(dims, cut.label)) return std::nullopt;
  }
  return Layout(std::move(entries));
}

}  // namespace caravan
