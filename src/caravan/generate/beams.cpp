#include "caravan/generate/beams.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include <ATen/ops/log_softmax.h>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/generate/sampling.h"

namespace caravan {
namespace {

bool is_better(const BeamSearch::Beam& a, const BeamSearch::Beam& b) { return a.score > b.score; }

/// The `most` best tokens after a beam.
std::vector<BeamSearch::Next> best_of_row(const at::Tensor& logits, const BeamSearch::Beam& beam, size_t index,
                                          const std::vector<int64_t>& ids, double penalty, size_t most) {
  const at::Tensor row = logits.to(at::kFloat).log_softmax(-1).contiguous();
  const std::vector<float> plain(row.const_data_ptr<float>(), row.const_data_ptr<float>() + row.numel());
  std::vector<float> scores = plain;
  apply_repetition_penalty(scores, ids, penalty);
  std::vector<size_t> order(scores.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto kept = static_cast<std::ptrdiff_t>(std::min(most, order.size()));
  std::partial_sort(order.begin(), order.begin() + kept, order.end(),
                    [&](size_t a, size_t b) { return scores[a] > scores[b] || (scores[a] == scores[b] && a < b); });
  std::vector<BeamSearch::Next> best;
  for (std::ptrdiff_t i = 0; i < kept; ++i) {
    const size_t token = order[static_cast<size_t>(i)];
    best.push_back({index, static_cast<int64_t>(token), scores[token] + beam.score, plain[token]});
  }
  return best;
}

/// What all ranks take: those with logits have the same ones.
std::vector<BeamSearch::Next> agreed(const TextModel& model, std::vector<BeamSearch::Next> best, size_t count) {
  const int64_t vocabulary = model.model.config().vocabulary;
  std::vector<TextModel::Choice> scores(count), own(count);
  for (size_t i = 0; i < best.size(); ++i) {
    const int64_t token = static_cast<int64_t>(best[i].beam) * vocabulary + best[i].token;
    scores[i] = {.token = token, .log_probability = best[i].score};
    own[i] = {.token = token, .log_probability = best[i].log_probability};
  }
  scores = model.agree(std::move(scores));
  own = model.agree(std::move(own));
  best.clear();
  for (size_t i = 0; i < count && scores[i].token >= 0; ++i) {
    best.push_back({static_cast<size_t>(scores[i].token / vocabulary), scores[i].token % vocabulary,
                    static_cast<float>(scores[i].log_probability), own[i].log_probability});
  }
  return best;
}

/// The windows of running beams, and the logits after them: undefined on a rank without logits.
class BeamWindows {
 public:
  BeamWindows(TextWindows& windows, const std::vector<int64_t>& source, const std::vector<int64_t>& ids)
      : all_(windows), prompt_(ids), own_{windows.open(ids.size(), source)}, texts_{ids} {}
  ~BeamWindows() {
    for (const auto& window : own_) all_.close(window);
  }
  BeamWindows(const BeamWindows&) = delete;
  BeamWindows& operator=(const BeamWindows&) = delete;

  const std::vector<int64_t>& ids(size_t beam) const { return texts_[beam]; }

  void continue_as(const std::vector<BeamSearch::Beam>& running) {
    std::vector<TextWindows::Window> next;
    for (const BeamSearch::Beam& beam : running) next.push_back(all_.fork(own_[beam.parent]));
    for (const auto& window : std::exchange(own_, std::move(next))) all_.close(window);
    texts_.clear();
    for (const BeamSearch::Beam& beam : running) {
      texts_.push_back(prompt_);
      texts_.back().insert(texts_.back().end(), beam.ids.begin(), beam.ids.end());
    }
  }

  std::vector<at::Tensor> logits() {
    std::vector<at::Tensor> rows;
    int64_t fresh = 0;
    for (size_t i = 0; i < own_.size(); ++i) fresh = all_.num_fresh(own_[i], texts_[i].size());
    const auto most = static_cast<size_t>(all_.most_texts(fresh));
    for (size_t first = 0; first < own_.size(); first += most) {
      std::vector<TextWindows::Text> some;
      for (size_t i = first; i < std::min(first + most, own_.size()); ++i) some.push_back({&own_[i], texts_[i]});
      const at::Tensor logits = all_.run(some);
      for (size_t i = 0; i < some.size(); ++i) {
        rows.push_back(logits.defined() ? logits.select(0, static_cast<int64_t>(i)).select(0, 0) : logits);
      }
    }
    return rows;
  }

 private:
  TextWindows& all_;
  const std::vector<int64_t>& prompt_;
  std::vector<TextWindows::Window> own_;
  std::vector<std::vector<int64_t>> texts_;
};

}  // namespace

size_t BeamSearch::num_candidates() const noexcept {
  return std::max<size_t>(2, 1 + options_.end_tokens.size()) * static_cast<size_t>(options_.beams);
}

void BeamSearch::step(std::span<const Next> best) {
  const auto beams = static_cast<size_t>(options_.beams);
  std::vector<Beam> running, finished;
  bool all_end = true;
  for (size_t i = 0; i < best.size(); ++i) {
    Beam beam = running_.at(best[i].beam);
    beam.parent = best[i].beam;
    beam.ids.push_back(best[i].token);
    beam.log_probabilities.push_back(best[i].log_probability);
    beam.score = best[i].score;
    const auto length = static_cast<int64_t>(beam.ids.size());
    const bool ends = length == options_.num_tokens ||
                      std::ranges::find(options_.end_tokens, best[i].token) != options_.end_tokens.end();
    all_end = all_end && ends;
    if (!ends) {
      if (running.size() < beams) running.push_back(std::move(beam));
      continue;
    }
    // Others are only there so that enough beams go on.
    if (i >= beams || !can_improve_) continue;
    beam.score = static_cast<float>(beam.score / std::pow(static_cast<double>(length), options_.length_penalty));
    finished.push_back(std::move(beam));
  }
  finished_.insert(finished_.end(), finished.begin(), finished.end());
  std::ranges::stable_sort(finished_, is_better);
  if (finished_.size() > beams) finished_.resize(beams);
  running_ = std::move(running);
  if (all_end || running_.empty()) {
    is_done_ = true;
    return;
  }
  const auto length = static_cast<double>(running_.front().ids.size());
  const double possible = running_.front().score / std::pow(length, options_.length_penalty);
  can_improve_ = can_improve_ && (finished_.size() < beams || possible > finished_.back().score);
  is_done_ = !can_improve_;
}

BeamSearch::Beam search_beams(TextWindows& windows, const std::vector<int64_t>& source, const std::vector<int64_t>& ids,
                              const BeamSearch::Options& options, double repetition_penalty) {
  const auto length = static_cast<int64_t>(ids.size()) + options.num_tokens - 1;
  if (length > windows.cache().context()) {
    throw UsageError({"generate", "beams",
                      fmt::format("a prompt of {} tokens and {} more exceed the context of {}", ids.size(),
                                  options.num_tokens, windows.cache().context()),
                      "",
                      static_cast<int64_t>(ids.size()) < windows.cache().context()
                          ? "generate fewer tokens: --tokens"
                          : "shorten it, or let the model see its last tokens: --truncate"});
  }
  BeamSearch search(options);
  BeamWindows texts(windows, source, ids);
  while (!search.is_done()) {
    const std::vector<at::Tensor> logits = texts.logits();
    std::vector<BeamSearch::Next> best;
    for (size_t i = 0; i < logits.size() && logits[i].defined(); ++i) {
      const auto of_row =
          best_of_row(logits[i], search.running()[i], i, texts.ids(i), repetition_penalty, search.num_candidates());
      best.insert(best.end(), of_row.begin(), of_row.end());
    }
    std::ranges::stable_sort(best, [](const auto& a, const auto& b) { return a.score > b.score; });
    if (best.size() > search.num_candidates()) best.resize(search.num_candidates());
    search.step(agreed(windows.model(), std::move(best), search.num_candidates()));
    if (!search.is_done()) texts.continue_as(search.running());
  }
  BeamSearch::Beam found = search.best();
  if (std::ranges::find(options.end_tokens, found.ids.back()) != options.end_tokens.end()) {
    found.ids.pop_back();
    found.log_probabilities.pop_back();
  }
  return found;
}

}  // namespace caravan
