#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "caravan/cost/constants.h"
#include "caravan/cost/hardware.h"
#include "caravan/cost/published/table.h"

namespace caravan::published {

/// A published run, described in full: what its row does not say is what such runs usually have.
struct Run {
  // Where
  Hardware hardware{};
  int64_t per_host = 8;
  bool is_power_limited = false;  ///< Hopper and later

  // Model
  int64_t layers = 32, width = 4096, heads = 32, kv_heads = 32, head_width = 128, mlp_width = 16384;
  int64_t sequence = 2048, vocabulary = 51200;
  bool is_gated = false;  ///< the MLP
  bool is_llama = false;  ///< RMSNorm, rotary positions, no bias, no dropout
  bool has_dropout = true;
  bool is_causal = true;
  bool ties_embedding = true;
  int64_t experts = 1, experts_per_token = 1;

  // Layout: the ranks of tp are neighbours, then those of cp, dp, pp
  int64_t ranks = 1, tp = 1, pp = 1, cp = 1, dp = 1;
  int64_t micro_batch = 1, micro_batches = 1, global_batch = 1;
  int64_t chunks = 1;                             ///< stages of a rank
  std::string schedule{};                         ///< entry of the registry
  double held_share = 1;                          ///< of activations, that a schedule with fewer of them holds
  std::vector<std::vector<int64_t>> layers_of{};  ///< by rank of pp and chunk
  double tensor_cube = 0;        ///< 2 or 3: tensor parallelism over a square or cube of ranks; 0: over a row
  bool cuts_sequence = false;    ///< tp also cuts what is between its layers
  bool is_ulysses = false;       ///< cp exchanges heads
  int64_t memory_of_stage = -1;  ///< -1: of the fullest
  int64_t zero = 0;
  int64_t shards = 1;         ///< ranks over which states are cut
  bool gathers_twice = true;  ///< in backward again
  enum class Offload : uint8_t { none, optimizer, parameters, disk } offload = Offload::none;

  // Computation
  std::string dtype = "fp16";
  double element_bytes = 2;  ///< of an activation or gathered weight
  bool is_flash = false;
  fitted::AttentionRate attention{};
  enum class Recompute : uint8_t { none, attention, operators, full } recompute = Recompute::none;
  double recomputed = 1;  ///< share of the layers
  bool cuts_checkpoints = false;
  fitted::Framework framework{};
  bool gathers_behind_forward = false;  ///< of the distributed optimizer
  bool reduces_each_micro_batch = false;
  std::string memory_kind{};  ///< what the published number counts

  // What follows
  double attention_weights = 0, mlp_weights = 0, layer_weights = 0, embedding_weights = 0, weights = 0;
  std::vector<double> stage_weights{};  ///< of a rank, by coordinate of pp

  int64_t layers_on(size_t stage) const;
  double tokens() const {  ///< of a micro-batch on one rank
    return static_cast<double>(micro_batch) * static_cast<double>(sequence) / static_cast<double>(cp);
  }
  const HardwareDevice& device() const { return hardware.devices.front(); }
};

/// Never throws for what a row says.
Run describe(const Row& row);

// Parts of it.

void describe_hardware(const Row& row, Run& run);   // hardware_of_row.cpp; needs the number of ranks
void describe_framework(const Row& row, Run& run);  // framework_of_row.cpp

}  // namespace caravan::published
