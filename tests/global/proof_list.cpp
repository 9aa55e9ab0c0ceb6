#include "tests/global/proof_list.h"

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/headeronly/version.h>

namespace caravan::testing {
namespace {

constexpr const char* kFile = CARAVAN_SOURCE_DIR "/tests/global/conservative.txt";
constexpr double kMostConservative = 0.05;

/// The lines that begin with '#'.
std::string heading() {
  std::ifstream file(kFile);
  std::string text, line;
  while (std::getline(file, line) && line.starts_with('#')) text += line + "\n";
  return text;
}

bool is_torch_of_list() {
  return heading().find(fmt::format("libtorch {}.{} ", TORCH_VERSION_MAJOR, TORCH_VERSION_MINOR)) != std::string::npos;
}

void write_conservative(const std::map<std::string, ConservativeOp>& list) {
  const std::string head = heading();
  std::ofstream file(kFile);
  file << head;
  for (const auto& [op, entry] : list) file << fmt::format("{} {} {}\n", op, entry.count, entry.reason);
}

void check_list(const std::map<std::string, ProofCount>& counts, const std::map<std::string, ConservativeOp>& list,
                const std::function<bool(const std::string&)>& has) {
  for (const auto& [op, count] : counts) {
    if (count.conservative == 0) continue;
    const auto found = list.find(op);
    const int listed = found == list.end() ? 0 : found->second.count;
    if (count.conservative <= listed) continue;
    std::string text;
    for (const auto& [layouts, times] : count.conservative_layouts) text += "\n  " + layouts;
    ADD_FAILURE() << op << " moves operands under " << count.conservative
                  << " assignments that are right without a move; conservative.txt has " << listed << text;
  }
  for (const auto& [op, entry] : list) {
    if (!has(op)) continue;
    EXPECT_NE(entry.reason, "") << op;
    const auto found = counts.find(op);
    const bool is_listed_in_vain = found == counts.end() || found->second.conservative == 0;
    EXPECT_FALSE(is_listed_in_vain) << op << " moves no operand without need: drop it from conservative.txt";
  }
}

}  // namespace

std::map<std::string, ConservativeOp> read_conservative() {
  std::ifstream file(kFile);
  if (!file) throw std::runtime_error(std::string("cannot read ") + kFile);
  std::map<std::string, ConservativeOp> list;
  std::string line;
  while (std::getline(file, line)) {
    if (line.empty() || line.starts_with('#')) continue;
    std::istringstream words(line);
    std::string op;
    ConservativeOp entry;
    if (!(words >> op >> entry.count)) throw std::runtime_error("conservative.txt: no op and count in: " + line);
    std::getline(words >> std::ws, entry.reason);
    list[op] = std::move(entry);
  }
  return list;
}

void check_conservative(const std::map<std::string, ProofCount>& counts,
                        const std::function<bool(const std::string&)>& has) {
  int right = 0;
  int conservative = 0;
  for (const auto& [op, count] : counts) {
    right += count.right_on_pieces;
    conservative += count.conservative;
  }
  EXPECT_LE(conservative, kMostConservative * right) << "of " << right << " assignments that are right on the pieces";
  std::map<std::string, ConservativeOp> list = read_conservative();
  if (std::getenv("CARAVAN_WRITE_DOCS") == nullptr) {
    if (is_torch_of_list()) check_list(counts, list, has);
    return;
  }
  std::erase_if(list, [&](const auto& each) {
    const auto found = counts.find(each.first);
    return has(each.first) && (found == counts.end() || found->second.conservative == 0);
  });
  for (const auto& [op, count] : counts) {
    if (count.conservative > 0) list[op].count = count.conservative;
  }
  write_conservative(list);
}

}  // namespace caravan::testing
