#include <set>

#include <gtest/gtest.h>

#include "caravan/comm/store/secret/handshake.h"
#include "caravan/comm/store/secret/secret.h"
#include "caravan/comm/store/wire/protocol.h"

namespace caravan::store_secret_test {
namespace {

using namespace store_protocol;

std::string hex(const std::string& bytes) {
  std::string out;
  for (const char byte : bytes) {
    char two[3];
    std::snprintf(two, sizeof(two), "%02x", static_cast<unsigned char>(byte));
    out += two;
  }
  return out;
}

/// RFC 4231, 4.2, 4.3 and 4.7: a key shorter than the hash, and one longer than its block.
TEST(StoreSecret, HmacMatchesTheStandard) {
  EXPECT_EQ(hex(store_secret::hmac(std::string(20, '\x0b'), "Hi There")),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(hex(store_secret::hmac("Jefe", "what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(hex(store_secret::hmac(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First")),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST(StoreSecret, RandomBytesDoNotRepeat) {
  std::set<std::string> seen;
  for (int i = 0; i < 1000; ++i) seen.insert(store_secret::random_bytes(32));
  EXPECT_EQ(seen.size(), 1000U);
  EXPECT_EQ(store_secret::random_hex(32).size(), 64U);
  EXPECT_TRUE(store_secret::equal("same", "same"));
  EXPECT_FALSE(store_secret::equal("same", "some"));
  EXPECT_FALSE(store_secret::equal("same", "same "));
}

const JobKey kKey{"a job", "a secret of 32 bytes, not a bit less", 4};
const std::string kServerNonce(32, 's');
const std::string kClientNonce(32, 'c');

std::string hello_body(const JobKey& key, const std::string& nonce = kServerNonce) {
  return encode_hello(key, 2, nonce, kClientNonce).substr(kLengthBytes);
}

TEST(StoreHandshake, VerifiesEveryField) {
  const std::string body = hello_body(kKey);
  const auto hello = decode_hello(body);
  ASSERT_TRUE(hello);
  EXPECT_EQ(hello->rank, 2);
  EXPECT_EQ(judge(kKey, kServerNonce, *hello), Verdict::welcome);
  const auto verdict_on = [](const JobKey& client) {
    const std::string bytes = hello_body(client);
    return judge(kKey, kServerNonce, *decode_hello(bytes));
  };
  EXPECT_EQ(verdict_on({"a job", "another secret, of another job", 4}), Verdict::wrong_secret);
  EXPECT_EQ(verdict_on({"a job", "", 4}), Verdict::wrong_secret);
  EXPECT_EQ(verdict_on({"other", kKey.secret, 4}), Verdict::other_job);
  EXPECT_EQ(verdict_on({"a job", kKey.secret, 5}), Verdict::other_world_size);
}

TEST(StoreHandshake, ARecordedHandshakeCannotBeReplayed) {
  const std::string recorded = hello_body(kKey);
  EXPECT_EQ(judge(kKey, std::string(32, 't'), *decode_hello(recorded)), Verdict::wrong_secret) << "another nonce";
  for (size_t at = 0; at < recorded.size(); ++at) {
    std::string changed = recorded;
    changed[at] = static_cast<char>(changed[at] ^ 1);
    EXPECT_EQ(judge(kKey, kServerNonce, *decode_hello(changed)), Verdict::wrong_secret) << "byte " << at;
  }
}

TEST(StoreHandshake, TheServerProvesThatItKnowsTheSecret) {
  for (const Verdict verdict : {Verdict::welcome, Verdict::other_job, Verdict::other_world_size}) {
    const std::string body = encode_answer(kKey, verdict, kServerNonce, kClientNonce).substr(kLengthBytes);
    const auto answer = decode_answer(body);
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->world_size, 4);
    EXPECT_EQ(answer->job, "a job");
    EXPECT_TRUE(is_genuine(kKey, kServerNonce, kClientNonce, *answer));
    EXPECT_FALSE(is_genuine({"a job", "another secret, of another job", 4}, kServerNonce, kClientNonce, *answer));
    EXPECT_FALSE(is_genuine(kKey, kServerNonce, std::string(32, 'd'), *answer));
    for (size_t at = 0; at < body.size(); ++at) {
      std::string changed = body;
      changed[at] = static_cast<char>(changed[at] ^ 8);
      const auto forged = decode_answer(changed);
      EXPECT_FALSE(forged && is_genuine(kKey, kServerNonce, kClientNonce, *forged)) << "byte " << at;
    }
  }
}

/// A server that reflects a client's own proof proves nothing.
TEST(StoreHandshake, AReflectedProofIsRejected) {
  const JobKey key{"", kKey.secret, 0};
  const std::string hello = encode_hello(key, 0, kServerNonce, kClientNonce).substr(kLengthBytes);
  const Answer reflected{Verdict::welcome, std::string_view(hello).substr(32, 32), 0, ""};
  EXPECT_FALSE(is_genuine(key, kServerNonce, kClientNonce, reflected));
}

TEST(StoreHandshake, ClientsWithoutTheSecretLearnNothing) {
  const std::string frame = encode_answer(kKey, Verdict::wrong_secret, kServerNonce, kClientNonce);
  const auto answer = decode_answer(std::string_view(frame).substr(kLengthBytes));
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->mac, std::string(32, '\0'));
  EXPECT_EQ(answer->world_size, 0);
  EXPECT_EQ(answer->job, "");
  EXPECT_FALSE(is_genuine(kKey, kServerNonce, kClientNonce, *answer));
}

TEST(StoreHandshake, MalformedMessagesAreRefused) {
  EXPECT_FALSE(decode_hello(""));
  EXPECT_FALSE(decode_hello(std::string(71, 'x')));
  EXPECT_TRUE(decode_hello(std::string(72, 'x')));
  EXPECT_FALSE(decode_hello(std::string(72 + 129, 'x')));
  EXPECT_FALSE(decode_answer(std::string(36, '\0')));
  EXPECT_TRUE(decode_answer(std::string(37, '\0')));
  EXPECT_FALSE(decode_answer(std::string(37, '\4'))) << "no such verdict";
  EXPECT_FALSE(decode_answer(std::string(37 + 129, '\0')));
}

}  // namespace
}  // namespace caravan::store_secret_test
