#include <fstream>

#include <fmt/format.h>

#include "tests/global/proof.h"

namespace caravan::testing {

std::string proof_table(const std::map<std::string, ProofCount>& counts) {
  std::string text = fmt::format("{:<52} {:>7} {:>6} {:>6} {:>8} {:>6} {:>7} {:>6} {:>12} {}\n", "op", "samples",
                                 "runs", "rule", "gathered", "whole", "refused", "failed", "conservative", "covered");
  int covered = 0;
  int conservative = 0;
  int right = 0;
  for (const auto& [name, count] : counts) {
    text += fmt::format("{:<52} {:>7} {:>6} {:>6} {:>8} {:>6} {:>7} {:>6} {:>5} of {:>4} {}\n", name, count.samples,
                        count.runs, count.by_rule, count.gathered, count.whole, count.refused, count.failed,
                        count.conservative, count.right_on_pieces, count.is_covered ? "yes" : "no");
    covered += count.is_covered;
    if (!count.has_rule) continue;
    conservative += count.conservative;
    right += count.right_on_pieces;
    for (const auto& [layouts, times] : count.conservative_layouts) text += "    conservative: " + layouts + "\n";
  }
  text += fmt::format("{} of {} ops covered; of {} assignments that are right on the pieces, {} move an operand\n",
                      covered, counts.size(), right, conservative);
  return text;
}

}  // namespace caravan::testing
