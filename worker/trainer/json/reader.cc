#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>

#include "worker/trainer/json/json.h"
#include "worker/trainer/json/utf8.h"

namespace mp::trainer {
namespace {

constexpr int kMaxDepth = 64;

class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  JsonValue Read() {
    JsonValue value = ReadValue(0);
    SkipSpace();
    if (position_ != text_.size()) Fail("text after the end of the JSON value");
    return value;
  }

 private:
  [[noreturn]] void Fail(const std::string& what) const {
    const std::string_view before = text_.substr(0, position_);
    const auto line = 1 + std::count(before.begin(), before.end(), '\n');
    const size_t start = before.rfind('\n');
    const size_t column = 1 + (start == std::string_view::npos ? position_ : position_ - start - 1);
    throw JsonError("line " + std::to_string(line) + ", column " + std::to_string(column) + ": " + what);
  }

  void SkipSpace() {
    while (position_ < text_.size() && std::strchr(" \t\r\n", text_[position_]) != nullptr &&
           text_[position_] != '\0') {
      ++position_;
    }
  }

  bool Accept(char c) {
    if (position_ >= text_.size() || text_[position_] != c) return false;
    ++position_;
    return true;
  }

  JsonValue ReadValue(int depth) {
    if (depth > kMaxDepth) Fail("nested deeper than " + std::to_string(kMaxDepth));
    SkipSpace();
    if (position_ >= text_.size()) Fail("a value is missing");
    switch (text_[position_]) {
      case '{':
        return ReadObject(depth);
      case '[':
        return ReadArray(depth);
      case '"':
        return ReadString();
      case 't':
        return ReadWord("true", true);
      case 'f':
        return ReadWord("false", false);
      case 'n':
        return ReadWord("null", nullptr);
      default:
        return ReadNumber();
    }
  }

  JsonValue ReadWord(std::string_view word, JsonValue value) {
    if (text_.substr(position_, word.size()) != word) Fail("a value was expected");
    position_ += word.size();
    return value;
  }

  JsonValue ReadObject(int depth) {
    ++position_;
    JsonValue::Object object;
    SkipSpace();
    if (Accept('}')) return object;
    do {
      SkipSpace();
      if (position_ >= text_.size() || text_[position_] != '"') Fail("a member's name in quotes was expected");
      std::string key = ReadString();
      const bool taken =
          std::any_of(object.begin(), object.end(), [&](const auto& member) { return member.first == key; });
      if (taken) Fail("duplicate key \"" + key + "\"");
      SkipSpace();
      if (!Accept(':')) Fail("':' was expected");
      object.emplace_back(std::move(key), ReadValue(depth + 1));
      SkipSpace();
    } while (Accept(','));
    if (!Accept('}')) Fail("',' or '}' was expected");
    return object;
  }

  JsonValue ReadArray(int depth) {
    ++position_;
    JsonValue::Array array;
    SkipSpace();
    if (Accept(']')) return array;
    do {
      array.push_back(ReadValue(depth + 1));
      SkipSpace();
    } while (Accept(','));
    if (!Accept(']')) Fail("',' or ']' was expected");
    return array;
  }

  std::string ReadString() {
    ++position_;
    std::string out;
    while (true) {
      if (position_ >= text_.size()) Fail("the string does not end");
      const auto c = static_cast<unsigned char>(text_[position_]);
      if (c == '"') {
        ++position_;
        return out;
      }
      if (c < 0x20) Fail("a control character in a string must be escaped");
      if (c == '\\') {
        ++position_;
        ReadEscape(&out);
        continue;
      }
      const size_t length = Utf8SequenceLength(text_.substr(position_));
      if (length == 0) Fail("invalid UTF-8");
      out.append(text_.substr(position_, length));
      position_ += length;
    }
  }

  void ReadEscape(std::string* out) {
    if (position_ >= text_.size()) Fail("the string does not end");
    constexpr std::string_view kNames = "\"\\/bfnrt";
    constexpr std::string_view kValues = "\"\\/\b\f\n\r\t";
    const char c = text_[position_++];
    if (const size_t index = kNames.find(c); index != std::string_view::npos) {
      out->push_back(kValues[index]);
      return;
    }
    if (c != 'u') Fail("unknown escape");
    uint32_t code = ReadHex4();
    if (code >= 0xDC00 && code <= 0xDFFF) Fail("a low surrogate without a high one");
    if (code >= 0xD800 && code <= 0xDBFF) {
      if (!Accept('\\') || !Accept('u')) Fail("a high surrogate without a low one");
      const uint32_t low = ReadHex4();
      if (low < 0xDC00 || low > 0xDFFF) Fail("a high surrogate without a low one");
      code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    }
    AppendUtf8(code, out);
  }

  uint32_t ReadHex4() {
    if (text_.size() - position_ < 4) Fail("four hexadecimal digits were expected");
    uint32_t code = 0;
    const char* begin = text_.data() + position_;
    const auto result = std::from_chars(begin, begin + 4, code, 16);
    if (result.ptr != begin + 4) Fail("four hexadecimal digits were expected");
    position_ += 4;
    return code;
  }

  JsonValue ReadNumber() {
    const size_t start = position_;
    Accept('-');
    const auto digits = [&] {
      const size_t first = position_;
      while (position_ < text_.size() && text_[position_] >= '0' && text_[position_] <= '9') ++position_;
      return position_ - first;
    };
    const size_t integer_start = position_;
    const size_t integer_digits = digits();
    if (integer_digits == 0) Fail("a value was expected");
    if (integer_digits > 1 && text_[integer_start] == '0') Fail("a number must not start with 0");
    bool integral = true;
    if (Accept('.')) {
      integral = false;
      if (digits() == 0) Fail("a digit was expected after '.'");
    }
    if (Accept('e') || Accept('E')) {
      integral = false;
      if (!Accept('+')) Accept('-');
      if (digits() == 0) Fail("a digit was expected in the exponent");
    }
    const char* begin = text_.data() + start;
    const char* end = text_.data() + position_;
    if (integral) {
      int64_t value = 0;
      if (std::from_chars(begin, end, value).ec == std::errc()) return value;
    }
    double value = 0;
    const auto result = std::from_chars(begin, end, value);
    if (result.ec == std::errc::result_out_of_range) Fail("the number is out of a double's range");
    if (result.ec != std::errc() || !std::isfinite(value)) Fail("not a number");
    return value;
  }

  std::string_view text_;
  size_t position_ = 0;
};

}  // namespace

JsonValue ParseJson(std::string_view text) { return Reader(text).Read(); }

}  // namespace mp::trainer
