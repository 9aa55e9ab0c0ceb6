#include "caravan/comm/algorithms/message_plan.h"

#include <algorithm>

#include <fmt/format.h>

namespace caravan::algorithms {
namespace {

std::string text(Range range) { return fmt::format("[{},{})", range.begin, range.end()); }

/// The lines of a step of one rank.
std::vector<std::string> lines(const Step& step, int rank) {
  std::vector<std::string> lines;
  for (const Move& move : step.sends) {
    lines.push_back(move.peer == rank ? "= " + text(move.range) : fmt::format(">{} {}", move.peer, text(move.range)));
  }
  for (const Move& move : step.recvs) {
    if (move.peer == rank) continue;
    lines.push_back(fmt::format("<{} {}{}", move.peer, move.adds ? "+" : "", text(move.range)));
  }
  return lines;
}

std::string row_text(const std::string& head, const std::vector<std::string>& cells,
                     const std::vector<size_t>& widths) {
  std::string row = fmt::format("{:>4}", head);
  for (size_t i = 0; i < cells.size(); ++i) row += fmt::format(" | {:<{}}", cells[i], widths[i]);
  row.erase(row.find_last_not_of(' ') + 1);
  return row + "\n";
}

}  // namespace

Parts::Parts(std::span<const int64_t> counts) : begins_{0} {
  for (const int64_t count : counts) begins_.push_back(begins_.back() + count);
}

Parts Parts::equal(int64_t count, int n) {
  std::vector<int64_t> counts;
  for (int part = 0; part < n; ++part) counts.push_back(count / n + (part < count % n ? 1 : 0));
  return Parts(counts);
}

void MessagePlan::send(size_t step, int peer, Range range) {
  if (range.count > 0) steps[step].sends.push_back({peer, range});
}

void MessagePlan::recv(size_t step, int peer, Range range) {
  if (range.count > 0) steps[step].recvs.push_back({peer, range});
}

void MessagePlan::add(size_t step, int peer, Range range) {
  if (range.count > 0) steps[step].recvs.push_back({peer, range, true});
}

Dtype partial_dtype(Dtype dtype, ReduceOp op) noexcept {
  const bool is_16_bit_float = dtype == Dtype::bf16 || dtype == Dtype::fp16;
  return is_16_bit_float && op == ReduceOp::sum ? Dtype::fp32 : dtype;
}

Cost cost(const MessagePlan& plan, int rank, Dtype dtype, ReduceOp op) {
  Cost cost;
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    const Step& step = plan.steps[i];
    const bool is_partial = i < plan.num_partial_steps;
    const auto travels = [&](const Move& move) { return move.peer != rank; };
    if (std::ranges::any_of(step.sends, travels) || std::ranges::any_of(step.recvs, travels)) ++cost.steps;
    for (const Move& move : step.sends) {
      if (!travels(move)) continue;
      ++cost.messages;
      cost.bytes += move.range.count * size_bytes(is_partial ? partial_dtype(dtype, op) : dtype);
    }
  }
  return cost;
}

Cost longest(std::span<const MessagePlan> ranks, Dtype dtype, ReduceOp op) {
  Cost most;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const Cost own = cost(ranks[rank], static_cast<int>(rank), dtype, op);
    most.steps = std::max(most.steps, own.steps);
    most.messages = std::max(most.messages, own.messages);
    most.bytes = std::max(most.bytes, own.bytes);
  }
  return most;
}

std::string to_string(std::span<const MessagePlan> ranks) {
  if (ranks.empty()) return "";
  size_t num_steps = 0;
  std::vector<std::string> heads;
  std::vector<size_t> widths;
  std::vector<std::vector<std::vector<std::string>>> cells;  // [rank][step][line]
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    num_steps = std::max(num_steps, ranks[rank].steps.size());
    heads.push_back(fmt::format("rank {}", rank));
    widths.push_back(heads.back().size());
    auto& column = cells.emplace_back();
    for (const Step& step : ranks[rank].steps) {
      column.push_back(lines(step, static_cast<int>(rank)));
      for (const std::string& line : column.back()) widths.back() = std::max(widths.back(), line.size());
    }
  }
  for (auto& column : cells) column.resize(num_steps);
  std::string table = row_text("step", heads, widths);
  for (size_t step = 0; step < num_steps; ++step) {
    size_t height = 1;
    for (const auto& column : cells) height = std::max(height, column[step].size());
    for (size_t line = 0; line < height; ++line) {
      std::vector<std::string> row;
      for (const auto& column : cells) row.push_back(line < column[step].size() ? column[step][line] : "");
      table += row_text(line == 0 ? fmt::to_string(step) : "", row, widths);
    }
  }
  return table;
}

}  // namespace caravan::algorithms
