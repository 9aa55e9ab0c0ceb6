#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "caravan/data/tasks/task_rows.h"
#include "caravan/data/tokenizer/tokenizer.h"
#include "caravan/data/windows/token_file.h"
#include "tests/data/support.h"

namespace caravan::testing {

using Ids = std::vector<int64_t>;

/// Rows and what they have beside ids.
struct FilledRows {
  Ids ids, labels, documents, positions, token_types;
};

/// The rows [first, first + count) of TaskRows or ValidationRows. Values that a fill leaves out stay -7.
template <class Rows>
FilledRows filled(const Rows& rows, int64_t first, int64_t count) {
  const RowShape shape = rows.shape();
  const auto part = [&](bool is_used) { return Ids(is_used ? static_cast<size_t>(count * shape.length) : 0, -7); };
  FilledRows all{part(true), part(true), part(shape.has_documents), part(shape.has_positions),
                 part(shape.has_token_types)};
  rows.fill(first, RowBuffers{.ids = all.ids,
                              .labels = all.labels,
                              .documents = all.documents,
                              .positions = all.positions,
                              .token_types = all.token_types});
  return all;
}

inline Ids part_of(const Ids& all, int64_t first, int64_t count) {
  return {all.begin() + first, all.begin() + first + count};
}

inline TokenFile token_file(const TemporaryFolder& folder, const std::vector<int32_t>& ids, int64_t vocabulary) {
  TokenFileWriter writer(folder / "t.tokens", vocabulary);
  writer.append(ids);
  writer.finish(static_cast<int64_t>(ids.size()), {});
  return TokenFile::open(folder / "t.tokens");
}

inline Tokenizer family(const std::string& name) { return Tokenizer::load(fixture("families/" + name + ".json")); }

/// A tokenizer of words w0 .. w99 with ids 10 to 109, <pad> 0, </s> 1, <unk> 2, and <extra_id_0> .. from 110 on; a text
/// ends with </s>, as T5's.
inline Tokenizer word_tokenizer(int num_sentinels, bool has_end = true) {
  std::string added, vocabulary = R"("<pad>":0,")" + std::string(has_end ? "</s>" : "<end>") + R"(":1,"<unk>":2)";
  const auto add = [&](int id, const std::string& text) {
    added += (added.empty() ? "" : ",") + (R"({"id":)" + std::to_string(id) + R"(,"content":")" + text) +
             R"(","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true})";
  };
  add(0, "<pad>");
  if (has_end) add(1, "</s>");
  add(2, "<unk>");
  for (int i = 3; i < 10; ++i) vocabulary += ",\"unused" + std::to_string(i) + "\":" + std::to_string(i);
  for (int i = 0; i < 100; ++i) vocabulary += ",\"w" + std::to_string(i) + "\":" + std::to_string(10 + i);
  for (int i = 0; i < num_sentinels; ++i) add(110 + i, "<extra_id_" + std::to_string(i) + ">");
  const std::string text_a = R"({"Sequence":{"id":"A","type_id":0}})",
                    text_b = R"({"Sequence":{"id":"B","type_id":0}})";
  const std::string end = R"({"SpecialToken":{"id":"</s>","type_id":0}})";
  const std::string ends = R"({"type":"TemplateProcessing","single":[)" + text_a + "," + end + R"(],"pair":[)" +
                           text_a + "," + end + "," + text_b + "," + end +
                           R"(],"special_tokens":{"</s>":{"id":"</s>","ids":[1],"tokens":["</s>"]}}})";
  return Tokenizer::from_json(R"({"version":"1.0","truncation":null,"padding":null,"added_tokens":[)" + added +
                              R"(],"normalizer":null,"pre_tokenizer":{"type":"WhitespaceSplit"},"post_processor":)" +
                              (has_end ? ends : "null") +
                              R"(,"decoder":null,"model":{"type":"WordLevel","unk_token":"<unk>","vocab":{)" +
                              vocabulary + "}}}");
}

}  // namespace caravan::testing
