#pragma once

#include <array>
#include <cstdint>

namespace caravan::fitted {

// Sources in brackets: cost/constants.h.

/// Where the kernels between products come from.
enum class Elementwise : uint8_t {
  eager,     ///< one for each operation
  fused,     ///< by hand: Megatron, Transformer Engine
  compiled,  ///< torch.compile, XLA
};
/// Which kernel computes fused attention; the device decides about the rest.
enum class AttentionKernel : uint8_t { flash1, flash2, cudnn };
/// What a framework keeps for each parameter.
enum class StateKind : uint8_t {
  deepspeed,       ///< 16-bit weights and gradients, fp32 gradients in the step
  main_grad,       ///< gradients in fp32
  main_grad16,     ///< gradients in 16 bit: NeMo
  main_grad_copy,  ///< fp32 gradients beside temporary 16-bit ones: Megatron-LM 1 and 2
  fp32_master,     ///< FSDP: fp32 parameters are the master copy
};
/// Bytes of a parameter.
struct StateBytes {
  double weights, gradients, optimizer, in_step;
};
inline constexpr std::array<StateBytes, 5> kStateBytes{
    {{2, 2, 12, 4}, {2, 4, 12, 0}, {2, 2, 12, 0}, {2, 8, 12, 0}, {4, 4, 8, 0}}};  // by StateKind [counted]

/// How a class of training programs computes; the defaults are those of an unknown eager one.
struct Framework {
  double dispatch_us = 22;  ///< of the host for a kernel [recalled: forward of GPT-2 in Hugging Face, 8 to 9 ms]
  bool runs_ahead = true;   ///< the host, over a whole pass; else each kernel waits for its launch
  Elementwise kernels = Elementwise::eager;
  bool fuses_softmax = false;  ///< unfused attention has scale, mask and softmax in one kernel
  AttentionKernel attention = AttentionKernel::flash2;
  bool stops_early = false;   ///< recomputation ends at the last tensor that backward needs [fitted: llm_foundry]
  double loss_bytes = 34;     ///< moved for a logit, forward and backward [counted]
  double logit_bytes = 14;    ///< alive for a logit at the peak [counted]
  double sum_bytes = 6;       ///< moved for a parameter to add its gradient to that of earlier micro-batches [counted]
  bool overlaps_dp = true;    ///< gradients are reduced behind backward
  double gradient_bytes = 2;  ///< of an element that is reduced
  bool tp_behind_weights = false;  ///< calls of tp in backward are behind the weight gradients
  double tp_hidden = 0;            ///< share of all calls of tp that is hidden
  double gather_tail = 0.1;        ///< share of the smaller of compute and gathers that ZeRO-3 does not hide [recalled]
  StateKind states = StateKind::deepspeed;
  double step_bytes = 40;  ///< moved for a parameter by the optimizer: Adam 30, clipping, unscaling [counted]
  double step_ms = 5;      ///< of a step, whatever its size [recalled]
  double slack = 1.05;  ///< what is not modelled; 1 where fitted [recalled: BLOOM, InternEvo, FSDP are 5-11 % slower]
};

/// Framework::tp_hidden of programs that say so: Transformer Engine's overlap, and asynchronous products of torch
/// [recalled].
inline constexpr double kTensorOverlap = 0.75, kAsyncTensor = 0.6;
inline constexpr double kSumBytesBf16 = 10;  ///< Framework::sum_bytes of DeepSpeed's optimizer for bf16 [counted]

inline constexpr Framework kUnknownFramework{};
/// Megatron-LM until 2023 [fitted: megatron_sc21, seqpar].
inline constexpr Framework kMegatron{.kernels = Elementwise::fused,
                                     .fuses_softmax = true,
                                     .attention = AttentionKernel::flash1,
                                     .loss_bytes = 40,
                                     .logit_bytes = 10,
                                     .sum_bytes = 2,
                                     .overlaps_dp = false,
                                     .gradient_bytes = 4,
                                     .states = StateKind::main_grad,
                                     .step_bytes = 46,
                                     .slack = 1};
/// Megatron core, NeMo [fitted: nvidia_dgxc].
inline constexpr Framework kMegatronCore{.dispatch_us = 15,
                                         .kernels = Elementwise::fused,
                                         .fuses_softmax = true,
                                         .attention = AttentionKernel::cudnn,
                                         .loss_bytes = 30,
                                         .logit_bytes = 10,
                                         .sum_bytes = 2,
                                         .gradient_bytes = 4,
                                         .tp_behind_weights = true,
                                         .gather_tail = 0.05,
                                         .states = StateKind::main_grad,
                                         .slack = 1};
inline constexpr Framework kMegatronDeepspeed{.kernels = Elementwise::fused,
                                              .fuses_softmax = true,
                                              .attention = AttentionKernel::flash1,
                                              .loss_bytes = 40,
                                              .logit_bytes = 10,
                                              .overlaps_dp = false,
                                              .gather_tail = 0.2,
                                              .slack = 1.04};
/// A step that is composed of kernels profiled alone: nothing is added up, the host is not ahead [fitted:
/// vtrain_single].
inline constexpr Framework kProfiledKernels{.dispatch_us = 32,
                                            .runs_ahead = false,
                                            .kernels = Elementwise::fused,
                                            .fuses_softmax = true,
                                            .attention = AttentionKernel::flash1,
                                            .loss_bytes = 40,
                                            .logit_bytes = 10,
                                            .sum_bytes = 0,
                                            .overlaps_dp = false,
                                            .step_bytes = 33,
                                            .step_ms = 0,
                                            .slack = 1};
inline constexpr Framework kDeepspeed{.fuses_softmax = true, .gather_tail = 0.2, .step_ms = 10};
/// PyTorch FSDP [fitted: llm_foundry, torchtitan].
inline constexpr Framework kFsdp{
    .stops_early = true, .gather_tail = 0.05, .states = StateKind::fp32_master, .slack = 1};
/// The same with torch.compile [fitted: torchtitan].
inline constexpr Framework kFsdpCompiled{.dispatch_us = 8,
                                         .kernels = Elementwise::compiled,
                                         .fuses_softmax = true,
                                         .stops_early = true,
                                         .loss_bytes = 26,
                                         .logit_bytes = 12,
                                         .gather_tail = 0.05,
                                         .states = StateKind::fp32_master,
                                         .slack = 1};
inline constexpr Framework kJax{.dispatch_us = 3,
                                .kernels = Elementwise::compiled,
                                .fuses_softmax = true,
                                .attention = AttentionKernel::cudnn,
                                .loss_bytes = 26,
                                .logit_bytes = 10,
                                .sum_bytes = 4,
                                .tp_behind_weights = true,
                                .tp_hidden = 0.5,
                                .gather_tail = 0.05,
                                .states = StateKind::fp32_master,
                                .step_ms = 2,
                                .slack = 1.03};

// This library, whose steps are simulated kernel by kernel

/// Of an expert, share of its mean load by which the fullest is above it [published: with a capacity of 1.25 times the
/// mean, routers that are balanced by a loss drop less than a hundredth of the tokens; Fedus et al., arXiv 2101.03961].
inline constexpr double kExpertOverload = 0.25;

/// Of the host for a kernel of torch in C++ [measured: an addition of 16 numbers on an H100; 7 to 10 us].
inline constexpr double kOwnLaunchSeconds = 10e-6;
inline constexpr double kOwnProductLaunches = 2;  ///< [measured: a small product takes 20 us]
/// By which kernels take longer beside calls, whose kernels take multiprocessors and bandwidth of the memory from them:
/// a hidden call costs a tenth of its time [recalled; as kReductionTail].
inline constexpr double kSlowdownBesideCalls = 0.1;

/// Share of compute that hides communication, at most [recalled]; the rest of each call is exposed.
inline constexpr double kHidesReductions = 0.9, kReductionTail = 0.1, kHidesRing = 0.9, kHidesTensor = 0.5,
                        kExposedMessages = 0.5;
// Launches of the host [counted, but for calls: fitted: vtrain_single].
inline constexpr double kProductLaunches = 2.5;  ///< with bias, view, cast
inline constexpr double kAttentionLaunches = 5;
inline constexpr double kCallLaunches = 3;
/// Share by which a step is slower for each doubling of the hosts: stragglers, tails [fitted: llm_foundry, nvidia_dgxc,
/// torchtitan, all alike].
inline constexpr double kJitter = 0.004;

}  // namespace caravan::fitted
