#include "caravan/nn/product/product_choice.h"

#include <fstream>
#include <gmock/gmock.h>

#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/base/system/cache_folder.h"
#include "caravan/base/system/processor.h"
#include "tests/data/support.h"
#include "tests/nn/with_variable.h"

namespace caravan::product_choice_test {
namespace {

using ::testing::HasSubstr;
using enum ProductLibrary;
using testing::WithVariable;

const std::vector<ProductLibrary> kBoth{tiles, mkl};

template <class E, class F>
std::string message_of(F f) {
  try {
    f();
  } catch (const E& error) {
    return error.what();
  }
  return "no error";
}

TEST(ProductChoice, textIsCompleteAndReadsBack) {
  const auto native = Bf16Arithmetic::native;
  const auto fp32 = Bf16Arithmetic::fp32;
  EXPECT_EQ(to_text({}), "tiles bf16=native attention=native");
  EXPECT_EQ(to_text({mkl, mkl, tiles, fp32, native}), "forward=mkl dx=mkl dw=tiles bf16=fp32 attention=native");
  for (const ProductChoice& choice :
       {ProductChoice{}, {mkl, mkl, mkl, fp32, fp32}, {mkl, tiles, mkl, native, fp32}, {tiles, mkl, mkl, fp32}}) {
    for (const ProductChoice& base : {ProductChoice{}, {mkl, mkl, mkl, fp32, fp32}}) {
      EXPECT_EQ(parse_product_choice(to_text(choice), base, kBoth), choice) << to_text(choice);
    }
  }
}

TEST(ProductChoice, wordsThatAreMissingKeepTheBase) {
  const ProductChoice base{mkl, mkl, mkl, Bf16Arithmetic::fp32, Bf16Arithmetic::fp32};
  EXPECT_EQ(parse_product_choice("", base, kBoth), base);
  EXPECT_EQ(to_text(parse_product_choice("tiles", base, kBoth)), "tiles bf16=fp32 attention=fp32");
  EXPECT_EQ(to_text(parse_product_choice(" dw=tiles  bf16=native", base, kBoth)),
            "forward=mkl dx=mkl dw=tiles bf16=native attention=fp32");
}

TEST(ProductChoice, wordsOfEarlierCheckpointsAreTiles) {
  const std::string text = "forward=mkl dx=onednn dw=onednn bf16=fp32 attention=fp32";
  EXPECT_EQ(to_text(parse_product_choice(text, {}, kBoth)), "forward=mkl dx=tiles dw=tiles bf16=fp32 attention=fp32");
  EXPECT_EQ(parse_product_choice("onednn", {}, kBoth), parse_product_choice("tiles", {}, kBoth));
}

TEST(ProductChoice, unknownWordsAndMissingLibrariesAreRefused) {
  for (const char* text : {"openblas", "tiles bf17=fp32", "bf16=mkl", "attention=", "=mkl", "forward=fp32"}) {
    EXPECT_THROW(parse_product_choice(text, {}, kBoth), UsageError) << text;
  }
  EXPECT_THAT(message_of<UsageError>([] { parse_product_choice("mk1", {}, kBoth); }), HasSubstr("do: use mkl"));
  const std::string message = message_of<UsageError>([] { parse_product_choice("dx=mkl", {}, {tiles, blas}); });
  EXPECT_THAT(message, HasSubstr("dx=mkl"));
  EXPECT_THAT(message, HasSubstr("tiles, blas, forward=tiles, forward=blas"));
}

TEST(ProductRule, matchesTheMeasurements) {
  const std::pair<const char*, const char*> rules[] = {
      {"amd avx2", "tiles bf16=fp32 attention=fp32"},
      {"amd avx512", "tiles bf16=fp32 attention=fp32"},
      {"amd avx512_bf16", "tiles bf16=native attention=fp32"},
      {"intel avx2", "mkl bf16=fp32 attention=fp32"},
      {"intel avx512_bf16", "mkl bf16=fp32 attention=fp32"},
      {"intel amx", "mkl bf16=native attention=native"},
      {"arm", "tiles bf16=native attention=fp32"},
  };
  for (const auto& [processor, text] : rules) EXPECT_EQ(to_text(product_rule(processor, kBoth)), text) << processor;
}

TEST(ProductRule, usesAvailableLibraries) {
  EXPECT_EQ(product_rule("amd avx2", {tiles, blas}).dw, tiles);
  EXPECT_EQ(product_rule("amd avx512", {mkl}).dw, mkl);
  EXPECT_EQ(product_rule("intel avx2", {blas}).forward, blas);
  EXPECT_EQ(product_rule("arm", {blas}).forward, blas);
}

class TunedProducts : public ::testing::Test {
 protected:
  TemporaryFolder folder_;
};

TEST_F(TunedProducts, areKeptForTheirClassOnly) {
  const auto cache = folder_ / "new/cache";
  const std::vector<ProductLibrary> both{tiles, mkl};
  const auto read = [&](std::string_view processor) {
    return read_tuned_products(cache, processor, product_rule(processor, both), both);
  };
  EXPECT_FALSE(read("amd avx2").has_value());
  write_tuned_products(cache, "amd avx2", "mkl dw=tiles");
  write_tuned_products(cache, "intel amx", "tiles");
  EXPECT_EQ(to_text(read("amd avx2").value()), "forward=mkl dx=mkl dw=tiles bf16=fp32 attention=fp32");
  EXPECT_EQ(read("intel amx").value().forward, tiles);
  EXPECT_FALSE(read("amd avx512").has_value());
}

// The last one is of a torch that had MKL.
TEST_F(TunedProducts, unusableFilesAreRefused) {
  const std::vector<ProductLibrary> available{tiles, blas};
  const ProductChoice base = product_rule("amd avx2", available);
  for (const char* text : {"", "amd avx2\n", "intel avx2\ntiles\n", "amd avx2\nmkl\n"}) {
    const auto file = tuned_products_file(folder_.path(), "amd avx2");
    std::ofstream(file) << text;
    EXPECT_THAT(message_of<DataError>([&] { read_tuned_products(folder_.path(), "amd avx2", base, available); }),
                AllOf(HasSubstr(file.string()), HasSubstr("--tune again")));
  }
}

TEST(Processor, hasAClass) {
  const std::string processor = processor_class();
#if defined(__x86_64__)
  EXPECT_THAT(processor, ::testing::MatchesRegex("(amd|intel|x86) (baseline|avx2|avx512|avx512_bf16|amx)"));
#else
  EXPECT_FALSE(processor.empty());
#endif
}

TEST(CacheFolder, isTheOneThatTheVariablesName) {
  const WithVariable home("HOME", "/h");
  const WithVariable no_cache("CARAVAN_CACHE", nullptr);
  {
    const WithVariable no_xdg("XDG_CACHE_HOME", nullptr);
    EXPECT_EQ(cache_folder(), "/h/.cache/caravan");
  }
  const WithVariable xdg("XDG_CACHE_HOME", "/x");
  EXPECT_EQ(cache_folder(), "/x/caravan");
  const WithVariable cache("CARAVAN_CACHE", "/c");
  EXPECT_EQ(cache_folder(), "/c");
}

}  // namespace
}  // namespace caravan::product_choice_test
