#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/SmallVector.h>

#include "caravan/global/context.h"
#include "caravan/mesh/mesh.h"
#include "caravan/redistribute/labels.h"

namespace caravan {

struct OpInfo;
struct Solution;
class LeafGradients;

/// Whether a layout may name this axis although the mesh does not have it: an axis of SessionOptions whose size is 1,
/// so that a program runs with any sizes.
bool is_absent_axis(const Mesh& mesh, std::string_view axis);

/// A layout on every axis of the mesh, kept once, so that equal layouts are equal pointers.
struct Placed {
  Layout layout;        ///< R, S and P, on every axis
  bool is_whole;        ///< R on every axis
  bool is_even = true;  ///< all ranks have pieces of the same sizes
};

struct KeyHash {
  using is_transparent = void;
  size_t operator()(std::span<const int64_t> key) const noexcept;
};
struct KeyEqual {
  using is_transparent = void;
  bool operator()(std::span<const int64_t> a, std::span<const int64_t> b) const noexcept {
    return std::equal(a.begin(), a.end(), b.begin(), b.end());
  }
};
/// By what a choice depends on: layouts, sizes, ints.
using Solutions = std::unordered_map<std::vector<int64_t>, std::shared_ptr<const Solution>, KeyHash, KeyEqual>;

/// What one rank keeps for its global tensors, which keep it alive. Used by one thread at a time: the rank's own, or
/// that of its backward pass.
class GlobalState : public std::enable_shared_from_this<GlobalState> {
 public:
  GlobalState(Mesh mesh, const GlobalOptions& options);
  ~GlobalState();

  const Mesh& mesh() const noexcept { return mesh_; }
  const GlobalOptions& options() const noexcept { return options_; }
  const std::vector<std::string>& axes() const noexcept { return axes_; }
  const AxisPlaces& places() const noexcept { return places_; }

  /// `layout` completed by R, with I as R, even shards where rows divide and balanced sizes where they do not. A second
  /// axis that cannot cut parts of different sizes evenly is R. Throws LayoutError and ShapeError as local_boxes.
  const Placed* placed(const Layout& layout, const std::vector<int64_t>& sizes, std::string_view what);
  /// Throws UsageError, as `what`, for an axis that global tensors of this context do not know, naming those they do.
  void check_axes(const std::vector<std::string>& axes, std::string_view what) const;
  /// With R on the axes that it does not name.
  Layout completed(const Layout& layout) const;
  /// The one of this layout, which is complete.
  const Placed* intern(const Layout& layout);
  const Placed* whole() const noexcept { return whole_; }

  OpInfo& op_info(const c10::OperatorHandle& op);
  /// Called with each op and how it runs, before it does: for tests.
  using Watcher = std::function<void(const OpInfo&, const Solution&)>;
  void watch(Watcher watcher) { watcher_ = std::move(watcher); }
  void tell(const OpInfo& op, const Solution& solution) const {
    if (watcher_) watcher_(op, solution);
  }

  /// By what calls that draw random numbers are told apart: a seed, and how many have drawn from it.
  struct Drawn {
    uint64_t seed = 0;
    uint64_t calls = 0;
  };
  Drawn& drawn() noexcept { return drawn_; }
  /// Ops in place so far.
  int64_t& num_writes() noexcept { return num_writes_; }
  /// Whether ranks compare the value of the next distribute(): of all in check mode, else of the first ones.
  bool compares_next() noexcept { return options_.checks_plain || num_distributed_++ < kNumCompared; }
  LeafGradients& gradients() noexcept { return *gradients_; }

  /// Counts what context.report() tells.
  void count_whole(const std::string& op, const std::string& why, int64_t bytes);
  std::string report() const;
  std::vector<WholeOp> whole_ops() const;
  void clear_report() { whole_ops_.clear(); }

 private:
  Mesh mesh_;
  GlobalOptions options_;
  std::vector<std::string> axes_;
  AxisPlaces places_;
  std::map<std::string, std::unique_ptr<Placed>, std::less<>> layouts_;
  const Placed* whole_;
  std::unordered_map<const void*, std::unique_ptr<OpInfo>> ops_;  // by the address of the schema
  std::map<std::string, WholeOp> whole_ops_;
  static constexpr int kNumCompared = 8;
  int num_distributed_ = 0;
  int64_t num_writes_ = 0;
  Drawn drawn_;
  std::unique_ptr<LeafGradients> gradients_;
  Watcher watcher_;
};

/// The all-reduce that the value of a norm or maximum still needs; see roots.h.
struct PendingRoot {
  static constexpr double kMaximum = -1;  ///< not a norm, the largest element
  double power = 0;
  uint64_t axes = 0;  ///< bits, by the order of GlobalState::axes(); 0: the value is there, a norm if power is not 0
};

struct ViewOrigin;

/// What stands behind a global tensor. Detached copies and saved variables share it.
struct PieceMeta final : c10::BackendMeta {
  PieceMeta(at::Tensor piece_, const Placed* placed_, std::shared_ptr<GlobalState> state_)
      : piece(std::move(piece_)), placed(placed_), state(std::move(state_)) {}

  at::Tensor piece;
  const Placed* placed;
  std::shared_ptr<GlobalState> state;
  PendingRoot root{};
  bool is_parameter = false;
  bool is_aliased = false;               ///< another tensor has a view of this piece
  int64_t num_writes = 0;                ///< by ops in place to this tensor, the same on all ranks
  std::shared_ptr<ViewOrigin> origin{};  ///< of a view of a piece that was moved for it; null: of no such view
};

/// The key on which global tensors dispatch: of a back-end that no build of libtorch has.
inline constexpr c10::DispatchKey kGlobalKey = c10::DispatchKey::FPGA;

inline bool is_global_impl(const c10::TensorImpl* impl) noexcept { return impl->key_set().has(kGlobalKey); }
/// Null for a plain tensor.
inline PieceMeta* meta_of(const at::Tensor& tensor) noexcept {
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  return tensor.defined() && is_global_impl(impl) ? static_cast<PieceMeta*>(impl->get_backend_meta()) : nullptr;
}

/// A global tensor of these sizes without a gradient. `strides` of the whole: empty for those of the piece where all
/// ranks have pieces of the same sizes, and else for dense ones: ATen chooses formulas by strides, so all ranks must
/// have the same, and a piece of one row does not tell in which order its dims lie.
at::Tensor wrap_piece(const at::Tensor& piece, at::IntArrayRef sizes, const Placed* placed,
                      const std::shared_ptr<GlobalState>& state, at::IntArrayRef strides = {});

using Strides = c10::SmallVector<int64_t, 6>;
/// Dense strides of a tensor whose dims lie in this order in memory, the outermost first. Dims that it lacks are
/// repeated: their stride is 0.
Strides dense_strides(at::IntArrayRef sizes, at::IntArrayRef order);
/// Dense strides of a tensor whose dims lie in memory as those of one with these strides and `rows`, so that what asks
/// for a contiguous tensor gets one. Dims that are repeated there (stride 0) are repeated here too. All ranks must get
/// the same for their pieces, as autograd chooses by them: so a dim of one row counts by its stride.
Strides strides_like(at::IntArrayRef strides, at::IntArrayRef rows, at::IntArrayRef sizes);

/// distribute() without comparing what the ranks have.
at::Tensor distributed(const at::Tensor& whole, const Layout& layout, const GlobalContext& context);

/// `layout` completed, with the sizes that the pieces of the ranks have where those differ. Collective over the axes
/// that shard. Throws ShapeError on all of them for a dim that two axes cut if the minor one cuts it unevenly.
Layout agreed_layout(const at::Tensor& piece, const Layout& layout, GlobalState& state);

/// The piece of `meta` under another layout; itself if that is the same. Collective. Not differentiable.
at::Tensor moved_piece(const PieceMeta& meta, const Placed* to, std::string_view what);

/// The sizes of the global tensor of which this rank has a piece.
std::vector<int64_t> sizes_of(const at::Tensor& piece, const Placed* placed, const GlobalState& state);

}  // namespace caravan
