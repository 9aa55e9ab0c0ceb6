#pragma once

#include "caravan/comm/backends/shared/calls/rounds.h"

namespace caravan::shared {

/// A collective verb. In the first round every rank publishes its call and the offsets of its buffers. All ranks see
/// the same and choose the same path:
///
///   payload   up to 24 bytes travel in the lines themselves: one round.
///   direct    every buffer that peers access lies in an arena: they read inputs and write results in place. Each rank
///             reduces its share of all inputs and writes it to all results. Two rounds; the second one tells that all
///             ranks are done with the buffers.
///   staged    any memory: copied through the staging buffers, one chunk per round.
///   paired    staged, for a long all_reduce of more than two ranks: per chunk a round in which each rank reduces its
///             share and a round in which all ranks copy the results.
class SharedCollective final : public Rounds {
 public:
  SharedCollective(RankState& state, Operation& operation);

 private:
  enum class Path : uint8_t { payload, direct, staged, paired };

  void write(uint64_t round, int64_t step) override;
  Next read(uint64_t round, int64_t step) override;

  // collective.cpp
  void write_call(uint64_t round);
  bool calls_match(uint64_t round) const override;
  Path choose(uint64_t round) const;
  bool fits_payload() const noexcept;
  void collect_payloads(uint64_t round) const;
  void read_payloads(uint64_t round) const;

  // collective_direct.cpp
  Next move_directly(uint64_t round);
  Next reduce_own_share(uint64_t round);
  /// Reduces elements `begin` .. of all inputs into state_.outs.
  Next reduce_part(uint64_t round, int64_t begin, int64_t count);
  Next gather_directly(uint64_t round);
  Next exchange_directly(uint64_t round);
  /// Copies a bounded piece; true if it was the last.
  bool copy_from(uint64_t offset, int64_t begin_bytes, std::byte* to, int64_t bytes);
  std::byte* reach(uint64_t offset, int64_t begin_bytes, int64_t bytes) const;

  // collective_staged.cpp
  /// What `rank` reduces of `count` elements, in whole cache lines.
  struct Piece {
    int64_t begin, count;
  };
  Piece share_of(int rank, int64_t count) const noexcept;
  /// Elements in a staging buffer.
  int64_t chunk_elems() const noexcept {
    return static_cast<int64_t>(Region::staging_bytes(state_.size)) >> element_shift_;
  }
  /// A staging buffer is cut into one block per rank.
  int64_t block_bytes() const noexcept;
  int64_t block_elems() const noexcept { return block_bytes() >> element_shift_; }
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
  int64_t cursor_ = 0;  // elements or bytes that the direct path has finished
  int peer_ = 0;        // peers that it has finished
  int64_t element_bytes_;
  int element_shift_;  // element_bytes_ is a power of two
};

}  // namespace caravan::shared
