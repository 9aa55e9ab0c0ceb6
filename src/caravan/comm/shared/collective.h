#pragma once

#include <vector>

#include "caravan/comm/shared/rounds.h"

namespace caravan::shared {

/// One of the verbs that all ranks call. In the first round every rank shows its call and where its buffers lie. From
/// what they see, all choose the same path:
///
///   payload   up to 24 bytes travel in the lines themselves: one round.
///   direct    every buffer that peers need lies in an arena: they read it, and write the result, in place. Each rank
///             reduces its own part of everybody's data and writes it to everybody. Two rounds: begin, and end, since
///             the buffers are the peers' until all have finished.
///   staged    any memory: copied through the staging buffers, a chunk a round, by way of the cache.
///   paired    the same for a long all_reduce of many ranks: a round in which each reduces its piece of the chunk, and
///             one in which all copy the results.
class Collective final : public Rounds {
 public:
  Collective(Seat& seat, Operation& operation);

 private:
  enum class Path : uint8_t { payload, direct, staged, paired };

  void write(uint64_t round, int64_t step) override;
  Next read(uint64_t round, int64_t step) override;

  // collective.cpp
  void show_call(uint64_t round);
  bool calls_fit(uint64_t round) const override;
  Path choose(uint64_t round) const;
  bool fits_payload() const noexcept;
  void collect_payloads(uint64_t round) const;
  void read_payloads(uint64_t round) const;

  // collective_direct.cpp
  Next move_directly(uint64_t round);
  Next reduce_own_share(uint64_t round);
  /// To seat_.outs, from this place in everybody's input.
  Next reduce_part(uint64_t round, int64_t begin, int64_t count);
  Next gather_directly(uint64_t round);
  Next exchange_directly(uint64_t round);
  /// A bounded piece of it; true with the last.
  bool copy_from(uint64_t place, int64_t begin_bytes, std::byte* to, int64_t bytes);
  std::byte* reach(uint64_t place, int64_t begin_bytes, int64_t bytes) const;

  // collective_staged.cpp
  struct Piece {
    int64_t begin, count;
  };
  void write_staged(uint64_t round, int64_t step) const;
  bool read_staged(uint64_t round, int64_t step) const;
  int64_t count_steps(uint64_t round) const;
  void write_range(uint64_t round, int64_t offset_bytes, int64_t begin, int64_t count) const;
  void write_blocks(uint64_t round, int64_t step) const;
  void reduce_range(uint64_t round, int64_t offset_bytes, int64_t own, int64_t begin, int64_t count) const;
  void read_reduced_block(uint64_t round, int64_t step) const;
  void gather_parts(uint64_t round, int64_t step) const;
  void read_blocks(uint64_t round, int64_t step) const;
  void read_range(uint64_t round, int from, int64_t offset_bytes, int64_t to, int64_t count) const;
  /// What `rank` reduces of a chunk, in elements of the chunk.
  Piece piece_of(int rank, int64_t chunk) const;
  void write_result(uint64_t round, int64_t chunk) const;
  void read_paired(uint64_t round, int64_t step) const;

  Path path_ = Path::staged;
  int64_t first_step_ = 0;  // of the staged path
  int64_t num_steps_ = 0;
  int64_t cursor_ = 0;  // elements or bytes that the direct path has done
  int peer_ = 0;        // with this many peers behind it
  int64_t element_bytes_;
  int64_t chunk_elems_;  // of a whole staging buffer
  int64_t block_bytes_;  // of a staging buffer cut into one block per rank
  int64_t block_elems_;
};

}  // namespace caravan::shared
