#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "caravan/comm/communicator.h"
#include "caravan/data/tokenizer/tokenizer.h"
#include "caravan/models/model.h"

namespace caravan {

/// A question with several answers, of which the model chooses the likeliest. Scored as lm-evaluation-harness scores
/// the output type "multiple_choice".
struct Question {
  std::string context;
  std::vector<std::string> choices;
  int64_t gold = 0;  ///< index of the correct one
};

/// A continuation after its context, as ids.
struct ScoredText {
  std::vector<int64_t> ids;
  int64_t num_scored = 0;  ///< number of last ids that are scored: those of the continuation
};

/// How texts are encoded for a model.
struct ScoringLimits {
  std::optional<int64_t> begin{};  ///< precedes a continuation without context; nothing: that is an error
  int64_t context = 0;             ///< maximum number of tokens that the model sees
  int64_t vocabulary = 0;
};

/// White space at the end of the context belongs to the continuation. Its ids are those of the whole text after as many
/// ids as the context alone has. If the model's context is exceeded, the beginning of the text is dropped. Throws
/// DataError if the continuation adds no id, or more than the model's context, and for ids outside the
/// model's vocabulary.
ScoredText encode_continuation(const Tokenizer& tokenizer, std::string_view context, std::string_view continuation,
                               const ScoringLimits& limits);

/// The sum of log p(id | ids before it) over the scored ids, in nats.
double log_likelihood(Model& model, const ScoredText& text);

struct EncodedQuestion {
  std::vector<ScoredText> choices{};
  std::vector<double> lengths{};  ///< of the choices in characters
  int64_t gold = 0;
};

/// `delimiter` separates the context from each choice and does not count as length. Default: a space, as in the
/// harness, unless white space ends the context or begins the choice, or there is no context. Throws DataError like
/// encode_continuation, naming the choice.
EncodedQuestion encode_question(const Tokenizer& tokenizer, const Question& question,
                                const std::optional<std::string>& delimiter, const ScoringLimits& limits);

struct Accuracy {
  double mean = 0;
  std::optional<double> standard_error{};  ///< sample deviation / sqrt(questions); nothing for one question
};

struct ChoiceResult {
  Accuracy plain;          ///< acc: the choice of the largest log-likelihood is right
  Accuracy per_character;  ///< acc_norm: the same with log-likelihood / length
};

/// Question q is answered by rank q mod n of `world`; every rank has the whole model, calls it with the same questions,
/// and gets the same result, which does not depend on n. Ties go to the first choice. Sends 16 bytes for every n
/// questions. Throws NumericsError for a log-likelihood that is not a number. `progress` may be empty.
ChoiceResult evaluate_choices(Model& model, Communicator& world, std::span<const EncodedQuestion> questions,
                              const std::function<void(int64_t done, int64_t total)>& progress = {});

}  // namespace caravan
