#pragma once

// Only for libcaravan_mpi_<name>.so.
#include <cstddef>
#include <memory>
#include <mpi.h>
#include <mutex>

#include "caravan/comm/backends/messages/transport.h"

namespace caravan::mpi {

/// State that all calls of MPI in this process share.
struct Shared {
  std::mutex mutex;     ///< held during every call: MPI_THREAD_SERIALIZED
  bool stuck = false;   ///< a message could be neither finished nor cancelled: a call of MPI may still use its memory
  bool failed = false;  ///< a world was not shut down in order
};

/// Throws the message of `code` unless it is MPI_SUCCESS.
void check(int code);

/// The messages of a world, by MPI_Isend and MPI_Irecv. The thread that waits for a message tests its requests.
///
/// Note [waiting for MPI]: MPI makes progress only inside its calls, and its waits cannot be interrupted. So the
/// waiting thread polls: continuously for 20 us, then every 5 us, and after 1 ms, or the time that a message of its
/// size may take, every 10 to 500 us. It sleeps between polls rather than yields, because on a busy host a yield costs
/// whole time slices. There is no progress thread: each operation in flight is waited for by a thread, and a rank with
/// none in flight uses no processor time.
class MpiTransport final : public messages::Transport {
 public:
  /// Takes ownership of `communicator`.
  MpiTransport(Shared& shared, MPI_Comm communicator, int largest_tag, size_t largest_piece)
      : shared_(shared), communicator_(communicator), largest_tag_(largest_tag), largest_piece_(largest_piece) {}
  ~MpiTransport() override;
  MpiTransport(const MpiTransport&) = delete;
  MpiTransport& operator=(const MpiTransport&) = delete;

  std::unique_ptr<messages::Transfer> send(const std::byte* data, size_t bytes, int world_rank, int tag) override;
  std::unique_ptr<messages::Transfer> recv(std::byte* data, size_t bytes, int world_rank, int tag) override;
  bool reports_lost_peers() const noexcept override { return false; }  // the launcher ends the job
  void all_delivered() noexcept override { ended_well_ = true; }

 private:
  Shared& shared_;
  MPI_Comm communicator_;
  int largest_tag_;
  size_t largest_piece_;
  bool ended_well_ = false;
};

}  // namespace caravan::mpi
