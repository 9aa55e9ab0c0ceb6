#include "tests/redistribute/denote.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <stdexcept>

#include "caravan/base/error.h"
#include "caravan/comm/backends/shared/thread_ranks.h"

namespace caravan::testing {
namespace {

using Coords = std::vector<int>;

size_t index_of(const Axes& axes, const std::string& name) {
  const auto found = std::find_if(axes.begin(), axes.end(), [&](const AxisSize& axis) { return axis.name == name; });
  if (found == axes.end()) throw std::runtime_error("no axis " + name);
  return found - axes.begin();
}

Coords coords_of(const Axes& axes, int rank) {
  Coords coords(axes.size());
  for (size_t i = axes.size(); i-- > 0; rank /= axes[i].size) coords[i] = rank % axes[i].size;
  return coords;
}

/// Of one block.
std::vector<int64_t> rows_of_each(const Placement& shard, int64_t rows, int n) {
  if (!shard.sizes().empty()) return shard.sizes();
  std::vector<int64_t> parts(n, shard.owner() < 0 ? rows / n : 0);
  if (shard.owner() >= 0) parts[shard.owner()] = rows;
  if (std::accumulate(parts.begin(), parts.end(), int64_t{0}) != rows) throw std::runtime_error("does not divide");
  return parts;
}

std::vector<at::Tensor> blocks_of(const at::Tensor& x, const Placement& shard) {
  const std::vector<int64_t> sizes(shard.blocks(), x.size(shard.dim()) / shard.blocks());
  if (sizes[0] * shard.blocks() != x.size(shard.dim())) throw std::runtime_error("no whole blocks");
  return x.split_with_sizes(sizes, shard.dim());
}

std::vector<at::Tensor> cut_blocks(const at::Tensor& x, const Placement& shard, int n) {
  std::vector<std::vector<at::Tensor>> parts(n);
  for (const at::Tensor& block : blocks_of(x, shard)) {
    const auto cuts = block.split_with_sizes(rows_of_each(shard, block.size(shard.dim()), n), shard.dim());
    for (int i = 0; i < n; ++i) parts[i].push_back(cuts[i]);
  }
  std::vector<at::Tensor> joined;
  for (const auto& of_coord : parts) joined.push_back(at::cat(of_coord, shard.dim()));
  return joined;
}

at::Tensor join_blocks(const std::vector<at::Tensor>& parts, const Placement& shard) {
  std::vector<at::Tensor> in_order;
  for (int block = 0; block < shard.blocks(); ++block) {
    for (const at::Tensor& part : parts) in_order.push_back(blocks_of(part, shard)[block]);
  }
  return at::cat(in_order, shard.dim());
}

std::vector<at::Tensor> cut(const at::Tensor& x, const Placement& placement, int n, uint64_t seed) {
  if (placement.is_shard()) return cut_blocks(x, placement, n);
  std::vector<at::Tensor> parts(n, x);
  if (!placement.is_partial()) return parts;
  for (int i = 1; i < n; ++i) {
    parts[i] = random_tensor(x.sizes(), seed * 131 + i).to(x.scalar_type());
    parts[0] = parts[0] - parts[i];
  }
  return parts;
}

at::Tensor join_parts(const std::vector<at::Tensor>& parts, const Placement& placement) {
  if (placement.is_shard()) return join_blocks(parts, placement);
  at::Tensor sum = parts[0];
  for (size_t i = 1; i < parts.size(); ++i) {
    if (placement.is_partial()) sum = sum + parts[i];
    if (placement.is_whole() && !is_close(parts[i], parts[0], 1e-9)) throw std::runtime_error("copies differ");
  }
  return sum;
}

/// The axes of a layout in the order in which they split a tensor: S and P as given, copies last (equal summands).
std::vector<Layout::Entry> cutting_order(const Layout& layout) {
  std::vector<Layout::Entry> order = layout.entries();
  std::stable_partition(order.begin(), order.end(), [](const auto& entry) { return !entry.second.is_whole(); });
  return order;
}

}  // namespace

int num_ranks(const Axes& axes) {
  return std::accumulate(axes.begin(), axes.end(), 1, [](int n, const AxisSize& axis) { return n * axis.size; });
}

int coord_of(const Axes& axes, int rank, const std::string& axis) {
  return coords_of(axes, rank)[index_of(axes, axis)];
}

Pieces no_pieces(const Axes& axes, const Layout& layout) {
  return {axes, layout, std::vector<at::Tensor>(num_ranks(axes))};
}

at::Tensor random_tensor(at::IntArrayRef shape, uint64_t seed) {
  at::Tensor x = at::empty(shape, at::kDouble);
  uint64_t state = seed * 0x9E3779B97F4A7C15ULL + 1;
  double* data = x.data_ptr<double>();
  for (int64_t i = 0; i < x.numel(); ++i) {  // splitmix64
    uint64_t z = state += 0x9E3779B97F4A7C15ULL;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    data[i] = static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1p-52 - 1;
  }
  return x;
}

Pieces from_global(const Axes& axes, const at::Tensor& x, const Layout& layout, uint64_t seed) {
  std::map<Coords, at::Tensor> blocks{{Coords{}, x.detach()}};
  std::vector<std::string> names;
  for (const auto& [axis, placement] : cutting_order(layout)) {
    std::map<Coords, at::Tensor> finer;
    for (const auto& [coords, block] : blocks) {
      const int n = axes[index_of(axes, axis)].size;
      const auto parts = cut(block, placement, n, ++seed);
      for (int i = 0; i < n; ++i) {
        Coords longer = coords;
        longer.push_back(i);
        finer[longer] = parts[i];
      }
    }
    blocks = std::move(finer);
    names.push_back(axis);
  }
  Pieces pieces = no_pieces(axes, layout);
  for (int rank = 0; rank < num_ranks(axes); ++rank) {
    Coords coords;
    for (const std::string& name : names) coords.push_back(coord_of(axes, rank, name));
    pieces.local[rank] = blocks[coords].clone(at::MemoryFormat::Contiguous);
  }
  return pieces;
}

at::Tensor to_global(const Pieces& pieces) {
  auto order = cutting_order(pieces.layout);
  std::map<Coords, at::Tensor> blocks;
  for (int rank = 0; rank < num_ranks(pieces.axes); ++rank) {
    Coords coords;
    for (const auto& entry : order) coords.push_back(coord_of(pieces.axes, rank, entry.first));
    blocks[coords] = pieces.local[rank].detach();
  }
  for (; !order.empty(); order.pop_back()) {
    std::map<Coords, std::vector<at::Tensor>> groups;  // ordered by the last coordinate, like the map
    for (const auto& [coords, block] : blocks) groups[Coords(coords.begin(), coords.end() - 1)].push_back(block);
    blocks.clear();
    for (const auto& [coords, parts] : groups) blocks[coords] = join_parts(parts, order.back().second);
  }
  return blocks.begin()->second;
}

at::Tensor try_to_global(const Pieces& pieces) {
  try {
    return to_global(pieces);
  } catch (const std::exception&) {  // copies that differ, or torch: shapes that do not fit
    return {};
  }
}

Pieces gradients(const Pieces& pieces) {
  Pieces result{pieces.axes, pieces.layout.dual(), {}};
  for (const at::Tensor& x : pieces.local) result.local.push_back(x.grad().defined() ? x.grad() : at::zeros_like(x));
  return result;
}

Pieces leaves(const Pieces& pieces) {
  Pieces result{pieces.axes, pieces.layout, {}};
  for (const at::Tensor& x : pieces.local) result.local.push_back(x.detach().clone().requires_grad_());
  return result;
}

double pairing(const Pieces& x, const Pieces& g) {
  double total = 0;
  for (int rank = 0; rank < num_ranks(x.axes); ++rank) {
    const bool counts = std::all_of(x.layout.entries().begin(), x.layout.entries().end(), [&](const auto& entry) {
      return !entry.second.is_invariant() || coord_of(x.axes, rank, entry.first) == 0;
    });
    if (counts) total += (x.local[rank].detach() * g.local[rank].detach()).sum().template item<double>();
  }
  return total;
}

bool is_close(const at::Tensor& a, const at::Tensor& b, double tolerance) {
  if (!a.defined() || !b.defined() || a.sizes() != b.sizes()) return false;
  if (a.numel() == 0) return true;
  const at::Tensor x = a.detach().to(at::kDouble);
  const at::Tensor y = b.detach().to(at::kDouble);
  return (x - y).abs().max().item<double>() <= tolerance * (1 + y.abs().max().item<double>());
}

double ratio(const at::Tensor& a, const at::Tensor& b) {
  const double k = (a * b).sum().item<double>() / (b * b).sum().item<double>();
  return is_close(a, k * b, 1e-9) ? k : 0;
}

void on_mesh(const Axes& axes, const std::function<void(const Mesh&)>& body) {
  CommOptions options;
  options.timeout = std::chrono::seconds(30);
  run_thread_ranks(
      num_ranks(axes), [&](const std::shared_ptr<Communicator>& world) { body(Mesh::create(world, axes)); }, options);
}

bool is_refused(const std::function<void()>& body) {
  try {
    body();
  } catch (const LayoutError&) {
    return true;
  }
  return false;
}

}  // namespace caravan::testing
