// Attention of one thread, forward and backward, beside torch's and beside a large product: causal, 24 heads or fewer.
//   attention [REPEAT [WIDTH LENGTH]]     medians of REPEAT (9) interleaved calls, of all shapes or of one: GFLOP/s of
//                                         the visible scores, share of the product
#include <algorithm>
#include <charconv>
#include <chrono>
#include <functional>
#include <string_view>
#include <system_error>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/randn.h>
#include <fmt/format.h>

#include "caravan/base/system/processor.h"
#include "caravan/nn/attention/tiled_attention.h"
#include "caravan/nn/product/product.h"
#include "caravan/nn/product/tile_product.h"
#include "caravan/session/run_program.h"

using namespace caravan;

namespace {

double seconds(const std::function<void()>& call) {
  const auto begin = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// The median time of each call, taken in turn.
std::vector<double> medians(int repeat, const std::vector<std::function<void()>>& calls) {
  std::vector<std::vector<double>> times(calls.size());
  for (int i = 0; i <= repeat; ++i) {
    for (size_t j = 0; j < calls.size(); ++j) {
      const double time = seconds(calls[j]);
      if (i > 0) times[j].push_back(time);  // the first call prepares kernels
    }
  }
  std::vector<double> result;
  for (std::vector<double>& one : times) {
    std::ranges::sort(one);
    result.push_back(one[one.size() / 2]);
  }
  return result;
}

double product_rate(at::ScalarType type, int repeat) {
  constexpr int64_t kSide = 1024;
  const at::Tensor a = at::randn({kSide, kSide}).to(type), b = at::randn({kSide, kSide}).to(type);
  return 2e-9 * kSide * kSide * kSide / medians(repeat, {[&] { product(a, b, ProductKind::forward); }})[0];
}

void time_shape(at::ScalarType type, int64_t width, int64_t positions, double rate, int repeat) {
  const int64_t heads = std::clamp<int64_t>((int64_t{1} << 24) / (positions * positions), 1, 24);
  const auto operand = [&] { return at::randn({1, positions, heads, width}).to(type); };
  const at::Tensor q = operand(), k = operand(), v = operand(), dy = operand();
  const auto turned = [](const at::Tensor& x) { return x.transpose(1, 2); };
  const VisibleKeys seen = VisibleKeys::causal();
  const auto operands = type == at::kBFloat16 && has_bf16_tiles() ? TileOperands::rounded_bf16 : TileOperands::fp32;
  const TiledAttention y = tiled_attention(q, k, v, seen, {}, nullptr, operands, type);
  const auto [out, log_sum_exp] =
      at::_scaled_dot_product_flash_attention_for_cpu(turned(q), turned(k), turned(v), 0.0, true);
  const std::vector<double> times = medians(
      repeat, {[&] { tiled_attention(q, k, v, seen, {}, nullptr, operands, type); },
               [&] { at::_scaled_dot_product_flash_attention_for_cpu(turned(q), turned(k), turned(v), 0.0, true); },
               [&] { tiled_attention_backward(dy, q, k, v, y, seen, {}, nullptr, operands, type); },
               [&] {
                 at::_scaled_dot_product_flash_attention_for_cpu_backward(turned(dy), turned(q), turned(k), turned(v),
                                                                          out, log_sum_exp, 0.0, true);
               }});
  const double gflop = 1e-9 * static_cast<double>(heads * width * positions * (positions + 1));  // of one product
  const auto rate_of = [&](double products, double time) { return products * gflop / time; };
  fmt::print("{} {:4} {:5} {:3}   {:6.1f} {:4.0f} % {:7.1f}   {:6.1f} {:4.0f} % {:7.1f}\n",
             type == at::kFloat ? "fp32" : "bf16", width, positions, heads, rate_of(2, times[0]),
             100 * rate_of(2, times[0]) / rate, rate_of(2, times[1]), rate_of(5, times[2]),
             100 * rate_of(5, times[2]) / rate, rate_of(5, times[3]));
}

/// The number that an argument is; 0 if it is none from 1 on.
int number_of(std::string_view text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc{} && end == text.data() + text.size() ? std::max(number, 0) : 0;
}

void time_all(int repeat, const std::vector<int64_t>& widths, const std::vector<int64_t>& lengths) {
  at::set_num_threads(1);
  const at::NoGradGuard no_grad;
  fmt::print("{}\n                      forward               backward\n", processor_class());
  fmt::print("     width length heads   GFLOP/s  share  torch    GFLOP/s  share  torch\n");
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const double rate = product_rate(type, repeat);
    fmt::print("a product of 1024 x 1024 x 1024: {:.1f} GFLOP/s\n", rate);
    for (const int64_t width : widths) {
      for (const int64_t positions : lengths) time_shape(type, width, positions, rate, repeat);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<int> numbers;
  for (int i = 1; i < argc; ++i) numbers.push_back(number_of(argv[i]));
  const bool is_one = argc == 4;
  if ((argc > 2 && !is_one) || std::ranges::count(numbers, 0) > 0) {
    fmt::print(stderr, "attention [REPEAT [WIDTH LENGTH]]: numbers from 1 on\n");
    return 2;
  }
  const int repeat = numbers.empty() ? 9 : numbers[0];
  return run_program([&] {
    if (is_one) return time_all(repeat, {numbers[1]}, {numbers[2]});
    time_all(repeat, {32, 64, 128}, {128, 256, 512, 1024, 2048, 4096, 8192});
  });
}
