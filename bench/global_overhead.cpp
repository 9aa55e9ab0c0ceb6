// What a global tensor adds to an op: nanoseconds over the plain op, on one rank, with the solution of its layouts
// cached. Prints a table; the two are timed in turns.    global_overhead [NAME [ROUNDS]], of one op
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <functional>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "caravan/base/runtime.h"
#include "caravan/comm/store/rendezvous.h"
#include "caravan/comm/world.h"
#include "caravan/global/global.h"
#include "caravan/mesh/mesh.h"
#include "caravan/session/session.h"

using namespace caravan;

namespace {

/// Processor time, so that other programs count little.
double now_ns() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec);
}

double ns_of(const std::function<void()>& op, int calls) {
  const double begin = now_ns();
  for (int i = 0; i < calls; ++i) op();
  return (now_ns() - begin) / calls;
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

using Op = std::function<void(const at::Tensor&, const at::Tensor&)>;

std::string chosen;  // the op to measure; "": all
int num_rounds = 31;

void measure(const char* name, const Op& op, const at::Tensor& a, const at::Tensor& b, const GlobalContext& context) {
  if (!chosen.empty() && chosen != name) return;
  const at::Tensor ga = distribute(a, {}, context);
  const at::Tensor gb = distribute(b, {}, context);
  std::vector<double> plain, global, over;
  for (int round = 0; round < num_rounds; ++round) {
    plain.push_back(ns_of([&] { op(a, b); }, 2000));
    global.push_back(ns_of([&] { op(ga, gb); }, 2000));
    over.push_back(global.back() - plain.back());
  }
  std::printf("%-28s plain %6.0f ns   global %6.0f ns   over %6.0f ns\n", name, median(plain), median(global),
              median(over));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) chosen = argv[1];
  if (argc > 2) num_rounds = std::stoi(argv[2]);
  Session session({.axes = {{"tp", 1}}, .threads = 1});
  const GlobalContext context(session.mesh());
  const at::NoGradGuard no_grad;
  const at::Tensor a = at::randn({2, 2});
  const at::Tensor b = at::randn({2, 2});
  const at::Tensor x = at::randn({2, 4, 4});
  const at::Tensor w = at::randn({4, 4});
  measure(
      "add", [](const auto& p, const auto& q) { p + q; }, a, b, context);
  measure(
      "mul_", [](const auto& p, const auto& q) { p.mul_(q); }, a, at::ones({2, 2}), context);
  measure(
      "gelu", [](const auto& p, const auto&) { at::gelu(p); }, a, b, context);
  measure(
      "t", [](const auto& p, const auto&) { p.t(); }, a, b, context);
  measure(
      "view", [](const auto& p, const auto&) { p.view({4}); }, a, b, context);
  measure(
      "mm", [](const auto& p, const auto& q) { at::mm(p, q); }, a, b, context);
  measure(
      "linear of 3 dims", [](const auto& p, const auto& q) { at::linear(p, q); }, x, w, context);
  measure(
      "sum", [](const auto& p, const auto&) { p.sum(); }, a, b, context);
  return 0;
}
