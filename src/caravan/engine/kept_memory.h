#pragma once

#include <cstdint>

namespace caravan {

/// How the buffers of a model (running statistics of batch norm) stay equal over the data axes: see model_buffers.h.
enum class Buffers : uint8_t { broadcast, average, local };

/// Where unsharded parameters have their memory. Those that need no gather are the sharded tensors, or copies of them
/// in another dtype, unless weights are stashed. The rest are gathered.
enum class UnshardedMemory : uint8_t {
  freed,     ///< gathered parameters have memory from their gather until no unit reads them
  kept,      ///< gathered parameters keep their memory; sharded ones are inside it where both have one dtype
  shared,    ///< as kept, in one buffer for all ranks of the gathering axis (Communicator::allocate_shared), which then
             ///< copies nothing; a separate buffer if several axes gather or memory is not shared
  versions,  ///< as kept, but separate from the sharded parameters: this rank's version of the values, which a
             ///< StepExchange may change during a step
  stashed,   ///< for stages that step their optimizer between passes (Pass::Kind::update), while micro-batches are in
             ///< flight: unsharded parameters are versions of the weights, and a backward reads the version of its
             ///< forward (weight_versions.h). None is gathered
};
/// Whether gathered parameters keep their memory when they are freed.
constexpr bool keeps_unsharded(UnshardedMemory memory) noexcept {
  return memory == UnshardedMemory::kept || memory == UnshardedMemory::shared || memory == UnshardedMemory::versions;
}

}  // namespace caravan
