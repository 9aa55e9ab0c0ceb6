#include "caravan/global/dispatch.h"

#include <numeric>
#include <optional>
#include <utility>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/SmallVector.h>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/global/call_key.h"
#include "caravan/global/creating.h"
#include "caravan/global/local_call.h"
#include "caravan/global/op_info.h"
#include "caravan/global/plain_check.h"
#include "caravan/global/planning.h"
#include "caravan/global/roots.h"
#include "caravan/global/view_origin.h"
#include "caravan/mesh/fit.h"

namespace caravan {
namespace {

using torch::jit::Stack;

/// A tensor on the stack.
struct Slot {
  at::Tensor tensor;
  PieceMeta* meta;  ///< null: plain
  int argument;
  int element;  ///< in a list; -1
};
using Slots = c10::SmallVector<Slot, 8>;

[[noreturn]] void refuse(const OpInfo& op, const std::string& fact, const std::string& action,
                         const GlobalState& state) {
  throw UsageError({"global", op.name, fact, state.mesh().where(), action});
}

/// One call of an op: its arguments on the stack, and what runs them on pieces.
class PieceCall {
 public:
  PieceCall(const c10::OperatorHandle& op, Stack& stack)
      : op_(op), stack_(stack), num_arguments_(op.schema().arguments().size()) {}

  void run() {
    collect();
    if (state_ == nullptr) {
      if (is_creating_global()) return create_or_run(op_, stack_);
      throw InternalError({"global", op_.schema().name(), "reached the dispatch of global tensors without one", "",
                           "report this with the program"});
    }
    info_ = &state_->op_info(op_);
    if (info_->parts != nullptr) return (*info_->parts)(stack_);
    if (info_->keeps_roots && keep_root(op_, info_->name, stack_)) return;
    for (const Slot& slot : slots_) {
      if (slot.meta != nullptr && slot.meta->root.power != 0) take_root(*slot.meta);
    }
    check_plain();
    const Solution& solution = find_solution();
    state_->tell(*info_, solution);
    run(solution);
  }

 private:
  c10::IValue& argument(size_t i) { return stack_[stack_.size() - num_arguments_ + i]; }

  template <typename Each>
  void for_each_tensor(const Each& each) {
    for (size_t i = 0; i < num_arguments_; ++i) {
      const c10::IValue& value = argument(i);
      if (value.isTensor()) {
        each(value.toTensor(), static_cast<int>(i), -1);
      } else if (value.isTensorList()) {
        int element = 0;
        for (const at::Tensor& tensor : value.toTensorVector()) each(tensor, static_cast<int>(i), element++);
      } else if (value.isList()) {  // of optional tensors
        int element = 0;
        for (const c10::IValue& tensor : value.toListRef()) {
          if (tensor.isTensor()) each(tensor.toTensor(), static_cast<int>(i), element);
          ++element;
        }
      }
    }
  }

  /// The tensors of the call, and the state of the global ones.
  void collect() {
    for_each_tensor([&](const at::Tensor& tensor, int argument, int element) {
      if (!tensor.defined()) return;
      PieceMeta* meta = meta_of(tensor);
      slots_.push_back({tensor, meta, argument, element});
      if (meta == nullptr) return;
      if (state_ == nullptr) state_ = meta->state;
      if (state_ == meta->state) return;
      throw UsageError(
          {"global", op_.schema().name(), "its operands belong to two contexts", state_->mesh().where(),
           "make all global tensors of a program with one GlobalContext; for parts of a net on parts of the mesh "
           "use parallelize() with pipeline()"});
    });
  }

  void check_plain() {
    const GlobalOptions& options = state_->options();
    for (const Slot& slot : slots_) {
      if (slot.meta != nullptr) {
        if (slot.meta->origin != nullptr) check_view(slot);
        continue;
      }
      if (options.is_strict && slot.tensor.numel() > 1 && !is_uniform(slot.tensor)) {
        refuse(*info_,
               fmt::format("takes a plain tensor {} beside global ones",
                           shape_text(slot.tensor.sizes().data(), slot.tensor.sizes().size())),
               "distribute() it first, or turn is_strict off: it then counts as equal on all ranks", *state_);
      }
      if (options.checks_plain && slot.tensor.numel() > 0) check_same_plain(slot.tensor, info_->name, *state_);
    }
  }

  /// A view of a tensor that was moved to make it sees nothing of later writes to that, and its own may undo others'.
  void check_view(const Slot& slot) const {
    const bool writes = info_->is_written[slot.argument];
    const bool is_alone = std::ranges::count(info_->is_written, true) == 1 && slot.element < 0;
    if (writes && at::GradMode::is_enabled() &&
        std::ranges::any_of(slots_, [](const Slot& each) { return each.tensor.requires_grad(); })) {
      refuse(*info_, "writes to a view of a tensor that was redistributed to make it, whose gradient would be lost",
             "redistribute the tensor before the view is taken, or write without a gradient", *state_);
    }
    if (is_current(*slot.meta) && (!writes || (is_alone && may_write(*slot.meta)))) return;
    refuse(*info_,
           fmt::format("{} a view of a tensor that was redistributed to make it, {}", writes ? "writes to" : "reads",
                       writes ? "so that other writes since would be lost" : "and was written since"),
           "redistribute the tensor before the view is taken, or take the view anew", *state_);
  }

  /// What zeros() and its like make in a module's forward: of one value, which is no part of anything.
  static bool is_uniform(const at::Tensor& tensor) {
    return !tensor.is_meta() && tensor.eq(tensor.flatten()[0]).all().item<bool>();
  }

  // ---- the solution ----

  CallKey key() {
    CallKey key;
    for (size_t i = 0; i < num_arguments_; ++i) add_to_key(key, info_->arguments, &argument(0), i);
    for (const Slot& slot : slots_) add_to_key(key, slot.tensor, slot.meta, slot.argument, slot.element);
    return key;
  }

  /// Lives until another call of the op is planned, which pieces do not do.
  const Solution& find_solution() {
    const CallKey key = this->key();
    const std::span<const int64_t> span(key.data(), key.size());
    if (info_->last != nullptr && KeyEqual()(info_->last->first, span)) return *info_->last->second;
    const auto found = info_->solutions.find(span);
    if (found != info_->solutions.end()) {
      info_->last = &*found;
      return *found->second;
    }
    std::vector<GlobalOperand> operands;
    for (const Slot& slot : slots_) operands.push_back(operand_of(slot));
    auto solution = plan_call(op_, *info_, &argument(0), std::move(operands), *state_);
    constexpr size_t kMostSolutions = 4096;  // of one op: sizes that never repeat must not fill the memory
    if (info_->solutions.size() >= kMostSolutions) {
      info_->last = nullptr;
      info_->solutions.clear();
    }
    info_->solutions.emplace(std::vector<int64_t>(key.begin(), key.end()), solution);
    return *solution;
  }

  GlobalOperand operand_of(const Slot& slot) const {
    GlobalOperand operand;
    operand.sizes = slot.tensor.sizes().vec();
    operand.layout = slot.meta == nullptr ? &state_->whole()->layout : &slot.meta->placed->layout;
    // Of an even piece, so that all ranks choose the same where pieces are uneven.
    int64_t parts = 1;
    for (const auto& [axis, placement] : operand.layout->entries()) {
      if (placement.is_shard()) parts *= state_->mesh()[axis].size();
    }
    operand.piece_bytes = slot.tensor.numel() * static_cast<int64_t>(slot.tensor.element_size()) / parts;
    operand.argument = slot.argument;
    operand.element = slot.element;
    operand.is_plain = slot.meta == nullptr;
    operand.is_written = info_->is_written[slot.argument];
    operand.may_move = operand.is_written && slot.meta != nullptr && !slot.meta->is_aliased && !slot.meta->is_parameter;
    operand.is_parameter = slot.meta != nullptr && slot.meta->is_parameter;
    operand.is_floating = slot.tensor.is_floating_point() || slot.tensor.is_complex();
    operand.dtype = slot.tensor.scalar_type();
    return operand;
  }

  // ---- the call ----

  void run(const Solution& solution) {
    move_operands(solution);
    if (!solution.why_whole.empty()) note_whole(solution);
    put_pieces();
    for (const auto& [i, value] : solution.arguments) argument(i) = value;
    if (solution.uses_kernel) {
      LocalCall call(op_, stack_, solution.placing, *state_);
      solution.operation.kernel(call);
    } else {
      op_.callBoxed(&stack_);
    }
    if (info_->has_out) check_out(solution);
    if (solution.writes_back && !info_->changes_sizes) write_back(solution);
    if (info_->writes) note_writes(solution);
    wrap(solution);
  }

  void note_whole(const Solution& solution) {
    int64_t bytes = 0;
    for (size_t i = 0; i < slots_.size(); ++i) {
      const Slot& slot = slots_[i];
      if (slot.meta == nullptr || !solution.is_moved[i]) continue;
      bytes += (pieces_[i].numel() - slot.meta->piece.numel()) * static_cast<int64_t>(pieces_[i].element_size());
    }
    state_->count_whole(info_->name, solution.why_whole, bytes);
  }

  /// Fills pieces_, under the layouts of the solution.
  void move_operands(const Solution& solution) {
    for (size_t i = 0; i < slots_.size(); ++i) {
      const Slot& slot = slots_[i];
      pieces_.push_back(slot.meta == nullptr ? slot.tensor : slot.meta->piece);
      // Others have the same piece, and keep its sizes.
      if (info_->changes_sizes && slot.meta != nullptr) pieces_.back() = pieces_.back().alias();
      if (!solution.any_moved || !solution.is_moved[i]) continue;
      if (slot.meta == nullptr) {
        const PieceMeta plain(slot.tensor, state_->whole(), state_);
        pieces_.back() = moved_piece(plain, solution.operands[i], info_->name);
        continue;
      }
      pieces_.back() = moved_piece(*slot.meta, solution.operands[i], info_->name);
      if (!slot.meta->is_aliased && is_paid(*slot.meta->placed, *solution.operands[i])) {
        // The sum is taken once, whoever asks for it next.
        slot.meta->piece = pieces_.back();
        slot.meta->placed = solution.operands[i];
      }
      if (solution.is_written[i] && pieces_.back().is_alias_of(slot.meta->piece) && solution.writes_back) {
        pieces_.back() = pieces_.back().clone();
      }
    }
  }

  /// Whether the move is of pending sums to whole values and nothing else.
  static bool is_paid(const Placed& from, const Placed& to) {
    for (const auto& [axis, placement] : from.layout.entries()) {
      const Placement& after = to.layout[axis];
      if (!(placement == after) && !(placement.is_partial() && after.is_replicate())) return false;
    }
    return true;
  }

  /// The pieces in place of the tensors on the stack; lists are copied, since their caller has them too.
  void put_pieces() {
    int copied = -1;  // the argument whose list is a copy already
    for (size_t i = 0; i < slots_.size(); ++i) {
      const Slot& slot = slots_[i];
      if (slot.element < 0) {
        argument(slot.argument) = pieces_[i];
        continue;
      }
      c10::IValue& value = argument(slot.argument);
      if (copied != slot.argument) {
        copied = slot.argument;
        if (value.isTensorList()) {
          value = c10::List<at::Tensor>(value.toTensorVector());
        } else {
          value = value.toList().copy();
        }
      }
      if (value.isTensorList()) {
        value.toTensorList().set(slot.element, pieces_[i]);
      } else {
        value.toList().set(slot.element, c10::IValue(pieces_[i]));
      }
    }
  }

  /// An argument out= of other sizes was resized: the global tensor cannot be.
  void check_out(const Solution& solution) {
    for (size_t i = 0; i < slots_.size(); ++i) {
      if (!info_->is_written[slots_[i].argument] || slots_[i].meta == nullptr) continue;
      const auto sizes = sizes_of(pieces_[i], solution.operands[i], *state_);
      if (slots_[i].tensor.sizes() == at::IntArrayRef(sizes)) continue;
      refuse(*info_, "would resize its argument out=", "give one of the right sizes, or use what the op returns",
             *state_);
    }
  }

  void write_back(const Solution& solution) {
    for (size_t i = 0; i < slots_.size(); ++i) {
      const Slot& slot = slots_[i];
      if (!solution.is_written[i] || !solution.is_moved[i]) continue;
      if (slot.meta != nullptr && !slot.meta->is_aliased) {
        slot.meta->piece = pieces_[i];
        slot.meta->placed = solution.operands[i];
        continue;
      }
      const PieceMeta result(pieces_[i], solution.operands[i], state_);
      const Placed* home = slot.meta == nullptr ? state_->whole() : slot.meta->placed;
      const at::Tensor& target = slot.meta == nullptr ? slot.tensor : slot.meta->piece;
      target.copy_(moved_piece(result, home, info_->name));
    }
  }

  /// Views of what was moved for them see no later writes; what is written to them goes where they came from.
  void note_writes(const Solution& solution) {
    for (size_t i = 0; i < slots_.size(); ++i) {
      if (slots_[i].meta == nullptr || !solution.is_written[i]) continue;
      ++slots_[i].meta->num_writes;
      ++state_->num_writes();
      write_to_origin(*slots_[i].meta);
    }
  }

  const at::Tensor& original(int argument, int element) const {
    for (const Slot& slot : slots_) {
      if (slot.argument == argument && (slot.element < 0 || slot.element == element)) return slot.tensor;
    }
    throw InternalError({"global", info_->name, "returns an argument that is no tensor", "", "report this"});
  }

  void wrap(const Solution& solution) {
    size_t output = 0;
    const size_t num_returns = info_->returns.size();
    for (size_t i = 0; i < num_returns; ++i) {
      c10::IValue& value = stack_[stack_.size() - num_returns + i];
      const OpInfo::Return& way = info_->returns[i];
      if (value.isTensor()) {
        value = wrapped(value.toTensor(), solution, output++, way, -1);
      } else if (value.isTensorList()) {
        c10::List<at::Tensor> list;
        int element = 0;
        for (const at::Tensor& each : value.toTensorVector())
          list.push_back(wrapped(each, solution, output++, way, element++));
        value = std::move(list);
      }
    }
  }

  at::Tensor wrapped(const at::Tensor& piece, const Solution& solution, size_t output, const OpInfo::Return& way,
                     int element) {
    if (way.is_written && !info_->changes_sizes) return original(way.alias, element);
    if (!piece.defined()) return piece;
    const Solution::Output& to = solution.outputs.at(std::min(output, solution.outputs.size() - 1));
    c10::SmallVector<int64_t, 6> sizes(piece.sizes().begin(), piece.sizes().end());
    for (const auto& [dim, size] : to.cut_dims) {
      if (dim < static_cast<int>(sizes.size())) {
        sizes[dim] = size;
        continue;
      }
      throw InternalError({"global", info_->name,
                           fmt::format("its rule cuts dim {} of a result that has {}", dim, sizes.size()),
                           state_->mesh().where(), "report this with the call"});
    }
    Strides strides;
    if (!to.placed->is_even && way.alias >= 0) strides = view_strides(solution, output, way, sizes);
    const bool is_dense = to.placed->is_even || way.alias >= 0;
    at::Tensor result = wrap_piece(is_dense ? piece : piece.contiguous(), sizes, to.placed, state_, strides);
    mark(meta_of(result), solution, way, element);
    return way.is_written ? changed(original(way.alias, element), result, solution) : result;
  }

  /// The tensor, with the sizes and the piece of `result`, which shares its memory.
  static at::Tensor changed(const at::Tensor& tensor, const at::Tensor& result, const Solution& solution) {
    if (meta_of(tensor) == nullptr) return tensor;
    PieceMeta* meta = meta_of(result);
    meta->is_parameter = meta_of(tensor)->is_parameter;
    meta->is_aliased = true;
    meta->origin = meta_of(tensor)->origin;
    if (solution.any_moved) meta->origin = std::make_shared<ViewOrigin>();  // it cannot be written to
    c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
    impl->set_sizes_and_strides(result.sizes(), result.strides());
    impl->set_backend_meta(result.unsafeGetTensorImpl()->get_backend_meta_intrusive_ptr());
    return tensor;
  }

  /// Of a view, by the strides of what it views, which are the same on all ranks.
  Strides view_strides(const Solution& solution, size_t output, const OpInfo::Return& way,
                       at::IntArrayRef sizes) const {
    size_t viewed = 0;
    while (viewed < slots_.size() && slots_[viewed].argument != way.alias) ++viewed;
    const auto& operation = solution.operation;
    if (viewed >= operation.inputs.size() || output >= operation.outputs.size()) return {};
    const Dims& dims = operation.outputs[output];
    if (dims.size() != sizes.size()) return {};
    std::vector<std::pair<int64_t, int>> places;  // by which dims are sorted: the stride of the label, its position
    for (const std::string& dim : dims) {
      const auto at = dim.empty() ? std::nullopt : position_of(operation.inputs[viewed], dim[0]);
      if (at) {
        places.emplace_back(-slots_[viewed].tensor.stride(at->first), at->second);
      } else {
        places.push_back(places.empty() ? std::pair<int64_t, int>{INT64_MIN, 0} : places.back());
      }
    }
    std::vector<int64_t> order(dims.size());
    std::iota(order.begin(), order.end(), int64_t{0});
    std::ranges::stable_sort(order, {}, [&](int64_t dim) { return places[dim]; });
    return dense_strides(sizes, order);
  }

  /// Views, and what comes of parameters alone.
  void mark(PieceMeta* result, const Solution& solution, const OpInfo::Return& way, int element) {
    bool all_parameters = !slots_.empty();
    for (const Slot& slot : slots_) all_parameters = all_parameters && slot.meta != nullptr && slot.meta->is_parameter;
    result->is_parameter = all_parameters;
    if (way.alias < 0) return;
    for (size_t i = 0; i < slots_.size(); ++i) {
      const Slot& slot = slots_[i];
      if (slot.argument != way.alias || (slot.element >= 0 && slot.element != element)) continue;
      if (slot.meta == nullptr) continue;
      if (pieces_[i].is_same(slot.meta->piece)) {
        slot.meta->is_aliased = result->is_aliased = true;
        result->origin = slot.meta->origin;
        // The piece had no view of these sizes, and was copied: writes would be lost.
        const bool is_copy = result->piece.numel() > 0 && !result->piece.is_alias_of(slot.meta->piece);
        if (is_copy) result->origin = std::make_shared<ViewOrigin>();
      } else if (solution.any_moved) {
        result->origin = origin_of(slot.tensor, pieces_[i], solution.operands[i]);
        result->is_aliased = true;  // with what its origin keeps
      }
    }
  }

  const c10::OperatorHandle& op_;
  Stack& stack_;
  size_t num_arguments_;
  std::shared_ptr<GlobalState> state_;
  OpInfo* info_ = nullptr;
  Slots slots_;
  c10::SmallVector<at::Tensor, 8> pieces_;
};

}  // namespace

void run_on_pieces(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  const NotCreatingGlobal plain;
  const at::AutoDispatchBelowADInplaceOrView below;
  PieceCall(op, *stack).run();
}

}  // namespace caravan
