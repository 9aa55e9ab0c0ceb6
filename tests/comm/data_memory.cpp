#include <cstdlib>
#include <map>
#include <memory>

#include <gtest/gtest.h>

#include "tests/comm/reference.h"

namespace caravan::testing {
namespace {

thread_local Communicator* source = nullptr;
thread_local std::map<void*, std::shared_ptr<void>> blocks;

}  // namespace

MemoryOf::MemoryOf(Communicator& comm, Memory memory) {
  const bool uses_arena = memory == Memory::arena || (memory == Memory::mixed && comm.rank() % 2 == 0);
  source = uses_arena ? &comm : nullptr;
}

MemoryOf::~MemoryOf() {
  EXPECT_TRUE(blocks.empty()) << "Data outlives the communicator it was allocated from";
  source = nullptr;
}

std::byte* allocate_data(size_t bytes) {
  if (source == nullptr) return static_cast<std::byte*>(std::malloc(bytes));
  std::shared_ptr<void> block = source->allocate(bytes);
  auto* const data = static_cast<std::byte*>(block.get());
  blocks[data] = std::move(block);
  return data;
}

void free_data(std::byte* data) noexcept {
  if (blocks.erase(data) == 0) std::free(data);
}

}  // namespace caravan::testing
