#include "caravan/train/numerics.h"

#include <algorithm>
#include <cstdlib>

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/parallel_for.h"
#include "caravan/comm/calls/agree.h"
#include "caravan/nn/product/product.h"

namespace caravan {
namespace {

constexpr const char* kDiffers = "the last bits of the results differ from those of an uninterrupted run";

/// Rank 0's choice: that of the checkpoint, unless the user asks for another or it is not available.
std::string choose_products(const std::optional<Numerics>& resumed, std::vector<std::string>& notes) {
  const std::string own = chosen_products();
  if (!resumed || resumed->products.empty() || resumed->products == own) return own;
  if (std::getenv("CARAVAN_PRODUCTS") != nullptr) {
    notes.push_back(fmt::format("matrix products: {} (CARAVAN_PRODUCTS), the checkpoint was computed with {}: {}", own,
                                resumed->products, kDiffers));
    return own;
  }
  try {
    use_products(resumed->products);
    return resumed->products;
  } catch (const UsageError&) {
    notes.push_back(fmt::format("matrix products: {}, since {}, which computed the checkpoint, is not available: {}",
                                own, resumed->products, kDiffers));
    return own;
  }
}

/// The number of threads to keep from the checkpoint, or 0.
int64_t threads_to_keep(const Communicator& world, int64_t asked, const std::optional<Numerics>& resumed,
                        std::vector<std::string>& notes) {
  const int64_t now = at::get_num_threads();
  if (!resumed || resumed->threads_per_rank == 0 || resumed->ranks != world.size()) return 0;
  if (resumed->threads_per_rank == now) return 0;
  if (asked != 0) {
    notes.push_back(fmt::format("comm.threads_per_rank: {}, the checkpoint was computed with {}: {}", now,
                                resumed->threads_per_rank, kDiffers));
    return 0;
  }
  notes.push_back(
      fmt::format("{} threads per rank, as in the checkpoint, for equal results; this machine would give {}"
                  " (comm.threads_per_rank)",
                  resumed->threads_per_rank, now));
  return resumed->threads_per_rank;
}

}  // namespace

Numerics agree_on_numerics(Communicator& world, int64_t asked_threads, const std::optional<Numerics>& resumed,
                           std::vector<std::string>& notes) {
  Numerics numerics{.ranks = world.size()};
  int64_t threads = 0;
  if (world.rank() == 0) {
    numerics.products = choose_products(resumed, notes);
    threads = threads_to_keep(world, asked_threads, resumed, notes);
  }
  numerics.products = broadcast_text(world, numerics.products, 0, "matrix products");
  use_products(numerics.products);
  world.broadcast({&threads, 1, Dtype::int64}, 0, "threads per rank");
  if (threads > 0 && asked_threads == 0) at::set_num_threads(static_cast<int>(threads));

  check_num_threads();
  const int64_t own = at::get_num_threads();
  std::vector<int64_t> all(static_cast<size_t>(world.size()));
  world.all_gather({&own, 1, Dtype::int64}, {all.data(), world.size(), Dtype::int64}, {}, "threads per rank");
  const bool are_equal = std::ranges::all_of(all, [&](int64_t other) { return other == own; });
  numerics.threads_per_rank = are_equal ? own : 0;
  return numerics;
}

}  // namespace caravan
