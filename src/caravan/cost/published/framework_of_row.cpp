#include <charconv>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "caravan/cost/published/run.h"

namespace caravan::published {
namespace {

using fitted::Framework;

enum class Class : uint8_t {
  unknown,
  megatron,
  megatron_core,
  megatron_deepspeed,
  profiled,
  deepspeed,
  fsdp,
  fsdp_compiled,
  jax
};

Class class_of(std::string_view text, bool is_hopper) {
  if (has_any(text, {"maxtext", "jax", "tpu", "alpa", "xla"})) return Class::jax;
  if (has_word(text, "compile")) return Class::fsdp_compiled;
  if (has_any(text, {"nemo", "core", "bridge", "transformer engine"})) return Class::megatron_core;
  if (has_word(text, "megatron")) {
    if (has_word(text, "deepspeed")) return Class::megatron_deepspeed;
    return is_hopper ? Class::megatron_core : Class::megatron;
  }
  if (has_word(text, "intern")) return Class::megatron_core;
  if (has_any(text, {"deepspeed", "zero"})) return Class::deepspeed;
  if (has_any(text, {"fsdp", "titan", "composer"})) return Class::fsdp;
  return has_word(text, "colossal") ? Class::deepspeed : Class::unknown;
}

const Framework& traits_of(Class one) {
  switch (one) {
    case Class::megatron: return fitted::kMegatron;
    case Class::megatron_core: return fitted::kMegatronCore;
    case Class::megatron_deepspeed: return fitted::kMegatronDeepspeed;
    case Class::profiled: return fitted::kProfiledKernels;
    case Class::deepspeed: return fitted::kDeepspeed;
    case Class::fsdp: return fitted::kFsdp;
    case Class::fsdp_compiled: return fitted::kFsdpCompiled;
    case Class::jax: return fitted::kJax;
    case Class::unknown: break;
  }
  return fitted::kUnknownFramework;
}

/// "10 of 40", "10/40": the share; nothing if the text has no such pair.
std::optional<double> share_in(std::string_view text) {
  const auto number_at = [&](size_t& at) {
    double value = 0;
    const auto [end, error] =
        std::from_chars(text.data() + at, text.data() + text.size(), value, std::chars_format::fixed);
    at = static_cast<size_t>(end - text.data());
    return error == std::errc() ? std::optional(value) : std::nullopt;
  };
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] < '0' || text[at] > '9') continue;
    const std::optional<double> part = number_at(at);
    size_t next = text.find_first_not_of(' ', at);
    if (next == std::string_view::npos) return std::nullopt;
    const size_t skipped = text.substr(next).starts_with("of") ? 2 : text[next] == '/' ? 1 : 0;
    if (skipped == 0) continue;
    next = text.find_first_not_of(' ', next + skipped);
    if (next == std::string_view::npos || text[next] < '0' || text[next] > '9') continue;
    const std::optional<double> whole = number_at(next);
    if (part && whole && *whole >= *part && *part > 0) return *part / *whole;
  }
  return std::nullopt;
}

void describe_recompute(const Row& row, Run& run) {
  const std::string text = row.lower("recompute") + " " + row.lower("recompute_detail");
  run.recomputed = share_in(text).value_or(1);
  run.cuts_checkpoints = has_word(text, "partition");
  using enum Run::Recompute;
  if (has_any(text, {"(op)", "per-op", "op sac"})) {
    run.recompute = operators;
  } else if (has_word(text, "select")) {
    run.recompute = attention;
  } else if (has_any(text, {"full", "yes", "layer", "block"}) || text[0] == 'y') {
    run.recompute = full;
  }
}

void describe_attention(const Row& row, const std::string& words, Class one, Run& run) {
  const std::string flash = row.lower("flash_attn");
  const bool is_usual = run.is_power_limited || one == Class::fsdp_compiled || one == Class::jax ||
                        has_word(words, "titan") || has_word(row.lower("arch"), "mpt") || run.sequence > 8192;
  run.is_flash = has_word(flash, "flash") || row.flag("flash_attn", is_usual);
  fitted::AttentionKernel kernel = run.framework.attention;
  if (has_any(words, {"pytorch 1.13", "pytorch 2.0", "triton"})) kernel = fitted::AttentionKernel::flash1;
  if (kernel == fitted::AttentionKernel::flash1) run.attention = fitted::kFlash1;
  if (kernel == fitted::AttentionKernel::flash2) {
    run.attention = run.is_power_limited ? fitted::kFlash2Hopper : fitted::kFlash2;
  }
  if (kernel == fitted::AttentionKernel::cudnn) run.attention = run.is_power_limited ? fitted::kCudnn : fitted::kFlash2;
}

/// What a row says of its program beside its name.
void describe_options(const Row& row, const std::string& words, Class one, Run& run) {
  const std::string precision = row.lower("precision");
  Framework& traits = run.framework;
  if (one == Class::megatron) {
    traits.gradient_bytes = has_word(precision, "bf16") ? 4 : 2;  // only bf16 runs reduce in fp32
    const bool is_old = has_any(words, {"v1.", "v2."});
    if (is_old) traits.states = fitted::StateKind::main_grad_copy;
    if (!is_old && !has_word(words, "@6985")) traits.tp_behind_weights = true;  // since 2022
  }
  if (one == Class::megatron_deepspeed && has_word(precision, "bf16")) {
    traits.sum_bytes = fitted::kSumBytesBf16;  // DeepSpeed's optimizer for bf16 sums in fp32
    traits.gradient_bytes = 4;
  }
  if (one == Class::megatron_core && has_word(words, "nemo")) {
    traits.gradient_bytes = 2;  // grad_reduce_in_fp32 = False
    traits.states = fitted::StateKind::main_grad16;
  }
  if (has_any(words, {"tp communication overlap", "tp overlap", "tp comm overlap"}))
    traits.tp_hidden = fitted::kTensorOverlap;
  if (has_any(words, {"async tp", "asynctp"})) traits.tp_hidden = fitted::kAsyncTensor;
  if (has_word(words, "torch ddp")) traits.overlaps_dp = true;
  if (has_any(words, {"local ddp", "no overlap", "no ddp overlap"})) traits.overlaps_dp = false;
  if (has_word(words, "titan") || has_word(precision, "fp32 params/reduce")) traits.gradient_bytes = 4;
  if (has_word(row.lower("sharding"), "pure")) {  // all in 16 bit, the loss too
    traits.gradient_bytes = 2;
    traits.logit_bytes = 6;
  }
}

void describe_precision(const Row& row, Run& run) {
  const std::string text = row.lower("precision");
  const bool is_fp8 = has_any(text + " " + row.lower("framework"), {"fp8", "float8"});
  const HardwareDevice& device = run.device();
  if (is_fp8 && device.product("fp8") != nullptr) {
    run.dtype = "fp8";
  } else if (is_fp8 || text.empty() || has_any(text, {"16", "mixed", "amp", "half"})) {
    run.dtype = has_word(text, "bf16") ? "bf16" : "fp16";
  } else {
    run.dtype = device.product("tf32") != nullptr ? "tf32" : "fp32";
  }
  run.element_bytes = run.dtype == "tf32" || run.dtype == "fp32" ? 4 : 2;
}

}  // namespace

void describe_framework(const Row& row, Run& run) {
  const std::string words = row.lower("framework") + " " + row.lower("note") + " " + row.lower("sharding");
  Class one = class_of(row.lower("framework"), run.is_power_limited);
  describe_precision(row, run);
  describe_recompute(row, run);
  // vTrain's times of a host grow with the micro-batch by less than a second forward would take.
  if (has_word(row.lower("table"), "vtrain single")) {
    one = Class::profiled;
    run.recompute = Run::Recompute::none;
  }
  run.framework = traits_of(one);
  describe_attention(row, words, one, run);
  describe_options(row, words, one, run);
  run.gathers_behind_forward = one == Class::megatron_core;
  run.reduces_each_micro_batch = run.zero == 2 && run.pp == 1 && one == Class::deepspeed;
  run.memory_kind = row.lower("mem_kind");
}

}  // namespace caravan::published
