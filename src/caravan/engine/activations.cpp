#include "caravan/engine/activations.h"

#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>
#include <torch/csrc/autograd/variable.h>

#include "caravan/base/error.h"
#include "caravan/base/memory/memory_counter.h"
#include "caravan/base/trace/path_log.h"
#include "caravan/base/trace/trace.h"

namespace caravan {

/// Blocks of the tier, which are used again by the next micro-batches and steps: fresh pages cost more than the copy.
struct Activations::Blocks {
  std::shared_ptr<Tiers> tiers;
  Tier tier;
  int64_t step = 0;
  struct Spare {
    TierBlock block;
    int64_t last_used = 0;  ///< step
  };
  std::multimap<int64_t, Spare> spare{};                     ///< by bytes
  std::map<c10::StorageImpl*, std::weak_ptr<Piece>> here{};  ///< captured storages that have not been stored

  TierBlock take(int64_t bytes) {
    const auto found = spare.find(bytes);
    if (found != spare.end()) {
      TierBlock block = std::move(found->second.block);
      spare.erase(found);
      return block;
    }
    const MemoryKindScope kind(MemoryKind::other);
    return tiers->block(tier, bytes);
  }
  void give_back(TierBlock block) {
    const int64_t bytes = block.bytes();
    spare.emplace(bytes, Spare{std::move(block), step});
  }
};

/// A storage with saved tensors in it.
struct Activations::Piece {
  Piece(const at::Tensor& tensor, std::shared_ptr<Blocks> blocks_)
      : blocks(std::move(blocks_)), device(tensor.device()), storage(tensor.storage()) {}
  ~Piece();
  Piece(const Piece&) = delete;
  Piece& operator=(const Piece&) = delete;

  bool is_here() const { return static_cast<bool>(storage); }
  /// Whether nobody but saved variables needs it on the device.
  bool is_ours_alone() const { return is_here() && !block && storage.use_count() == 1; }
  void start_store(const std::string& what);
  void start_load(const std::string& what);
  /// Flat bytes of the storage. They do not own it: a copy that has ended must not hold it for a moment longer.
  at::Tensor bytes() const;

  std::shared_ptr<Blocks> blocks;
  at::Device device;
  c10::Storage storage;  ///< none: away
  TierBlock block{};     ///< none: never stored
  Event stored{}, loaded{};
  const Capture* last_capture = nullptr;  ///< that has it in its list
};

/// What one forward of a unit saves.
struct Activations::Capture {
  Activations& owner;
  std::vector<std::weak_ptr<Piece>> pieces{};
};

/// A tensor that autograd saves in a scope.
class SavedTensor final : public torch::autograd::SavedVariableHooks {
 public:
  explicit SavedTensor(Activations::Capture& capture) : capture_(capture) {}
  void call_pack_hook(const at::Tensor& tensor) override;
  at::Tensor call_unpack_hook() override;

 private:
  void check_version() const;
  at::Tensor rebuilt(const c10::Storage& storage) const;

  Activations::Capture& capture_;  ///< while it packs
  at::Tensor stays_{};             ///< undefined if it may move
  std::shared_ptr<Activations::Piece> piece_{};
  std::vector<int64_t> sizes_{}, strides_{};
  int64_t offset_ = 0;
  c10::DispatchKeySet keys_{};
  caffe2::TypeMeta type_{};
  c10::VariableVersion version_{};
  uint32_t saved_version_ = 0;
};

namespace {

thread_local Activations::Capture* innermost_capture = nullptr;

class SavingEngine final : public torch::autograd::Engine {
 public:
  ~SavingEngine() override { stop(); }
  std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override;
};

torch::autograd::Engine& saving_engine() {
  static auto* engine = new SavingEngine;  // never destroyed: a graph may end after main()
  return *engine;
}

/// Torch has one default engine in a process, which is asked for hooks. Python's torch sets its own.
void install_saving_engine() {
  using torch::autograd::Engine;
  const Engine* now = &Engine::get_default_engine();
  if (now == &saving_engine()) return;
  if (now == &Engine::get_base_engine()) return torch::autograd::set_default_engine_stub(&saving_engine);
  throw UsageError({"offload", "activations", "another autograd engine is installed, as Python's torch does", "",
                    "run in a program without Python's torch, or leave activations on the device"});
}

bool may_move(const at::Tensor& tensor) {
  if (!tensor.has_storage() || tensor.layout() != at::kStrided || tensor.is_conj() || tensor.is_neg()) return false;
  if (tensor._is_zerotensor()) return false;
  if (tensor.is_leaf() && tensor.requires_grad()) return false;  // somebody has it
  return static_cast<int64_t>(tensor.storage().nbytes()) >= Activations::kSmallest;
}

}  // namespace

Activations::Piece::~Piece() {
  stored.settle();  // Tiers::check throws their errors
  loaded.settle();
  if (is_here() && !block) blocks->here.erase(storage.unsafeGetStorageImpl());
  if (block) blocks->give_back(std::move(block));
}

at::Tensor Activations::Piece::bytes() const {
  const auto count = static_cast<int64_t>(storage.nbytes());
  if (device.is_meta()) return at::empty({0}, at::TensorOptions(at::kByte).device(device));
  return at::from_blob(const_cast<void*>(storage.data()), {count}, at::TensorOptions(at::kByte).device(device));
}

void Activations::Piece::start_store(const std::string& what) {
  count_path("activations: store");
  block = blocks->take(static_cast<int64_t>(storage.nbytes()));
  blocks->here.erase(storage.unsafeGetStorageImpl());
  stored = block.start_store(bytes(), what);
}

void Activations::Piece::start_load(const std::string& what) {
  count_path("activations: load");
  storage = at::empty({block.bytes()}, at::TensorOptions(at::kByte).device(device)).storage();
  loaded = block.load(bytes(), what);
}

// ---- saved tensors ----

void SavedTensor::call_pack_hook(const at::Tensor& tensor) {
  version_ = torch::autograd::impl::version_counter(tensor);
  saved_version_ = version_.current_version();
  if (!may_move(tensor)) {
    stays_ = tensor.tensor_data();
    return;
  }
  piece_ = capture_.owner.piece_of(tensor, capture_);
  sizes_ = tensor.sizes().vec();
  strides_ = tensor.strides().vec();
  offset_ = tensor.storage_offset();
  keys_ = tensor.key_set();
  type_ = tensor.dtype();
}

at::Tensor SavedTensor::call_unpack_hook() {
  check_version();
  if (piece_ == nullptr) return stays_;
  if (!piece_->is_here()) {
    count_path("activations: load late");
    piece_->start_load("saved tensor");
  }
  if (!piece_->loaded.done()) {
    const TraceSpan span(TraceLog::kWait, "activations");
    piece_->loaded.wait();
  }
  piece_->loaded.wait();  // throws its error
  if (piece_->block) count_path("activations: unpack");
  return rebuilt(piece_->storage);
}

at::Tensor SavedTensor::rebuilt(const c10::Storage& storage) const {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage), keys_, type_);
  tensor.unsafeGetTensorImpl()->set_storage_offset(offset_);
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes_, strides_);
  tensor.unsafeGetTensorImpl()->set_version_counter(version_);
  return tensor;
}

/// Torch checks this only without hooks.
void SavedTensor::check_version() const {
  const uint32_t now = version_.current_version();
  if (now == saved_version_) return;
  const auto type = piece_ == nullptr ? stays_.dtype() : type_;
  const at::IntArrayRef sizes = piece_ == nullptr ? stays_.sizes() : at::IntArrayRef(sizes_);
  TORCH_CHECK(false,
              "one of the variables needed for gradient computation has been modified by an inplace operation: [",
              type.name(), " ", sizes, "] is at version ", now, "; expected version ", saved_version_, " instead.");
}

std::unique_ptr<torch::autograd::SavedVariableHooks> SavingEngine::get_default_saved_variable_hooks() {
  if (innermost_capture == nullptr) return nullptr;
  return std::make_unique<SavedTensor>(*innermost_capture);
}

// ---- units ----

Activations::Activations(std::shared_ptr<Tiers> tiers, Tier tier)
    : blocks_(std::make_shared<Blocks>(Blocks{.tiers = std::move(tiers), .tier = tier})) {
  install_saving_engine();
}

Activations::~Activations() = default;

Activations::Scope::Scope(Activations* activations, int unit, int micro_batch, bool captures)
    : activations_(activations), key_(unit, micro_batch), captures_(captures) {
  if (activations_ == nullptr) return;
  install_saving_engine();  // Python's torch may have been loaded since
  outer_ = std::exchange(innermost_capture, nullptr);
  if (!captures_) return;
  auto& capture = activations_->captures_[key_];
  if (capture == nullptr) capture = std::make_unique<Capture>(Capture{*activations_});
  innermost_capture = capture.get();
}

Activations::Scope::~Scope() {
  if (activations_ == nullptr) return;
  innermost_capture = outer_;
  if (captures_) activations_->ended_.push_back(key_);
}

std::shared_ptr<Activations::Piece> Activations::piece_of(const at::Tensor& tensor, Capture& capture) {
  std::weak_ptr<Piece>& known = blocks_->here[tensor.storage().unsafeGetStorageImpl()];
  std::shared_ptr<Piece> piece = known.lock();
  if (piece == nullptr) {
    piece = std::make_shared<Piece>(tensor, blocks_);
    known = piece;
  }
  if (std::exchange(piece->last_capture, &capture) != &capture) capture.pieces.push_back(piece);
  return piece;
}

void Activations::begin_step() {
  settle();
  captures_.clear();
  held_elsewhere_.clear();
  ended_.clear();
  std::erase_if(blocks_->spare, [&](const auto& entry) { return entry.second.last_used < blocks_->step; });
  ++blocks_->step;
}

void Activations::settle() {
  if (in_flight_.empty()) return;
  const TraceSpan span(TraceLog::kWait, "activations");
  for (const auto& piece : in_flight_) {
    piece->stored.wait();
    piece->storage = c10::Storage();
  }
  in_flight_.clear();
}

void Activations::evict(int unit, int micro_batch) {
  std::vector<std::weak_ptr<Piece>> candidates = std::exchange(held_elsewhere_[micro_batch], {});
  if (const auto found = captures_.find({unit, micro_batch}); found != captures_.end()) {
    const auto& own = found->second->pieces;
    candidates.insert(candidates.end(), own.begin(), own.end());
  }
  for (const std::weak_ptr<Piece>& candidate : candidates) {
    std::shared_ptr<Piece> piece = candidate.lock();
    if (piece == nullptr || piece->block) continue;
    if (!piece->is_ours_alone()) {
      held_elsewhere_[micro_batch].push_back(candidate);
      continue;
    }
    piece->start_store(fmt::format("activations of unit {}", unit));
    in_flight_.push_back(std::move(piece));
  }
}

void Activations::evict_ended() {
  for (const auto& [unit, micro_batch] : std::exchange(ended_, {})) evict(unit, micro_batch);
}

void Activations::fetch(int unit, int micro_batch) {
  const auto found = captures_.find({unit, micro_batch});
  if (found == captures_.end()) return;
  for (const std::weak_ptr<Piece>& known : found->second->pieces) {
    const std::shared_ptr<Piece> piece = known.lock();
    if (piece == nullptr) continue;
    if (std::erase(in_flight_, piece) > 0) {
      count_path("activations: kept");
    } else if (!piece->is_here()) {
      piece->start_load(fmt::format("activations of unit {}", unit));
    }
  }
  captures_.erase(found);
}

}  // namespace caravan
