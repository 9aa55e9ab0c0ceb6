#pragma once

#include <vector>

#include "caravan/engine/strategy.h"

namespace caravan {

/// The axes of `mesh` over which the batch of a step is split, larger than 1: each of their coordinates has a part.
std::vector<MeshAxis> data_axes(const Strategy& strategy, const Mesh& mesh);

/// The data-parallel ranks that have a part of the batch of a step.
struct Attendance {
  bool is_here = true;       ///< this rank has a part
  int num_here = 1;          ///< number of coordinates on the data axes that have a part
  int num_coords = 1;        ///< number of all coordinates on the data axes
  int first_rank = 0;        ///< the lowest rank of the mesh that has a part
  std::vector<int> first{};  ///< the coordinates of that rank, by data axis
  int num_micro_batches = 0;

  bool is_full() const noexcept { return num_here == num_coords; }
};

/// Attendance in which every rank has a part.
Attendance full_attendance(const Strategy& strategy, const Mesh& mesh);

/// Agrees on which ranks have a part. Every rank of `mesh` calls it; all get the same result except for is_here.
/// num_here is 0 if none has one. Sends one all-reduce of 24 + 16 x num_coords bytes. Throws as
/// Engine::begin_join_step.
Attendance agree_on_attendance(const Strategy& strategy, const Mesh& mesh, bool has_batch, int num_micro_batches);

}  // namespace caravan
