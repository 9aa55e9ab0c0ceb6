#pragma once

#include <vector>

#include "caravan/formats/huggingface/architectures/architecture_row.h"

namespace caravan {

// The rows by family.

ArchitectureRow gpt2_row();
ArchitectureRow gpt_neox_row();
ArchitectureRow opt_row();
ArchitectureRow bloom_row();
ArchitectureRow falcon_row();

ArchitectureRow bert_row();
ArchitectureRow t5_row();

ArchitectureRow llama_row();
ArchitectureRow mistral_row();
ArchitectureRow mixtral_row();
ArchitectureRow phi3_row();
ArchitectureRow smollm3_row();
ArchitectureRow olmo2_row();

ArchitectureRow qwen2_row();
ArchitectureRow qwen2_moe_row();
ArchitectureRow qwen3_row();
ArchitectureRow qwen3_moe_row();

ArchitectureRow gemma_row();
ArchitectureRow gemma2_row();
ArchitectureRow gemma3_row();

}  // namespace caravan
