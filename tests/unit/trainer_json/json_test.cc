#include "worker/trainer/json/json.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/unit/mutation.h"
#include "worker/trainer/hash/xxh64.h"

namespace mp::trainer {
namespace {

std::string ErrorOf(std::string_view text) {
  try {
    ParseJson(text);
  } catch (const JsonError& error) {
    return error.what();
  }
  return "";
}

TEST(JsonTest, ReadsEveryKindOfValue) {
  const JsonValue v = ParseJson(R"( {"a": [1, -2.5e3, true, false, null], "b": {"c": "\u00e9\ud83d\ude00\n\"\\\/"}} )");
  EXPECT_EQ(v.At("a").AsArray()[0].AsInteger(), 1);
  EXPECT_EQ(v.At("a").AsArray()[1].AsDouble(), -2500.0);
  EXPECT_TRUE(v.At("a").AsArray()[4].is_null());
  EXPECT_EQ(v.At("b").At("c").AsString(), "\xC3\xA9\xF0\x9F\x98\x80\n\"\\/");
}

TEST(JsonTest, IntegersAreExact) {
  EXPECT_EQ(ParseJson("9223372036854775807").AsInteger(), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(ParseJson("\"-9223372036854775808\"").AsInteger(), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(ParseJson("256.0").AsInteger(), 256);
  EXPECT_THROW(ParseJson("256.5").AsInteger(), JsonError);
  EXPECT_THROW(ParseJson("1e19").AsInteger(), JsonError);
}

TEST(JsonTest, RefusesWhatIsNotJson) {
  for (const char* text : {"",
                           "{",
                           "[1,]",
                           "{\"a\":1,}",
                           "{'a':1}",
                           "01",
                           "1.",
                           ".5",
                           "+1",
                           "1e",
                           "tru",
                           "nan",
                           "\"\t\"",
                           "\"\\x\"",
                           "\"\\ud800\"",
                           "\"\\udc00x\"",
                           "\"\xC0\x80\"",
                           "\"\xED\xA0\x80\"",
                           "\"\xFF\"",
                           "1 2",
                           "{\"a\":1,\"a\":2}",
                           "1e999",
                           "\"abc"}) {
    EXPECT_NE(ErrorOf(text), "") << text;
  }
  EXPECT_NE(ErrorOf(std::string(100, '[')), "");
  EXPECT_NE(ErrorOf(std::string("1\0", 2)), "");
}

TEST(JsonTest, ErrorsNameTheirPlace) {
  EXPECT_NE(ErrorOf("{\n  \"a\": x\n}").find("line 2, column 8"), std::string::npos) << ErrorOf("{\n  \"a\": x\n}");
}

TEST(JsonTest, NumbersThatAreNotFiniteSurvive) {
  const JsonValue v = JsonValue::Array{NAN, INFINITY, -INFINITY, 0.1};
  EXPECT_EQ(v.ToString(), R"(["NaN","Infinity","-Infinity",0.1])");
  const JsonValue back = ParseJson(v.ToString());
  EXPECT_TRUE(std::isnan(back.AsArray()[0].AsDouble()));
  EXPECT_EQ(back.AsArray()[2].AsDouble(), -INFINITY);
}

TEST(JsonTest, WritesWhatItReads) {
  const std::string text = R"({"z":1,"a":[true,null,"\u0001\u007f\n"],"d":1e-300})";
  EXPECT_EQ(ParseJson(ParseJson(text).ToString()), ParseJson(text));
  EXPECT_EQ(JsonValue(std::string("bad \xFF byte")).ToString(), "\"bad \\ufffd byte\"");
}

TEST(JsonTest, DamagedTextIsRefusedOrReadsBack) {
  const std::string good = R"({"name":"j","a":[1,-2.5e3,true,null,"\u00e9\ud83d\ude00"],"b":{"c":{"d":"12"},"e":""}})";
  int refused = 0;
  for (unsigned seed = 0; seed < 20000; ++seed) {
    const std::string text = Mutator(seed).Damage(good);
    try {
      const std::string written = ParseJson(text).ToString();
      EXPECT_EQ(ParseJson(written).ToString(), written) << "seed " << seed << ": " << text;
    } catch (const JsonError& error) {
      ++refused;
      EXPECT_STRNE(error.what(), "");
    }
  }
  EXPECT_GT(refused, 10000);
  EXPECT_LT(refused, 20000);
}

TEST(Xxh64Test, GivesTheSpecificationsVectors) {
  // From the reference implementation's self-test, seed 0.
  EXPECT_EQ(HashToHex(HashBytes("", 0)), "ef46db3751d8e999");
  EXPECT_EQ(HashToHex(HashBytes("a", 1)), "d24ec4f1a98c6e5b");
  EXPECT_EQ(HashToHex(HashBytes("abc", 3)), "44bc2cf5ad770999");
  const std::string text = "Nobody inspects the spammish repetition";
  EXPECT_EQ(HashToHex(HashBytes(text.data(), text.size())), "fbcea83c8a378bf1");
}

TEST(Xxh64Test, PiecesMakeTheSameHash) {
  std::string data(1000, '\0');
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>(i * 7);
  for (const size_t piece : {1U, 3U, 31U, 32U, 33U, 999U}) {
    Xxh64 hash;
    for (size_t at = 0; at < data.size(); at += piece) hash.Update(data.data() + at, std::min(piece, data.size() - at));
    EXPECT_EQ(hash.Digest(), HashBytes(data.data(), data.size())) << piece;
  }
}

}  // namespace
}  // namespace mp::trainer
