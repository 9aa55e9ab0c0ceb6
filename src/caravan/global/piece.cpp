#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include <ATen/core/TensorBase.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/intrusive_ptr.h>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/global/leaf_gradients.h"
#include "caravan/global/op_info.h"
#include "caravan/global/state.h"
#include "caravan/mesh/fit.h"
#include "caravan/redistribute/redistribute.h"

namespace caravan {
namespace {

/// Dense strides in the order in which the piece lies in memory, so that what asks for a contiguous tensor gets one.
/// Dims that the piece repeats (stride 0) are repeated here too. All ranks must get the same ones, as autograd chooses
/// by them: so a dim of which this piece has one row counts by its stride, which says little to a piece alone.
Strides strides_like(const at::Tensor& piece, at::IntArrayRef sizes) {
  const auto strides = piece.strides();
  Strides order;
  for (int64_t dim = 0; dim < piece.dim(); ++dim) {
    if (strides[dim] != 0 || piece.size(dim) <= 1) order.push_back(dim);
  }
  for (size_t i = 1; i < order.size(); ++i) {  // std::stable_sort allocates
    for (size_t k = i; k > 0 && strides[order[k - 1]] < strides[order[k]]; --k) std::swap(order[k - 1], order[k]);
  }
  return dense_strides(sizes, order);
}

Strides row_major(at::IntArrayRef sizes) {
  Strides order(sizes.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  return dense_strides(sizes, order);
}

/// Shards first, by dim, then the other axes in the order of the mesh: equal layouts get equal texts.
Layout in_order(const Layout& layout, const std::vector<std::string>& axes) {
  int num_dims = 0;
  for (const auto& [axis, placement] : layout.entries()) {
    if (placement.is_shard()) num_dims = std::max(num_dims, placement.dim() + 1);
  }
  std::vector<Layout::Entry> entries;
  for (int dim = 0; dim < num_dims; ++dim) {
    for (const std::string& axis : layout.sharding(dim)) entries.emplace_back(axis, layout[axis]);
  }
  for (const std::string& axis : axes) {
    if (!layout[axis].is_shard()) entries.emplace_back(axis, layout[axis]);
  }
  return Layout(std::move(entries));
}

c10::DispatchKey key_of(const at::Device& device) {
  if (device.is_cuda()) return c10::DispatchKey::CUDA;
  return device.is_meta() ? c10::DispatchKey::Meta : c10::DispatchKey::CPU;
}

}  // namespace

size_t KeyHash::operator()(std::span<const int64_t> key) const noexcept {
  uint64_t hash = 0x9e3779b97f4a7c15ULL;
  for (const int64_t value : key) {
    hash ^= static_cast<uint64_t>(value);
    hash *= 0xff51afd7ed558ccdULL;
    hash ^= hash >> 32;
  }
  return hash;
}

GlobalState::GlobalState(Mesh mesh, const GlobalOptions& options)
    : mesh_(std::move(mesh)),
      options_(options),
      places_(places_of(mesh_)),
      drawn_{.seed = options.seed, .calls = 0},
      gradients_(std::make_unique<LeafGradients>()) {
  for (const MeshAxis& axis : mesh_.axes()) {
    const auto& given = options.axes;
    if (given.empty() || std::ranges::find(given, axis.name()) != given.end()) axes_.push_back(axis.name());
  }
  whole_ = intern(completed({}));
}

GlobalState::~GlobalState() = default;

OpInfo& GlobalState::op_info(const c10::OperatorHandle& op) {
  std::unique_ptr<OpInfo>& info = ops_[&op.schema()];
  if (info == nullptr) info = std::make_unique<OpInfo>(op);
  return *info;
}

void GlobalState::count_whole(const std::string& op, const std::string& why, int64_t bytes) {
  WholeOp& entry = whole_ops_[op + " " + why];
  entry.op = op;
  entry.why = why;
  ++entry.calls;
  entry.bytes += bytes;
}

std::vector<WholeOp> GlobalState::whole_ops() const {
  std::vector<WholeOp> all;
  for (const auto& [key, entry] : whole_ops_) all.push_back(entry);
  return all;
}

std::string GlobalState::report() const {
  std::string text;
  for (const auto& [key, entry] : whole_ops_) {
    text += fmt::format("{:<40} {:>6} calls {:>12} bytes more  {}\n", entry.op, entry.calls, entry.bytes, entry.why);
  }
  return text;
}

bool is_absent_axis(const Mesh& mesh, std::string_view axis) {
  static constexpr std::array<std::string_view, 5> kOfSession{"dp", "pp", "ep", "cp", "tp"};
  return !mesh.has(axis) && std::ranges::find(kOfSession, axis) != kOfSession.end();
}

void GlobalState::check_axes(const std::vector<std::string>& axes, std::string_view what) const {
  for (const std::string& axis : axes) {
    if (is_absent_axis(mesh_, axis)) continue;
    mesh_[axis];  // throws, naming those of the mesh
    if (std::ranges::find(axes_, axis) != axes_.end()) continue;
    throw UsageError({std::string(what.empty() ? "global" : what), "axis " + axis,
                      "is not among the axes of this context: each coordinate on it has tensors of its own",
                      mesh_.where(),
                      "use " + join(axes_) + ", or make the context with this axis (GlobalOptions::axes)"});
  }
}

Layout GlobalState::completed(const Layout& layout) const {
  std::vector<Layout::Entry> entries = layout.entries();
  std::erase_if(entries, [&](const Layout::Entry& entry) { return is_absent_axis(mesh_, entry.first); });
  if (options_.axes.empty()) return Layout(std::move(entries)).completed(mesh_, Replicate{});
  for (const std::string& axis : axes_) {
    if (!layout.has(axis)) entries.emplace_back(axis, Replicate{});
  }
  return Layout(std::move(entries));
}

const Placed* GlobalState::intern(const Layout& given) {
  const Layout layout = in_order(given, axes_);
  std::string text = layout.to_string();
  const auto found = layouts_.find(text);
  if (found != layouts_.end()) return found->second.get();
  auto placed = std::make_unique<Placed>(Placed{layout, true});
  for (const auto& [axis, placement] : layout.entries()) {
    placed->is_whole &= placement.is_replicate();
    placed->is_even &= !placement.is_shard() || placement.is_even();
  }
  return layouts_.emplace(std::move(text), std::move(placed)).first->second.get();
}

const Placed* GlobalState::placed(const Layout& layout, const std::vector<int64_t>& sizes, std::string_view what) {
  std::vector<Layout::Entry> entries;
  std::vector<int64_t> local = sizes;
  std::vector<bool> is_uneven(sizes.size(), false);
  std::vector<std::string> named;
  for (const auto& [axis, placement] : layout.entries()) named.push_back(axis);
  check_axes(named, what);
  const Layout complete = completed(layout);
  for (const auto& [axis, placement] : complete.entries()) {
    const int n = mesh_[axis].size();
    if (n == 1 && !(placement.is_shard() &&
                    placement.dim() >= static_cast<int>(sizes.size()))) {  // nothing is cut, and no op needs to know
      entries.emplace_back(axis, Replicate{});
      continue;
    }
    if (!placement.is_shard() || placement.dim() >= static_cast<int>(sizes.size())) {
      entries.emplace_back(axis, placement.is_invariant() ? Placement(Replicate{}) : placement);
      continue;
    }
    const int dim = placement.dim();
    Shard shard{dim, placement.sizes(), placement.owner(), placement.owner_rows(), placement.blocks()};
    const int64_t rows = local[dim] / std::max(1, shard.blocks);
    const bool fits = shard.blocks <= 1 || local[dim] % shard.blocks == 0;
    if (placement.is_even() && fits && (rows % n != 0 || is_uneven[dim])) shard.sizes = parts_of(rows, n);
    is_uneven[dim] = is_uneven[dim] || !shard.sizes.empty() || shard.owner >= 0;
    if (const auto wrong = misfit(shard, local[dim], n, axis)) {
      throw ShapeError({"global",
                        fmt::format("{} {}", what.empty() ? "tensor" : what, shape_text(sizes.data(), sizes.size())),
                        wrong->fact, mesh_.where() + ", layout " + layout.to_string(), wrong->action});
    }
    local[dim] = rows_of(shard, local[dim], n)[mesh_[axis].coord()];
    entries.emplace_back(axis, std::move(shard));
  }
  const Layout result(std::move(entries));
  for (const auto& [axis, placement] : result.entries()) {
    if (!placement.is_shard() || placement.dim() < static_cast<int>(sizes.size())) continue;
    throw LayoutError(
        {"global", fmt::format("{} {}", what.empty() ? "tensor" : what, shape_text(sizes.data(), sizes.size())),
         fmt::format("axis {} is {}, but there are {} dims", axis, placement.to_string(), sizes.size()), mesh_.where(),
         sizes.empty() ? "a scalar cannot be sharded: use R or P"
                       : fmt::format("shard a dim from 0 to {}", sizes.size() - 1)});
  }
  return intern(result);
}

at::Tensor wrap_piece(const at::Tensor& piece, at::IntArrayRef sizes, const Placed* placed,
                      const std::shared_ptr<GlobalState>& state, at::IntArrayRef given) {
  const at::Device device = piece.device();
  const auto keys = c10::DispatchKeySet(key_of(device)).add(kGlobalKey);
  auto impl = c10::make_intrusive<c10::TensorImpl>(keys, piece.dtype(), device);
  Strides strides(given.begin(), given.end());
  if (given.size() != sizes.size()) strides = placed->is_even ? strides_like(piece, sizes) : row_major(sizes);
  impl->set_sizes_and_strides(sizes, strides);
  impl->release_storage_and_set_meta_custom_data_ptr_error_msg_("use full(t)");  // short enough to allocate nothing
  impl->set_backend_meta(c10::make_intrusive<PieceMeta>(piece, placed, state));
  return at::Tensor(std::move(impl));
}

Strides dense_strides(at::IntArrayRef sizes, at::IntArrayRef order) {
  Strides strides(sizes.size(), 0);
  int64_t stride = 1;
  for (size_t i = order.size(); i-- > 0;) {
    strides[order[i]] = stride;
    stride *= std::max<int64_t>(sizes[order[i]], 1);
  }
  return strides;
}

at::Tensor moved_piece(const PieceMeta& meta, const Placed* to, std::string_view what) {
  if (meta.placed == to) return meta.piece;
  const auto moved = [&](const at::Tensor& piece) {
    at::Tensor result = redistribute(piece, meta.placed->layout, to->layout, meta.state->mesh(), Call(what));
    // Kernels take for granted what their callers make contiguous: a slice of it must be so too.
    return piece.is_contiguous() ? result.contiguous() : result;
  };
  const at::ScalarType dtype = meta.piece.scalar_type();
  // What communicators do not take is sent as what they do.
  if (meta.piece.is_complex()) return at::view_as_complex(moved(at::view_as_real(meta.piece.resolve_conj())));
  if (dtype == at::kChar || dtype == at::kShort) return moved(meta.piece.to(at::kInt)).to(dtype);
  return moved(meta.piece);
}

std::shared_ptr<ViewOrigin> origin_of(const at::Tensor& base, const at::Tensor& moved, const Placed* placed) {
  const PieceMeta& meta = *meta_of(base);
  auto origin = std::make_shared<ViewOrigin>();
  for (const auto& [axis, placement] : meta.placed->layout.entries()) {
    if (placement.is_partial() || placed->layout[axis].is_partial()) return origin;
  }
  origin->base.emplace(base.unsafeGetTensorImpl()->get_backend_meta_intrusive_ptr());
  origin->num_writes = meta.num_writes;
  origin->num_all_writes = meta.state->num_writes();
  origin->moved = moved;
  origin->placed = placed;
  return origin;
}

bool is_current(const PieceMeta& view) {
  if (view.origin == nullptr || !view.origin->base) return true;
  const auto kept = view.origin->base->lock();
  if (!kept) return true;
  const auto& base = static_cast<const PieceMeta&>(*kept);
  return base.num_writes == view.origin->num_writes && is_current(base);
}

bool may_write(const PieceMeta& view) {
  if (view.origin == nullptr) return true;
  if (!view.origin->base || view.origin->num_all_writes != view.state->num_writes()) return false;
  const auto kept = view.origin->base->lock();
  return !kept || may_write(static_cast<const PieceMeta&>(*kept));
}

void write_to_origin(PieceMeta& view) {
  if (view.origin == nullptr) return;
  ViewOrigin& origin = *view.origin;
  origin.num_all_writes = view.state->num_writes();
  const auto kept = origin.base ? origin.base->lock() : nullptr;
  if (!kept) return;
  auto& base = static_cast<PieceMeta&>(*kept);
  const PieceMeta moved(origin.moved, origin.placed, view.state);
  base.piece.copy_(moved_piece(moved, base.placed, "write to a view"));
  origin.num_writes = ++base.num_writes;
  write_to_origin(base);
}

std::vector<int64_t> sizes_of(const at::Tensor& piece, const Placed* placed, const GlobalState& state) {
  return global_shape(piece.sizes().vec(), placed->layout, state.mesh());
}

}  // namespace caravan
