#include "caravan/comm/mpi_transport.h"

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
constexpr microseconds kAttention{1000};      // how long a wait looks often, and longer for a message of many bytes
constexpr size_t kBytesPerMicrosecond = 100;  // which may be on its way at this speed
constexpr microseconds kShortestSleep{5};
constexpr microseconds kLongestSleep{500};
constexpr microseconds kWithdrawal{100'000};

/// Lets short sleeps of this thread be short: Linux adds 50 us to each otherwise.
void sleep_exactly() {
  thread_local const int done = prctl(PR_SET_TIMERSLACK, 1UL);
  static_cast<void>(done);
}

class MpiTransfer final : public messages::Transfer {
 public:
  MpiTransfer(Shared& shared, bool receives, size_t bytes)
      : shared_(shared), receives_(receives), attention_(kAttention + microseconds(bytes / kBytesPerMicrosecond)) {}
  ~MpiTransfer() override {
    if (!ended_) withdraw();
  }

  /// The request of one more piece. The caller holds the lock.
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
      if (waited > attention_) sleep = std::min(2 * sleep, kLongestSleep);
    }
  }
  void interrupt() noexcept override { interrupted_ = true; }

 private:
  bool test() {
    const std::lock_guard lock(shared_.mutex);
    if (shared_.stuck) throw std::runtime_error("MPI was left in the middle of another message");
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

  /// Memory of a message that goes on may not be freed; if it cannot be stopped, MPI is not called again.
  void withdraw() noexcept {
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
        if (Clock::now() - begin > kWithdrawal) {
          const std::lock_guard lock(shared_.mutex);
          shared_.stuck = true;
          return;
        }
        std::this_thread::sleep_for(kShortestSleep);
      }
    } catch (const std::exception&) {  // the connection is lost, and the message with it
    }
  }

  Shared& shared_;
  bool receives_;
  microseconds attention_;
  std::vector<MPI_Request> requests_;
  std::vector<MPI_Status> statuses_;
  std::atomic<bool> interrupted_ = false;
  bool ended_ = false;
};

/// Cuts a message into pieces and posts each by `post(offset, bytes, request)`.
template <class Post>
std::unique_ptr<messages::Transfer> post_pieces(Shared& shared, bool receives, size_t bytes, size_t largest,
                                                const Post& post) {
  auto transfer = std::make_unique<MpiTransfer>(shared, receives, bytes);
  transfer->reserve((bytes + largest - 1) / largest);
  const std::lock_guard lock(shared.mutex);
  if (shared.stuck) throw std::runtime_error("MPI was left in the middle of another message");
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
  // What is still sent to a communicator that was freed, or lies there, would be found again in the next one that gets
  // its number.
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
