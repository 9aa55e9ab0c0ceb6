#pragma once

// Everything that a user's program needs, in one include: see docs/own_programs.md. It includes no header of torch::nn
// or torch::optim, which cost seconds to compile: include the layers and the optimizer that you use.

// The job: processes, mesh, errors.
#include "caravan/base/error.h"
#include "caravan/comm/backends/shared/thread_ranks.h"
#include "caravan/comm/tensor.h"
#include "caravan/session/session.h"

// Tensors over a mesh.
#include "caravan/mesh/layout.h"
#include "caravan/mesh/mesh.h"
#include "caravan/mesh/placement.h"
#include "caravan/redistribute/redistribute.h"

// Your module, and how ranks share its work.
#include "caravan/engine/stages/stage_runner.h"
#include "caravan/module/adapter.h"
#include "caravan/module/plan/plan.h"
#include "caravan/prove/prove.h"
#include "caravan/techniques/averaging/replicas.h"
#include "caravan/techniques/compression/compress_hook.h"
#include "caravan/techniques/compression/power_sgd.h"
#include "caravan/techniques/compression/top_k.h"
#include "caravan/techniques/context/context_parallel.h"
#include "caravan/techniques/context/ring_attention.h"
#include "caravan/techniques/data/ddp.h"
#include "caravan/techniques/data/sync_batch_norm.h"
#include "caravan/techniques/data/zero.h"
#include "caravan/techniques/expert/expert_parallel.h"
#include "caravan/techniques/grid/tensor_25d.h"
#include "caravan/techniques/grid/tensor_2d.h"
#include "caravan/techniques/grid/tensor_3d.h"
#include "caravan/techniques/pipeline/pipeline.h"
#include "caravan/techniques/recompute/recompute.h"
#include "caravan/techniques/server/param_server.h"
#include "caravan/techniques/tensor/tensor_1d.h"

// Text: tokens, samples.
#include "caravan/data/files/corpus.h"
#include "caravan/data/tokenizer/tokenizer.h"
#include "caravan/data/windows/token_file.h"
#include "caravan/data/windows/train_windows.h"

// The optimizers, models and text generation of this library.
#include "caravan/generate/generate.h"
#include "caravan/models/model.h"
#include "caravan/optim/grad_norm.h"
#include "caravan/optim/learning_rate.h"
#include "caravan/optim/loss_scale.h"
#include "caravan/optim/optimizer.h"

// Checkpoints.
#include "caravan/formats/checkpoint/checkpoint.h"
#include "caravan/formats/huggingface/huggingface.h"
#include "caravan/formats/huggingface/load_model.h"
#include "caravan/session/module_checkpoint.h"
