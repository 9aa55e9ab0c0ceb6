#include "caravan/comm/backends/mpi/transport.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <sys/prctl.h>
#include <thread>
#include <vector>

namespace caravan::mpi {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;

constexpr microseconds kSpin{20};
constexpr microseconds kFrequentPolls{1000};  // how long a wait polls frequently; longer for a large message,
constexpr size_t kBytesPerMicrosecond = 100;  // which may take this speed
constexpr microseconds kShortestSleep{5};
constexpr microseconds kLongestSleep{500};
constexpr microseconds kCancelTimeout{100'000};

/// Makes short sleeps of this thread precise. By default Linux adds up to 50 us.
void sleep_exactly() {
  thread_local const int done = prctl(PR_SET_TIMERSLACK, 1UL);
  static_cast<void>(done);
}

class MpiTransfer final : public messages::Transfer {
 public:
  MpiTransfer(Shared& shared, bool receives, size_t bytes)
      : shared_(shared),
        receives_(receives),
        frequent_polls_(kFrequentPolls + microseconds(bytes / kBytesPerMicrosecond)) {}
  ~MpiTransfer() override {
    if (!ended_) cancel();
  }

  /// Adds the request of a piece. The caller holds the lock.
  MPI_Request* add() {
    statuses_.emplace_back();
    return &requests_.emplace_back(MPI_REQUEST_NULL);
  }
  void reserve(size_t pieces) { requests_.reserve(pieces); }

  bool wait() override {
    sleep_exactly();
    const Clock::time_point begin = Clock::now();
    for (microseconds sleep = kShortestSleep;;) {
      if (test()) return true;
      if (interrupted_.exchange(false)) return false;
      const Clock::duration waited = Clock::now() - begin;
      if (waited < kSpin) continue;
      std::this_thread::sleep_for(sleep);
      if (waited > frequent_polls_) sleep = std::min(2 * sleep, kLongestSleep);
    }
  }
  void interrupt() noexcept override { interrupted_ = true; }

 private:
  bool test() {
    const std::lock_guard lock(shared_.mutex);
    if (shared_.stuck) throw std::runtime_error("MPI was left with an unfinished message");
    int done = 0;
    const int code = MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done, statuses_.data());
    if (code != MPI_SUCCESS) {
      ended_ = true;
      if (code != MPI_ERR_IN_STATUS) check(code);
      for (const MPI_Status& status : statuses_) {
        if (status.MPI_ERROR != MPI_ERR_PENDING) check(status.MPI_ERROR);
      }
    }
    ended_ = done != 0;
    return ended_;
  }

  /// The memory of a message in flight must not be freed. If it cannot be cancelled, MPI is not called again.
  void cancel() noexcept {
    const Clock::time_point begin = Clock::now();
    try {
      if (receives_) {
        const std::lock_guard lock(shared_.mutex);
        if (shared_.stuck) return;
        for (MPI_Request& request : requests_) {
          if (request != MPI_REQUEST_NULL) MPI_Cancel(&request);
        }
      }
      while (!test()) {
        if (Clock::now() - begin > kCancelTimeout) {
          const std::lock_guard lock(shared_.mutex);
          shared_.stuck = true;
          return;
        }
        std::this_thread::sleep_for(kShortestSleep);
      }
    } catch (const std::exception&) {  // the connection is lost, and so is the message
    }
  }

  Shared& shared_;
  bool receives_;
  microseconds frequent_polls_;
  std::vector<MPI_Request> requests_;
  std::vector<MPI_Status> statuses_;
  std::atomic<bool> interrupted_ = false;
  bool ended_ = false;
};

/// Posts each piece of a message by `post(offset, bytes, request)`.
template <class Post>
std::unique_ptr<messages::Transfer> post_pieces(Shared& shared, bool receives, size_t bytes, size_t largest,
                                                const Post& post) {
  auto transfer = std::make_unique<MpiTransfer>(shared, receives, bytes);
  transfer->reserve((bytes + largest - 1) / largest);
  const std::lock_guard lock(shared.mutex);
  if (shared.stuck) throw std::runtime_error("MPI was left with an unfinished message");
  for (size_t offset = 0; offset < bytes; offset += largest) {
    check(post(offset, static_cast<int>(std::min(largest, bytes - offset)), transfer->add()));
  }
  return transfer;
}

}  // namespace

void check(int code) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  throw std::runtime_error(std::string(text.data(), static_cast<size_t>(length)));
}

MpiTransport::~MpiTransport() {
  const std::lock_guard lock(shared_.mutex);
  // After an error messages may still be in flight. If the communicator were freed, they could be received on another
  // one that gets its context id.
  if (!ended_well_) shared_.failed = true;
  if (ended_well_ && !shared_.stuck) MPI_Comm_free(&communicator_);
}

std::unique_ptr<messages::Transfer> MpiTransport::send(const std::byte* data, size_t bytes, int world_rank, int tag) {
  if (tag > largest_tag_) throw std::runtime_error("this MPI has no tag for so many communicators");
  return post_pieces(shared_, false, bytes, largest_piece_, [&](size_t offset, int count, MPI_Request* request) {
    return MPI_Isend(data + offset, count, MPI_BYTE, world_rank, tag, communicator_, request);
  });
}

std::unique_ptr<messages::Transfer> MpiTransport::recv(std::byte* data, size_t bytes, int world_rank, int tag) {
  if (tag > largest_tag_) throw std::runtime_error("this MPI has no tag for so many communicators");
  return post_pieces(shared_, true, bytes, largest_piece_, [&](size_t offset, int count, MPI_Request* request) {
    return MPI_Irecv(data + offset, count, MPI_BYTE, world_rank, tag, communicator_, request);
  });
}

}  // namespace caravan::mpi
