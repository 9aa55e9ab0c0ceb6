#pragma once

#include <vector>

#include "caravan/comm/shared/rounds.h"

namespace caravan::shared {

/// One of the verbs that all ranks call: moves its data through the staging buffers, one chunk a round. In the first
/// round every rank compares the calls of all, so a difference is the same error on each of them.
///
/// all_reduce, reduce and all_gather put the same elements at the place of everybody's chunk; reduce_scatter and
/// all_to_all cut the buffer into one block per receiver.
class Collective final : public Rounds {
 public:
  Collective(Seat& seat, std::shared_ptr<Operation> operation);

 private:
  void write(uint64_t round, int64_t step) override;
  bool read(uint64_t round, int64_t step) override;

  void publish_call(uint64_t round) const;
  int64_t count_steps(uint64_t round) const;

  void write_range(uint64_t round, int64_t offset_bytes, int64_t begin, int64_t count) const;
  void write_blocks(uint64_t round, int64_t step) const;
  void reduce_range(uint64_t round, int64_t offset_bytes, int64_t begin, int64_t count) const;
  void read_reduced_block(uint64_t round, int64_t step) const;
  void gather_parts(uint64_t round, int64_t step) const;
  void read_blocks(uint64_t round, int64_t step) const;
  void read_range(uint64_t round, int from, int64_t offset_bytes, int64_t to, int64_t count) const;

  int64_t element_bytes_;
  int64_t chunk_elems_;  // of a whole staging buffer
  int64_t block_bytes_;  // of a staging buffer cut into one block per rank
  int64_t block_elems_;
  int64_t num_steps_ = 0;
};

}  // namespace caravan::shared
