#pragma once

// Numbers of the model of a step's time and memory that are fitted, counted or recalled; data of devices and links
// is in hardware_presets.cpp. None depends on a degree of parallelism, a micro-batch or the shape of a model.
//
// Sources, in brackets: [published] a paper or data sheet; [counted] follows from the operations; [recalled] common
// knowledge, not measured here; [fitted: X] to the runs of source X in a table of published runs, with X one of
//   vtrain_single      steps of one host of 8 A100, composed of profiled kernels; Bang et al., arXiv 2312.12391
//   megatron_sc21      Narayanan et al., arXiv 2104.04473;  seqpar  Korthikanti et al., arXiv 2205.05198
//   llm_foundry        MosaicML's table of FSDP runs;  torchtitan  Liang et al., arXiv 2410.06511
//   nvidia_dgxc        NVIDIA's table of NeMo runs on H100
//
// Fits of presets are in hardware_presets.cpp, assumptions about what a row does not say in published/.

#include "caravan/cost/constants/calls.h"
#include "caravan/cost/constants/frameworks.h"
#include "caravan/cost/constants/kernels.h"
#include "caravan/cost/constants/memory.h"
