#include "caravan/formats/checkpoint/background_save.h"

#include <atomic>
#include <future>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include "caravan/base/error.h"
#include "caravan/comm/calls/agree.h"
#include "caravan/formats/checkpoint/save_steps.h"

namespace caravan {
namespace {

int64_t padded(const CheckpointPiece& piece) {
  constexpr int64_t kAlignment = 64;
  return (static_cast<int64_t>(piece.tensor.nbytes()) + kAlignment - 1) / kAlignment * kAlignment;
}

int64_t bytes_of(const std::vector<const CheckpointPiece*>& pieces) {
  int64_t bytes = 0;
  for (const CheckpointPiece* piece : pieces) bytes += padded(*piece);
  return bytes;
}

}  // namespace

struct BackgroundSave::Running {
  std::filesystem::path run;
  std::filesystem::path aside;
  CheckpointInfo info;
  std::vector<CheckpointPiece> pieces;
  std::promise<std::string> shard;
  std::atomic<bool> is_written = false;
  std::jthread thread;  ///< last: it uses the others
};

BackgroundSave::BackgroundSave(Communicator& world) : world_(world) {}

int64_t BackgroundSave::bytes_of_copy(const std::vector<CheckpointPiece>& pieces) { return bytes_of(my_share(pieces)); }

BackgroundSave::~BackgroundSave() {
  if (running_ == nullptr) return;
  const std::filesystem::path aside = running_->aside;
  running_.reset();  // asks the thread to stop, and joins it
  std::error_code ignored;
  if (world_.rank() == 0) std::filesystem::remove_all(aside, ignored);
}

std::vector<CheckpointPiece> BackgroundSave::copied(const std::vector<const CheckpointPiece*>& mine) {
  const int64_t bytes = bytes_of(mine);
  if (!buffer_.defined() || buffer_.numel() < bytes) {
    buffer_ = at::Tensor();  // free before the larger one is made
    buffer_ = at::empty({bytes}, at::TensorOptions().dtype(at::kByte));
  }
  std::vector<CheckpointPiece> copies;
  int64_t first = 0;
  for (const CheckpointPiece* piece : mine) {
    const auto size = static_cast<int64_t>(piece->tensor.nbytes());
    CheckpointPiece& copy = copies.emplace_back(*piece);
    copy.tensor = buffer_.narrow(0, first, size).view(piece->tensor.scalar_type()).view(piece->tensor.sizes());
    copy.tensor.copy_(piece->read ? piece->read().view(piece->tensor.sizes()) : piece->tensor);
    copy.read = nullptr;
    first += padded(*piece);
  }
  return copies;
}

void BackgroundSave::begin(const std::filesystem::path& run, CheckpointInfo info,
                           const std::vector<CheckpointPiece>& pieces) {
  if (running_ != nullptr) throw InternalError({"checkpoint", run.string(), "an earlier save is not finished", "", ""});
  const at::NoGradGuard no_grad;
  if (pruning_.joinable()) pruning_.join();  // it removes unfinished folders
  auto running = std::make_unique<Running>();
  running->run = run;
  running->aside = begin_save(run, info.step, world_);
  running->info = std::move(info);
  running->pieces = copied(my_share(pieces));
  running->thread = std::jthread([save = running.get(), rank = world_.rank()](const std::stop_token& stop) {
    std::vector<const CheckpointPiece*> mine;
    for (const CheckpointPiece& piece : save->pieces) mine.push_back(&piece);
    try {
      save->shard.set_value(write_shard(save->aside, mine, rank, stop));
    } catch (...) {
      save->shard.set_exception(std::current_exception());
    }
    save->is_written = true;
  });
  running_ = std::move(running);
}

std::optional<SavedCheckpoint> BackgroundSave::poll() {
  int64_t is_missing = running_->is_written ? 0 : 1;
  take_maxima(world_, {&is_missing, 1}, "checkpoint written");
  if (is_missing != 0) return std::nullopt;
  return finish();
}

SavedCheckpoint BackgroundSave::finish() {
  const std::unique_ptr<Running> save = std::move(running_);
  SavedCheckpoint saved =
      end_save(save->run, save->aside, save->info, world_, [&] { return save->shard.get_future().get(); });
  if (!pruning_.joinable()) saved.warning = std::exchange(warning_, "");
  return saved;
}

void BackgroundSave::prune(const std::filesystem::path& run, int64_t keep) {
  if (pruning_.joinable()) pruning_.join();
  pruning_ = std::jthread([this, run, keep] { warning_ = prune_or_warn(run, keep); });
}

}  // namespace caravan
