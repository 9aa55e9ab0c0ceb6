#include "caravan/mesh/layout.h"

#include <algorithm>
#include <ostream>
#include <set>

#include "caravan/base/error.h"
#include "caravan/base/text.h"

namespace caravan {
namespace {

void check_names(const std::vector<Layout::Entry>& entries) {
  for (size_t i = 0; i < entries.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (entries[i].first != entries[j].first) continue;
      throw LayoutError(
          {"layout", "", "axis " + entries[i].first + " is placed twice", "",
           "place each axis once: " + entries[j].second.to_string() + " or " + entries[i].second.to_string()});
    }
  }
}

auto find(const std::vector<Layout::Entry>& entries, std::string_view axis) {
  return std::find_if(entries.begin(), entries.end(), [&](const auto& entry) { return entry.first == axis; });
}

}  // namespace

Layout::Layout(std::initializer_list<Entry> entries) : entries_(entries) { check_names(entries_); }

Layout::Layout(std::vector<Entry> entries) : entries_(std::move(entries)) { check_names(entries_); }

Layout Layout::all(const Mesh& mesh, const Placement& placement) { return Layout{}.completed(mesh, placement); }

const Placement& Layout::operator[](std::string_view axis) const {
  const auto entry = find(entries_, axis);
  if (entry != entries_.end()) return entry->second;
  throw LayoutError({"layout", empty() ? "(empty)" : to_string(), "has no placement for axis " + std::string(axis), "",
                     "place the axis, e.g. " + std::string(axis) + "=I, or complete the layout with its mesh"});
}

bool Layout::has(std::string_view axis) const noexcept { return find(entries_, axis) != entries_.end(); }

std::vector<std::string> Layout::sharding(int dim) const {
  std::vector<std::string> axes;
  for (const auto& [axis, placement] : entries_) {
    if (placement.is_shard(dim)) axes.push_back(axis);
  }
  return axes;
}

Layout Layout::moved(std::string_view axis, const Placement& to) const {
  if ((*this)[axis] == to) return *this;
  Layout result = *this;
  auto entry = result.entries_.begin() + (find(entries_, axis) - entries_.begin());
  entry->second = to;
  // An axis that starts to shard a dim becomes its minor axis, so it moves behind the axes that already shard the dim.
  const bool must_move_back = to.is_shard() && std::any_of(entry + 1, result.entries_.end(), [&](const Entry& later) {
                                return later.second.is_shard(to.dim());
                              });
  if (must_move_back) std::rotate(entry, entry + 1, result.entries_.end());
  return result;
}

Layout Layout::completed(const Mesh& mesh, const Placement& placement) const {
  std::set<std::string> placed;  // of the axes listed by the mesh: a layout may name others that are made of them
  for (const auto& [axis, its_placement] : entries_) {
    placed.insert(axis);
    if (!mesh.has(axis)) continue;
    const std::vector<std::string>& listed = mesh.made_of(axis);
    placed.insert(listed.begin(), listed.end());
  }
  Layout result = *this;
  for (const MeshAxis& axis : mesh.axes()) {
    if (!placed.contains(axis.name())) result.entries_.emplace_back(axis.name(), placement);
  }
  return result;
}

Layout Layout::dual() const {
  Layout result = *this;
  for (auto& [axis, placement] : result.entries_) placement = caravan::dual(placement);
  return result;
}

std::ostream& operator<<(std::ostream& stream, const Layout& layout) { return stream << layout.to_string(); }

std::string Layout::to_string() const {
  std::vector<std::string> parts;
  for (const auto& [axis, placement] : entries_) parts.push_back(axis + "=" + placement.to_string());
  return join(parts, " ");
}

bool Layout::operator==(const Layout& other) const noexcept {
  if (entries_.size() != other.entries_.size()) return false;
  for (auto mine = entries_.begin(); mine != entries_.end(); ++mine) {
    const auto theirs = find(other.entries_, mine->first);
    if (theirs == other.entries_.end() || !(theirs->second == mine->second)) return false;
    if (!mine->second.is_shard()) continue;
    // Every axis that is minor to it here must be minor to it in `other`.
    for (auto minor = mine + 1; minor != entries_.end(); ++minor) {
      if (minor->second.is_shard(mine->second.dim()) && find(other.entries_, minor->first) < theirs) return false;
    }
  }
  return true;
}

}  // namespace caravan
