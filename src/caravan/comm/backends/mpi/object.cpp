// libcaravan_mpi_<name>.so; see session.h.
#include <algorithm>
#include <array>
#include <mpi.h>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <climits>

#include "caravan/comm/backends/mpi/mpi_session.h"
#include "caravan/comm/backends/mpi/transport.h"

namespace caravan::mpi {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kGracePeriod{5000};  // after a failure, for the other ranks to end
constexpr milliseconds kPollInterval{1};
constexpr int kTextTag = 0;
using Text = std::array<char, 2048>;

std::string library_name() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  check(MPI_Get_library_version(text.data(), &length));
  const std::string all(text.data(), static_cast<size_t>(length));
  std::string name = all.substr(0, all.find_first_of(",\n"));
  std::ranges::replace(name, '\t', ' ');
  return name;
}

class ProcessSession final : public MpiSession {
 public:
  ProcessSession() {
    const std::lock_guard lock(shared_.mutex);
    initialise();
    check(MPI_Comm_dup(MPI_COMM_WORLD, &control_));
    check(MPI_Comm_set_errhandler(control_, MPI_ERRORS_RETURN));
    check(MPI_Comm_rank(control_, &rank_));
    check(MPI_Comm_size(control_, &size_));
    int* largest_tag = nullptr;
    int is_set = 0;
    check(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, static_cast<void*>(&largest_tag), &is_set));
    if (is_set != 0) largest_tag_ = *largest_tag;
    library_ = library_name();
  }

  /// Calls MPI_Finalize, which waits for all ranks. A launcher treats a rank that ends without it as crashed and ends
  /// the job, which is right only if a world has failed and the other ranks do not come.
  ~ProcessSession() override {
    try {
      int is_finalized = 1;
      const std::lock_guard lock(shared_.mutex);
      check(MPI_Finalized(&is_finalized));
      if (is_finalized != 0 || !owns_mpi_ || shared_.stuck) return;
      MPI_Request all = MPI_REQUEST_NULL;
      check(MPI_Ibarrier(control_, &all));
      const Clock::time_point begin = Clock::now();
      for (int done = 0; done == 0;) {
        check(MPI_Test(&all, &done, MPI_STATUS_IGNORE));
        if (done != 0) break;
        if (shared_.failed && Clock::now() - begin > kGracePeriod) return;
        std::this_thread::sleep_for(kPollInterval);
      }
      MPI_Finalize();
    } catch (const std::exception&) {  // the launcher sees a rank that ended without MPI_Finalize
    }
  }

  ProcessSession(const ProcessSession&) = delete;
  ProcessSession& operator=(const ProcessSession&) = delete;

  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return size_; }
  const std::string& library() const noexcept override { return library_; }

  std::string from_rank_0(const std::string& text, milliseconds timeout) override {
    if (text.size() >= text_.size()) throw std::runtime_error("a text of " + std::to_string(text.size()) + " bytes");
    std::vector<MPI_Request> requests(rank_ == 0 ? static_cast<size_t>(size_ - 1) : 1, MPI_REQUEST_NULL);
    {
      const std::lock_guard lock(shared_.mutex);
      const int bytes = static_cast<int>(text_.size());
      if (rank_ == 0) text_ = {};
      if (rank_ == 0) std::ranges::copy(text, text_.begin());
      for (int peer = 1; rank_ == 0 && peer < size_; ++peer) {
        check(MPI_Isend(text_.data(), bytes, MPI_BYTE, peer, kTextTag, control_,
                        &requests[static_cast<size_t>(peer - 1)]));
      }
      if (rank_ != 0) check(MPI_Irecv(text_.data(), bytes, MPI_BYTE, 0, kTextTag, control_, requests.data()));
    }
    const Clock::time_point deadline = Clock::now() + timeout;
    for (int done = 0;;) {
      const std::lock_guard lock(shared_.mutex);
      check(MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE));
      if (done != 0) return text_.data();
      if (Clock::now() > deadline) throw std::runtime_error("the other ranks did not join");
      std::this_thread::sleep_for(kPollInterval);
    }
  }

  std::shared_ptr<messages::Transport> connect(size_t largest_piece) override {
    MPI_Comm own = MPI_COMM_NULL;
    MPI_Request request = MPI_REQUEST_NULL;
    {
      const std::lock_guard lock(shared_.mutex);
      if (shared_.stuck) throw std::runtime_error("MPI was left with an unfinished message");
      check(MPI_Comm_idup(control_, &own, &request));
    }
    for (int done = 0; done == 0;) {  // without the lock, so that other worlds of this process make progress
      {
        const std::lock_guard lock(shared_.mutex);
        check(MPI_Test(&request, &done, MPI_STATUS_IGNORE));
      }
      if (done == 0) std::this_thread::sleep_for(kPollInterval);
    }
    {
      const std::lock_guard lock(shared_.mutex);
      check(MPI_Comm_set_errhandler(own, MPI_ERRORS_RETURN));
    }
    return std::make_shared<MpiTransport>(shared_, own, largest_tag_, std::min(largest_piece, size_t{INT_MAX}));
  }

 private:
  void initialise() {
    int is_there = 0;
    int level = MPI_THREAD_SINGLE;
    check(MPI_Finalized(&is_there));
    if (is_there != 0) throw std::runtime_error("the program has called MPI_Finalize");
    check(MPI_Initialized(&is_there));
    if (is_there != 0) {
      check(MPI_Query_thread(&level));
      if (level < MPI_THREAD_MULTIPLE) {
        throw std::runtime_error(
            "the program has initialised MPI below MPI_THREAD_MULTIPLE, but threads of Caravan call it");
      }
      return;
    }
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &level));
    owns_mpi_ = true;
    // Errors without a communicator go to one of these, depending on the MPI.
    check(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
    check(MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN));
    if (level < MPI_THREAD_SERIALIZED) throw std::runtime_error("this MPI cannot be called from several threads");
  }

  Shared shared_;
  MPI_Comm control_ = MPI_COMM_NULL;
  int rank_ = 0;
  int size_ = 1;
  int largest_tag_ = 32767;  // MPI guarantees this
  std::string library_;
  bool owns_mpi_ = false;
  Text text_{};
};

}  // namespace
}  // namespace caravan::mpi

int caravan_mpi_interface() { return caravan::mpi::kInterface; }

caravan::mpi::MpiSession* caravan_mpi_session() {
  // Constructed after MPI_Init registered its exit handlers, and therefore destroyed before they run.
  static caravan::mpi::ProcessSession session;
  return &session;
}
