#include "caravan/train/balance/run_balance.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/system/file.h"
#include "caravan/base/text.h"
#include "caravan/comm/calls/agree.h"
#include "caravan/train/model/offload_choice.h"

namespace caravan {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMostGrowth = 2;  ///< of a micro-batch

double median(std::vector<double> numbers) {
  const auto middle = numbers.begin() + static_cast<std::ptrdiff_t>(numbers.size() / 2);
  std::ranges::nth_element(numbers, middle);
  return *middle;
}

/// The text of a file on rank 0, on every rank; "" if there is none and it may be missing.
std::string shared_text(Communicator& world, const fs::path& path, bool may_be_missing) {
  const auto read = [&]() -> std::string {
    std::error_code error;
    if (may_be_missing && (!fs::exists(path, error) || fs::is_empty(path, error))) return "";
    const MappedFile file(path, "train");
    parse_deals(file.text(), path.string());  // so that a bad one is reported by rank 0
    return std::string(file.text());
  };
  return text_of_rank_0(world, read, "deals of rows");
}

/// The even deal of larger micro-batches, of which the other ranks need as much.
Recipe with_larger_micro_batch(Recipe recipe, const RowsToDeal& what, int64_t micro_batch) {
  recipe.train.global_batch = micro_batch * what.micro_batches * what.coordinates;
  recipe.train.micro_batch = micro_batch;
  if (recipe.pipeline.is_used() && !recipe.pipeline.is_file()) {
    recipe.pipeline.schedule.set("micro_batches", what.micro_batches);
  }
  return recipe;
}

}  // namespace

RunBalance::RunBalance(const Recipe& recipe, const BatchPlan& plan, const Mesh& mesh)
    : mesh_(mesh), what_(rows_to_deal(recipe, plan)) {
  if (recipe.train.is_even()) return;
  is_measured_ = recipe.train.is_measured() && plan.dp > 1;
  if (recipe.train.is_measured()) return;
  source_ = recipe.train.balance;
  recorded_ = parse_deals(shared_text(mesh.world(), source_, false), source_);
  const auto refuse = [&](const std::string& fact, const std::string& action) {
    throw UsageError({"train", "train.balance", fact, recipe.where("train.balance"), action});
  };
  if (recorded_.empty()) refuse(source_ + " has no deal", fmt::format("use the {} of a run", kDealsFile));
  for (const RecordedDeal& deal : recorded_) {
    const std::string at = fmt::format("{} has after step {} ", source_, deal.step);
    if (deal.micro_batches != what_.micro_batches) {
      refuse(fmt::format("{}{} micro-batches, but this run has {}", at, deal.micro_batches, what_.micro_batches),
             recipe.pipeline.is_used()
                 ? fmt::format("use pipeline.micro_batches = {}", deal.micro_batches)
                 : fmt::format("use train.micro_batch = {}", std::max<int64_t>(1, plan.rows() / deal.micro_batches)));
    }
    if (const std::string wrong = why_not(what_, deal.rows); !wrong.empty()) {
      refuse(at + wrong, "use the train.global_batch and the ranks of that run");
    }
  }
}

void RunBalance::fit_memory(MemoryPlan& memory, const Recipe& recipe, int64_t vocabulary, Communicator& world) {
  if (!is_used()) return;
  const int64_t even = largest_micro_batch(what_, {});
  const auto plan_of = [&](int64_t micro_batch) {
    Recipe larger = with_larger_micro_batch(recipe, what_, micro_batch);
    return resolve_micro_batch(larger, vocabulary, world);
  };
  const auto take = [&](int64_t micro_batch, MemoryPlan plan) {
    what_.most = micro_batch;
    plan.micro_batch = memory.micro_batch;
    plan.is_chosen = memory.is_chosen;
    memory = std::move(plan);
  };
  if (!is_measured_) {
    int64_t largest = even;
    for (const RecordedDeal& deal : recorded_) largest = std::max(largest, largest_micro_batch(what_, deal.rows));
    if (largest > even) take(largest, plan_of(largest));
    return check_budget(recipe, memory, vocabulary, world);
  }
  what_.most = even;
  int64_t low = even / what_.unit, high = kMostGrowth * low;  // units: fits, and the most that may
  for (int64_t next = high; low < high; next = (low + high + 1) / 2) {
    MemoryPlan plan = plan_of(next * what_.unit);
    if (plan.is_usable()) {
      low = next;
      take(next * what_.unit, std::move(plan));
    } else {
      high = next - 1;
    }
  }
}

void RunBalance::resume(const fs::path& folder, int64_t step) {
  if (!is_measured_) return;
  const std::string source = (folder / kDealsFile).string();
  const std::vector<RecordedDeal> deals = parse_deals(shared_text(mesh_.world(), source, true), source);
  const RecordedDeal* last = deal_after(deals, step);
  const bool fits = last != nullptr && last->micro_batches == what_.micro_batches && why_not(what_, last->rows).empty();
  if (fits) balancer_.emplace(what_, last->rows);
}

void RunBalance::open(const fs::path& folder, int64_t step) {
  const fs::path path = folder / kDealsFile;
  std::error_code error;
  if (!is_used() && !fs::exists(path, error)) return;  // an earlier part of the run may have one
  lines_.emplace(path, step);
  std::vector<RecordedDeal> before;
  if (!fs::is_empty(path, error)) before = parse_deals(MappedFile(path, "train").text(), path.string());
  const RecordedDeal* last = deal_after(before, step);
  const RecordedDeal now = present(step);
  if (last == nullptr || last->rows != now.rows || last->micro_batches != now.micro_batches) write(step);
}

RowDeal RunBalance::deal(int64_t step) const {
  if (!is_used()) return {};
  RowDeal deal{.rows = {}, .unit = what_.unit};
  if (balancer_) {
    deal.rows = balancer_->rows();
  } else if (const RecordedDeal* recorded = deal_after(recorded_, step)) {
    deal.rows = recorded->rows;
  }
  return deal;
}

bool RunBalance::stepped(int64_t step, double busy_ms) {
  if (!is_measured_) return !(deal(step) == deal(step - 1));
  if (num_left_out_ > 0) {
    --num_left_out_;
    return false;
  }
  window_.push_back(busy_ms);
  if (static_cast<int64_t>(window_.size()) < kWindow) return false;
  constexpr double kPerMs = 1e3;  // whole microseconds: every rank gets the same bits
  std::vector<int64_t> busy(static_cast<size_t>(what_.coordinates), 0);
  busy[static_cast<size_t>(mesh_["dp"].coord())] = std::llround(median(std::exchange(window_, {})) * kPerMs);
  take_maxima(mesh_.world(), busy, "speed of the ranks");
  busy_ms_.clear();
  for (const int64_t us : busy) busy_ms_.push_back(static_cast<double>(us) / kPerMs);
  if (!balancer_) {
    balancer_.emplace(what_, std::vector<int64_t>(busy.size(), what_.rows / what_.coordinates));
  }
  if (!balancer_->measure(busy_ms_)) return false;
  num_left_out_ = 1;
  return true;
}

RecordedDeal RunBalance::present(int64_t step) const {
  RecordedDeal present{
      .step = step, .micro_batches = what_.micro_batches, .rows = deal(step).rows, .busy_ms = busy_ms_};
  if (present.rows.empty()) present.rows.assign(static_cast<size_t>(what_.coordinates), what_.rows / what_.coordinates);
  return present;
}

void RunBalance::write(int64_t step) {
  if (lines_) lines_->write(present(step).to_json());
}

std::vector<std::string> RunBalance::notes() const {
  if (!source_.empty()) return {"the rows of each rank are those of " + source_};
  if (!is_measured_) return {};
  const int64_t even = largest_micro_batch(what_, {});
  if (what_.most <= even) {
    return {
        fmt::format("train.balance = \"measured\" has no effect: the memory of a rank has no room for more than {} "
                    "sequences at a time",
                    even)};
  }
  return {
      fmt::format("rows are dealt to the ranks by their measured speed, up to {} sequences at a time ({} on even "
                  "ranks)",
                  what_.most, even)};
}

}  // namespace caravan
