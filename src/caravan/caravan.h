#pragma once

// What a program of one's own needs, in one include: see docs/own_programs.md. It includes no header of torch::nn or
// torch::optim, which cost seconds to compile: include the layers and the optimizer that you use.

// The job: processes, mesh, errors.
#include "caravan/base/error.h"
#include "caravan/comm/shared/thread_ranks.h"
#include "caravan/comm/tensor.h"
#include "caravan/session/session.h"

// Tensors over a mesh.
#include "caravan/mesh/layout.h"
#include "caravan/mesh/mesh.h"
#include "caravan/mesh/placement.h"
#include "caravan/redistribute/redistribute.h"

// Your module, and how ranks share its work.
#include "caravan/engine/stage_runner.h"
#include "caravan/memory/recompute.h"
#include "caravan/module/adapter.h"
#include "caravan/module/plan.h"
#include "caravan/parallel/compress_hook.h"
#include "caravan/parallel/context_parallel.h"
#include "caravan/parallel/ddp.h"
#include "caravan/parallel/expert_parallel.h"
#include "caravan/parallel/param_server.h"
#include "caravan/parallel/pipeline.h"
#include "caravan/parallel/power_sgd.h"
#include "caravan/parallel/replicas.h"
#include "caravan/parallel/ring_attention.h"
#include "caravan/parallel/sync_batch_norm.h"
#include "caravan/parallel/tensor_1d.h"
#include "caravan/parallel/tensor_25d.h"
#include "caravan/parallel/tensor_2d.h"
#include "caravan/parallel/tensor_3d.h"
#include "caravan/parallel/top_k.h"
#include "caravan/parallel/zero.h"
#include "caravan/prove/prove.h"

// Text: tokens, samples.
#include "caravan/data/corpus.h"
#include "caravan/data/token_file.h"
#include "caravan/data/tokenizer.h"
#include "caravan/data/train_windows.h"

// The optimizers, models and text generation of this library.
#include "caravan/generate/generate.h"
#include "caravan/nn/model.h"
#include "caravan/optim/grad_norm.h"
#include "caravan/optim/learning_rate.h"
#include "caravan/optim/loss_scale.h"
#include "caravan/optim/optimizer.h"

// Checkpoints.
#include "caravan/checkpoint/checkpoint.h"
#include "caravan/checkpoint/huggingface.h"
#include "caravan/checkpoint/load_model.h"
#include "caravan/session/module_checkpoint.h"
