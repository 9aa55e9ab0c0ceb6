#include <fmt/format.h>

#include "apps/caravan/commands.h"
#include "caravan/base/error.h"
#include "caravan/base/runtime.h"
#include "caravan/base/system/cache_folder.h"
#include "caravan/base/system/processor.h"
#include "caravan/comm/store/rendezvous.h"
#include "caravan/nn/product/product_tune.h"

namespace caravan::app {

int tune() {
  if (const RankInfo info = RankInfo::from_environment(); info.world_size > 1) {
    throw UsageError({.op = "doctor",
                      .subject = "--tune",
                      .fact = fmt::format("times one process, and {} were started", info.world_size),
                      .action = "run it without mpirun or torchrun, once on each kind of host"});
  }
  const Runtime runtime({.intra_op_threads = 1});
  const std::string processor = processor_class();
  const TunedProducts tuned = tune_products();
  fmt::print("processor class: {}; GFLOP/s of one thread\n", processor);
  for (const ProductTiming& timing : tuned.timings) {
    fmt::print("  {:<15}", timing.what);
    for (size_t way = 0; way < timing.ways.size(); ++way) {
      const auto& [text, gflops] = timing.ways[way];
      fmt::print("  {}{:<17} {:>6.1f}", way == timing.best ? '*' : ' ', text, gflops);
    }
    fmt::print("\n");
  }
  const std::string text = to_text(tuned.choice);
  write_tuned_products(cache_folder(), processor, text);
  fmt::print("products: {}\nkept in {}; new runs on this class of processor use it\n", text,
             tuned_products_file(cache_folder(), processor).string());
  return 0;
}

}  // namespace caravan::app
