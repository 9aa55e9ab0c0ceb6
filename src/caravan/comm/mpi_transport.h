#pragma once

// Compiled into libcaravan_mpi_<name>.so only.
#include <cstddef>
#include <memory>
#include <mpi.h>
#include <mutex>

#include "caravan/comm/messages/transport.h"

namespace caravan::mpi {

/// What every call of MPI in this process goes by.
struct Shared {
  std::mutex mutex;     ///< held during every call: MPI_THREAD_SERIALIZED
  bool stuck = false;   ///< a message could neither be finished nor cancelled: MPI may still use its memory when called
  bool failed = false;  ///< a world has ended without a goodbye
};

/// Throws the text of an MPI error.
void check(int code);

/// A world's messages by MPI_Isend and MPI_Irecv, which whoever waits for them tests.
///
/// Note [waiting for MPI]: MPI moves data only while somebody calls it, and no wait of its own can be interrupted. So
/// the thread that waits (a lane) tests its requests: without a pause for 20 us, then every 5 us, and after 1 ms, or as
/// long as a message of that size may take, every 10 to 500 us. It sleeps rather than yields in between: on a busy host
/// a yield costs whole time slices of everybody else. There is no progress thread: an operation in flight has its lane,
/// and a rank with none in flight uses no processor time.
class MpiTransport final : public messages::Transport {
 public:
  /// `communicator` is this object's own.
  MpiTransport(Shared& shared, MPI_Comm communicator, int largest_tag, size_t largest_piece)
      : shared_(shared), communicator_(communicator), largest_tag_(largest_tag), largest_piece_(largest_piece) {}
  ~MpiTransport() override;
  MpiTransport(const MpiTransport&) = delete;
  MpiTransport& operator=(const MpiTransport&) = delete;

  std::unique_ptr<messages::Transfer> send(const std::byte* data, size_t bytes, int world_rank, int tag) override;
  std::unique_ptr<messages::Transfer> recv(std::byte* data, size_t bytes, int world_rank, int tag) override;
  bool reports_lost_peers() const noexcept override { return false; }  // the launcher ends the job
  void end_well() noexcept override { ended_well_ = true; }

 private:
  Shared& shared_;
  MPI_Comm communicator_;
  int largest_tag_;
  size_t largest_piece_;
  bool ended_well_ = false;
};

}  // namespace caravan::mpi
