// The kernels of a step of one rank, rehearsed, each with the rate that this core reaches: for bench/limit.py.
//   limit_rates RECIPE KEY=VALUE..     RECIPE may be "". Prints JSON
#include <algorithm>
#include <chrono>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/bmm.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/zeros.h>
#include <c10/util/accumulate.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/caravan/options/vocabulary.h"
#include "bench/recipe_program.h"
#include "caravan/comm/measure/memory_rate.h"
#include "caravan/comm/measure/statistics.h"
#include "caravan/nn/product/product.h"
#include "caravan/train/model/rehearse.h"

using namespace caravan;
using nlohmann::json;

namespace {

std::string first_word(const std::string& text) { return text.substr(0, text.find(' ')); }

/// By the first word of the event that computes it ("forward"): how often a step computes each kernel.
using Work = std::map<std::pair<std::string, KernelWork>, double>;

Work work_of(const Recipe& recipe) {
  const Rehearsal one = rehearse(recipe, app::vocabulary_of(recipe).size, 1, 0);
  Work work;
  const auto add = [&](const StepTimeline& timeline, double times) {
    for (const StepTimeline::Moment& moment : timeline.moments) {
      if (moment.kind != StepTimeline::Moment::Kind::kernel) continue;
      const KernelWork& kernel = timeline.kernels[static_cast<size_t>(moment.index)];
      work[{first_word(timeline.events[static_cast<size_t>(moment.event)]), kernel}] += times / one.num_steps;
    }
  };
  add(one.timeline, 1);
  for (const Rehearsal::Shorter& shorter : one.shorter) {
    add(one.timeline, shorter.times);
    add(shorter.timeline, -shorter.times);
  }
  return work;
}

/// `batch` products of m x k and k x n; of attention also those of m x n and n x k.
struct Shape {
  std::string dtype;
  int64_t batch, m, n, k;
  bool is_attention;
  auto operator<=>(const Shape&) const = default;
};

/// Numbers of the usual size: products of zeros may be faster.
at::Tensor numbers(at::IntArrayRef sizes, at::ScalarType type) {
  return at::linspace(-1, 1, c10::multiply_integers(sizes)).view(sizes).to(type);
}

/// The median of calls that take kBlock_s together.
double seconds_of(const std::function<void()>& call) {
  constexpr double kBlock_s = 0.02;
  constexpr size_t kFewest = 3;
  std::vector<double> samples;
  call();
  for (double total = 0; total < kBlock_s || samples.size() < kFewest; total += samples.back()) {
    const auto begin = std::chrono::steady_clock::now();
    call();
    samples.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return measure::quantile(samples, 0.5);
}

constexpr int64_t kMostProducts = 24;

/// FLOP/s in the layout that is fastest of those in which a layer, or attention, multiplies.
double rate_of(const Shape& shape) {
  const auto& [dtype, all, m, n, k, is_attention] = shape;
  // The rate is that of a few: the scores of all heads of a long text, which attention never has, may not fit.
  const int64_t batch = std::min<int64_t>(all, kMostProducts);
  const at::ScalarType type = dtype == "bf16" ? at::kBFloat16 : dtype == "fp16" ? at::kHalf : at::kFloat;
  double seconds = std::numeric_limits<double>::infinity();
  const auto time = [&](const std::function<void()>& call) { seconds = std::min(seconds, seconds_of(call)); };
  if (batch > 1 || is_attention) {
    const at::Tensor a = numbers({batch, m, k}, type), b = numbers({batch, n, k}, type);
    time([&] { at::bmm(a, b.transpose(1, 2)); });
    if (is_attention) {
      const at::Tensor c = numbers({batch, m, n}, type);
      time([&] { at::bmm(c, b); });
    }
  } else {
    const at::Tensor a = numbers({m, k}, type), b = numbers({n, k}, type);
    const at::Tensor a_t = numbers({k, m}, type), b_t = numbers({k, n}, type);
    at::Tensor sum = at::zeros({m, n});
    time([&] { product(a, b, ProductKind::forward); });
    time([&] { product(a, b_t.t(), ProductKind::dx); });
    time([&] { add_product(sum, /*is_empty=*/true, a_t.t(), b_t.t(), ProductKind::dw); });
  }
  return 2.0 * static_cast<double>(batch) * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k) /
         seconds;
}

json rates(const Recipe& recipe, Communicator& world) {
  constexpr int kRounds = 3;  // other programs may slow a machine for seconds: the best counts
  constexpr int64_t kBuffers[] = {int64_t{1} << 17, int64_t{1} << 20, int64_t{1} << 23, int64_t{1} << 26};
  const Work work = work_of(recipe);
  const auto shape_of = [](const KernelWork& kernel) {
    return Shape{kernel.dtype, kernel.batch, kernel.m, kernel.n, kernel.k, kernel.kind == KernelWork::Kind::attention};
  };
  constexpr int64_t kLarge = 1024;
  std::map<Shape, double> product_rates{{{recipe.precision.compute, 1, kLarge, kLarge, kLarge, false}, 0}};
  for (const auto& [of, count] : work) {
    if (of.second.flops() > 0) product_rates[shape_of(of.second)] = 0;
  }
  std::map<int64_t, double> memory_rates;  // by bytes read and written
  for (int round = 0; round < kRounds; ++round) {
    for (auto& [shape, rate] : product_rates) rate = std::max(rate, rate_of(shape));
    for (const int64_t bytes : kBuffers) {
      double& rate = memory_rates[3 * bytes];
      rate = std::max(rate, 1e9 * measure::measure_memory(world, bytes).best_gb_s());
    }
  }
  json all{{"kernels", json::array()}, {"products", json::array()}};
  for (const auto& [shape, rate] : product_rates) {
    const std::string text = fmt::format("{}{} x {} x {} {}", shape.batch > 1 ? fmt::format("{} x ", shape.batch) : "",
                                         shape.m, shape.n, shape.k, shape.dtype);
    all["products"].push_back({{"shape", text}, {"rate", rate}});
  }
  for (const auto& [bytes, rate] : memory_rates) all["memory"].push_back({{"bytes", bytes}, {"rate", rate}});
  for (const auto& [of, count] : work) {
    const auto& [event, kernel] = of;
    if (kernel.is_on_host || count < 1e-9) continue;
    const auto memory = memory_rates.lower_bound(std::min(kernel.bytes, memory_rates.rbegin()->first));
    all["kernels"].push_back({{"event", event},
                              {"what", kernel.what},
                              {"count", count},
                              {"flops", kernel.flops()},
                              {"bytes", kernel.bytes},
                              {"rate", kernel.flops() > 0 ? product_rates.at(shape_of(kernel)) : memory->second}});
  }
  return all;
}

}  // namespace

int main(int argc, char** argv) {
  return run_recipe_program(argc, argv, [](const Recipe& recipe, const std::shared_ptr<Communicator>& world) {
    fmt::print("{}\n", rates(recipe, *world).dump());
  });
}
