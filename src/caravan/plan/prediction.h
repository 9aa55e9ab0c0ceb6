#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "caravan/cost/memory_bytes.h"
#include "caravan/cost/rehearsal.h"

namespace caravan {

/// What to expect of a step on some hardware.
struct Prediction {
  double seconds = 0;            ///< of a step
  double rows_per_second = 0;    ///< of all ranks; of a recipe, sequences
  double tokens_per_second = 0;  ///< of all ranks; 0: rows are not made of tokens
  double utilisation = 0;        ///< model FLOPs by the peak of all devices in the dtype of the arithmetic
  double computes = 0;           ///< seconds of the slowest rank in kernels
  double of_products = 0;        ///< of these, in products and attention
  double on_host = 0;            ///< seconds that the host steps the optimizer
  Rehearsal::Moved moved{};      ///< bytes between tiers, of the rank that moves most
  double idles = 0;              ///< of the slowest rank: neither in kernels nor waiting for an axis that it sends over
  /// Of a pipeline, seconds in which a rank waits for others of its pipeline, or has ended: the mean of all ranks.
  double bubble = 0;
  std::map<std::string, double> waits{};  ///< of the slowest rank, by axis; "host", "disk": for what is offloaded
  MemoryBytes memory{};                   ///< peak of the fullest rank
  int fullest_rank = 0;
  std::string peak_event{};
  int64_t room_bytes = 0;       ///< of a device, or its budget if less; 0: unknown
  int64_t host_bytes = 0;       ///< of all ranks of a host, in its memory beyond devices
  int64_t host_room_bytes = 0;  ///< 0: unknown
  bool fits() const noexcept {
    return (room_bytes <= 0 || memory.total() <= room_bytes) && (host_room_bytes <= 0 || host_bytes <= host_room_bytes);
  }
};

/// Smaller is better: those that fit by their time, others by how many times what there is they need. With something
/// offloaded a layout counts as a tenth slower: no prediction of that was held against a run on an accelerator.
std::pair<bool, double> badness(const Prediction& prediction, bool is_offloaded);

/// What Prediction::waits is for, in a text: an axis, or "the last rank" for calls of all ranks.
std::string wait_name(const std::string& axis);

}  // namespace caravan
