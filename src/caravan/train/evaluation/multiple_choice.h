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

/// A question with several answers, of which the model takes the likeliest. As lm-evaluation-harness scores the output
/// type "multiple_choice".
struct Question {
  std::string context;
  std::vector<std::string> choices;
  int64_t gold = 0;  ///< index of the right one
};

/// A continuation after its context, as ids.
struct ScoredText {
  std::vector<int64_t> ids;
  int64_t num_scored = 0;  ///< the last ones: those of the continuation
};

/// How texts become ids for a model.
struct ScoringLimits {
  std::optional<int64_t> begin{};  ///< stands before a continuation without context; nothing: that is an error
  int64_t context = 0;             ///< tokens the model sees at once
  int64_t vocabulary = 0;
};

/// White space at the end of the context belongs to the continuation. Its ids are those of the whole text behind as
/// many as the context alone has. Where the model's context is exceeded, the text's begin is dropped. Throws DataError
/// if the continuation has no id of its own, or more than the model's context, and for ids that the model lacks.
ScoredText encode_continuation(const Tokenizer& tokenizer, std::string_view context, std::string_view continuation,
                               const ScoringLimits& limits);

/// The sum of log p(id | ids before it) over the scored ids, in nats.
double log_likelihood(Model& model, const ScoredText& text);

struct EncodedQuestion {
  std::vector<ScoredText> choices{};
  std::vector<double> lengths{};  ///< of the choices in characters
  int64_t gold = 0;
};

/// `delimiter` stands between the context and each choice and does not count as length. Without one it is a space, as
/// in the harness, unless white space ends the context or begins the choice, or there is no context. Throws DataError
/// like encode_continuation, naming the choice.
EncodedQuestion encode_question(const Tokenizer& tokenizer, const Question& question,
                                const std::optional<std::string>& delimiter, const ScoringLimits& limits);

struct Accuracy {
  double mean = 0;
  std::optional<double> standard_error{};  ///< sample deviation / sqrt(questions); nothing for one question
};

struct ChoiceResult {
  Accuracy plain;          ///< acc: the choice of the largest log-likelihood is right
  Accuracy per_character;  ///< acc_norm: that of the largest log-likelihood / length
};

/// Question q is answered by rank q mod n of `world`; every rank has the whole model, calls it with the same questions,
/// and gets the same result, which does not depend on n. Of equal choices the first is taken. Sends 16 bytes for every
/// n questions. Throws NumericsError for a log-likelihood that is not a number. `progress` may be empty.
ChoiceResult evaluate_choices(Model& model, Communicator& world, std::span<const EncodedQuestion> questions,
                              const std::function<void(int64_t done, int64_t total)>& progress = {});

}  // namespace caravan
