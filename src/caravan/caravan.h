#pragma once

// What a program of your own needs, in one include: see docs/own_programs.md. It includes no header of torch::nn or
// torch::optim, which cost seconds to compile: include the layers and the optimizer that you use. Further headers of
// the library (models, data, plans, schedules, samplers) are included one by one.

// The job: processes, mesh, errors.
#include "caravan/base/error.h"
#include "caravan/comm/tensor.h"
#include "caravan/session/run_program.h"
#include "caravan/session/session.h"

// Your module, how ranks share its work, checkpoints.
#include "caravan/session/autocast.h"
#include "caravan/session/candidates.h"
#include "caravan/session/parallelize.h"
#include "caravan/session/plan_module.h"
#include "caravan/session/trials.h"
#include "caravan/techniques/data/sync_batch_norm.h"

// Tensors over a mesh; global tensors, which any op takes.
#include "caravan/global/creating.h"
#include "caravan/global/global.h"
#include "caravan/global/module.h"
#include "caravan/global/names.h"
#include "caravan/mesh/layout.h"
#include "caravan/mesh/mesh.h"
#include "caravan/mesh/placement.h"
#include "caravan/redistribute/redistribute.h"
