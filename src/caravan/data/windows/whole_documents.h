#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "caravan/data/windows/pieces.h"
#include "caravan/data/windows/token_file.h"

namespace caravan {

/// The whole documents or chats of a text in sequences (data.fill = "best_fit"): best-fit decreasing, of Ding et al.,
/// "Fewer Truncations Improve Language Modeling", arXiv 2404.10830. Only what is longer than a sequence is cut, into
/// full sequences and a rest, which is put beside others. A piece without a target is left out. Sequences, and the
/// documents in them, come in the order of the text. Depends on (text, context) only.
///
/// Takes 12 bytes a piece and 8 a sequence, some four times that while it is made. Any number of threads may read it.
class WholeDocuments {
 public:
  /// Documents end with the token `end_of_text`, and at the end of the text. Reads the file once; does not keep it.
  /// Throws ShapeError for context < 1, DataError for 2^32 pieces or more.
  WholeDocuments(const TokenFile& tokens, int64_t end_of_text, int64_t context);
  /// Chats, by their marks.
  WholeDocuments(const TokenFile& marks, int64_t context);

  int64_t context() const noexcept { return context_; }
  /// The number of sequences. May be 0: no document has a target.
  int64_t size() const noexcept { return static_cast<int64_t>(targets_.size()); }
  std::vector<TextPiece> pieces(int64_t sequence) const;
  int64_t num_targets(int64_t sequence) const { return targets_[static_cast<size_t>(sequence)]; }
  /// Of all sequences.
  int64_t num_targets() const;

  /// The sequence of sample k >= 0: every epoch visits each once, in random order.
  int64_t sequence_of(int64_t sample, uint64_t seed) const;

  struct Counts {
    int64_t documents = 0;         ///< or chats
    int64_t cut = 0;               ///< of them, those longer than a sequence
    int64_t tokens = 0;            ///< in sequences
    int64_t left_out = 0;          ///< pieces without a target
    int64_t tokens_left_out = 0;   ///< of these
    int64_t without_question = 0;  ///< of chats: learned tokens that a cut has parted from a part of their question
  };
  const Counts& counts() const noexcept { return counts_; }
  /// The share of sequences that is padding.
  double waste() const noexcept;

 private:
  class Maker;
  void pack(Maker made);

  int64_t context_;
  Counts counts_;
  std::vector<int64_t> firsts_;    ///< of the pieces, sequence after sequence
  std::vector<uint32_t> lengths_;  ///< with a bit for those that end with their document
  std::vector<uint32_t> begins_;   ///< of each sequence among the pieces, and their end
  std::vector<uint32_t> targets_;  ///< of each sequence
};

/// A line for the user: "4120 chats in 812 sequences of 1024, 1.2 % of them padding", and what was cut and left out.
std::string fill_note(const WholeDocuments& whole, bool are_chats);

}  // namespace caravan
