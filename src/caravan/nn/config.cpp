#include "caravan/nn/config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "caravan/base/divisors.h"
#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/nn/lora.h"

namespace caravan {
namespace {

[[noreturn]] void refuse(std::string_view key, std::string fact, std::string action) {
  throw UsageError({"model", fmt::format("model.{}", key), std::move(fact), "", std::move(action)});
}

/// These limits keep every product of sizes within 63 bits; they are far above any real model.
void check_range(std::string_view key, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return;
  refuse(key, fmt::format("{} is not between {} and {}", value, least, most),
         fmt::format("the nearest valid value is {}", value < least ? least : most));
}

void check_real(std::string_view key, double value, bool is_valid, std::string_view range, std::string_view example) {
  if (!std::isfinite(value) || !is_valid) {
    refuse(key, fmt::format("{} is not {}", value, range), fmt::format("a usual value is {}", example));
  }
}

/// The divisors of `whole` that `fits` accepts, one up to `number` and one above it: "6 or 8".
template <class Fits>
std::string nearest_divisors(int64_t whole, int64_t number, Fits fits) {
  std::vector<int64_t> all = divisors(whole);
  std::erase_if(all, [&](int64_t d) { return !fits(d); });
  return join(nearest(all, number, 1), " or ");
}

void check_heads(const ModelConfig& c) {
  const bool rotates = c.kind == ModelKind::llama;
  const auto even_heads = [&](int64_t heads) { return !rotates || c.width / heads % 2 == 0; };
  if (c.width % c.heads != 0 || !even_heads(c.heads)) {
    const std::string valid = nearest_divisors(c.width, c.heads, even_heads);
    const std::string fact = c.width % c.heads != 0
                                 ? fmt::format("{} heads do not divide width {}", c.heads, c.width)
                                 : fmt::format("heads of width {} cannot be rotated in pairs", c.width / c.heads);
    const int64_t unit = rotates ? 2 * c.heads : c.heads;
    const std::string widths = fmt::format("a width that is a multiple of {}, such as {}", unit,
                                           std::max<int64_t>(1, (c.width + unit / 2) / unit) * unit);
    refuse("heads", fact, valid.empty() ? "use " + widths : fmt::format("use heads = {}, or {}", valid, widths));
  }
  if (c.heads % c.num_kv_heads() != 0) {
    refuse("kv_heads", fmt::format("{} kv_heads do not divide {} heads", c.kv_heads, c.heads),
           fmt::format("use kv_heads = {}", nearest_divisors(c.heads, c.kv_heads, [](int64_t) { return true; })));
  }
  if (!rotates && c.num_kv_heads() != c.heads) {
    refuse("kv_heads",
           fmt::format("{} kv_heads for {} heads: GPT-2 has no grouped-query attention", c.kv_heads, c.heads),
           "leave kv_heads out, or use kind = \"llama\"");
  }
}

void check_experts(const ModelConfig& c) {
  const MoeConfig& moe = c.moe;
  const auto refuse_moe = [](std::string_view key, std::string fact, std::string action) {
    throw UsageError({"model", fmt::format("moe.{}", key), std::move(fact), "", std::move(action)});
  };
  if (moe.experts < 0 || moe.experts > 1 << 16) {
    refuse_moe("experts", fmt::format("{} is not between 0 and {}", moe.experts, 1 << 16), "a usual value is 8");
  }
  if (!moe.is_used()) return;
  if (moe.top_k < 1 || moe.top_k > moe.experts) {
    refuse_moe("top_k", fmt::format("a token goes to {} of {} experts", moe.top_k, moe.experts),
               fmt::format("use top_k = {}", std::clamp<int64_t>(moe.top_k, 1, moe.experts)));
  }
  if (moe.shared_hidden < 0 || moe.shared_hidden > 1 << 22) {
    refuse_moe("shared", fmt::format("a shared expert of width {}", moe.shared_hidden), "use 0, or its width");
  }
  if (moe.shared_gate && !moe.has_shared()) {
    refuse_moe("shared_gate", "gates a shared expert, and there is none", "set moe.shared to its width");
  }
  const auto check = [&](std::string_view key, double value, const char* usual) {
    if (!std::isfinite(value) || value < 0) {
      refuse_moe(key, fmt::format("{} is below 0 or not a number", value), fmt::format("a usual value is {}", usual));
    }
  };
  check("capacity", moe.capacity, "0 or 1.25");
  check("balance_loss", moe.balance_loss, "0.01");
  check("z_loss", moe.z_loss, "0 or 0.001");
  if (moe.capacity > 0 && moe.balances_batch()) {
    refuse_moe("capacity", "experts of limited capacity take the tokens of a sequence in order, and a batch has none",
               "use moe.balance = \"sequence\", or leave the capacity at 0");
  }
}

}  // namespace

std::string_view name(ModelKind kind) noexcept { return kind == ModelKind::gpt2 ? "gpt2" : "llama"; }

ModelKind model_kind(std::string_view name) {
  if (name == "gpt2") return ModelKind::gpt2;
  if (name == "llama") return ModelKind::llama;
  const std::array<std::string, 2> known{"gpt2", "llama"};
  refuse("kind", fmt::format("there is no model kind '{}'", name),
         fmt::format("the nearest is '{}'; there are {}", nearest(name, known), join(known)));
}

int64_t ModelConfig::hidden_width() const noexcept {
  if (hidden != 0) return hidden;
  if (kind == ModelKind::gpt2) return 4 * width;
  return (8 * width + 3 * 64 - 1) / (3 * 64) * 64;
}

void ModelConfig::validate() const {
  check_range("layers", layers, 1, 1 << 16);
  check_range("width", width, 1, 1 << 20);
  check_range("heads", heads, 1, 1 << 20);
  check_range("kv_heads", kv_heads, 0, heads);
  check_range("context", context, 1, 1 << 28);
  check_range("vocabulary", vocabulary, 1, 1 << 28);
  check_range("hidden", hidden, 0, 1 << 22);
  check_heads(*this);
  check_experts(*this);
  check_lora(*this);
  if (qkv_bias && kind == ModelKind::gpt2) {
    refuse("qkv_bias", "GPT-2 has these biases anyway", "leave qkv_bias out, or use kind = \"llama\"");
  }
  check_real("dropout", dropout, dropout >= 0 && dropout < 1, "in [0, 1)", "0 or 0.1");
  check_real("norm_epsilon", norm_epsilon, norm_epsilon > 0, "above 0", "1e-5");
  check_real("rope_theta", rope_theta, rope_theta > 1, "above 1", "10000");
}

namespace {

/// Parameters of an MLP.
int64_t mlp_parameters(const ModelConfig& c, int64_t hidden) {
  if (c.kind == ModelKind::gpt2) return 2 * c.width * hidden + hidden + c.width;
  return 3 * c.width * hidden;
}

/// Parameters of the MLP, or of the mixture of experts in its place.
int64_t feed_parameters(const ModelConfig& c) {
  const MoeConfig& moe = c.moe;
  if (!moe.is_used()) return mlp_parameters(c, c.hidden_width());
  const int64_t router = c.width * moe.experts;
  const int64_t shared = moe.has_shared() ? mlp_parameters(c, moe.shared_hidden) + (moe.shared_gate ? c.width : 0) : 0;
  return router + moe.experts * mlp_parameters(c, c.hidden_width()) + shared;
}

}  // namespace

int64_t ModelConfig::num_parameters() const noexcept {
  const int64_t kv_width = num_kv_heads() * head_width();
  const bool is_gpt2 = kind == ModelKind::gpt2;
  const int64_t biases = (has_qkv_bias() ? width + 2 * kv_width : 0) + (is_gpt2 ? width : 0);
  const int64_t norm = (is_gpt2 ? 2 : 1) * width;
  const int64_t layer = 2 * width * width + 2 * width * kv_width + biases + feed_parameters(*this) + 2 * norm;
  const int64_t words = (vocabulary + (is_gpt2 ? context : 0)) * width;
  return words + layers * layer + norm + (tie_embeddings ? 0 : vocabulary * width) + adapter_parameters(*this);
}

double ModelConfig::flops_per_token(int64_t length) const noexcept {
  const double h = static_cast<double>(width);
  const double grouped = static_cast<double>(num_kv_heads()) / static_cast<double>(heads);
  const double matrices_of_mlp = kind == ModelKind::gpt2 ? 2 : 3;
  const int64_t passed = moe.is_used() ? moe.top_k * hidden_width() + moe.shared_hidden : hidden_width();
  const auto scores = static_cast<double>(moe.experts);
  const double layer = 4 * h * h * (1 + grouped) + 2 * matrices_of_mlp * h * static_cast<double>(passed) +
                       2 * h * scores + 4 * static_cast<double>(length) * h;
  const double forward = static_cast<double>(layers) * layer + 2 * h * static_cast<double>(vocabulary);
  // A frozen weight has no gradient, which saves a third of its products.
  return lora.is_used() ? 2 * forward + 3 * 2 * static_cast<double>(adapter_parameters(*this)) : 3 * forward;
}

}  // namespace caravan
