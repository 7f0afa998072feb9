// JSON for the trainer, which is built with LibTorch alone: a strict reader of RFC 8259 and a writer.
//
//   JsonValue v = ParseJson(R"({"step": "12", "loss": 2.5})");
//   v.Find("loss")->AsDouble();
//
// The reader refuses duplicate keys, invalid UTF-8, lone surrogates, nesting beyond 64 and anything after the value.
// The writer prints the shortest form of a double that reads back the same, and numbers that are not finite as proto3
// JSON does: "NaN", "Infinity", "-Infinity" (strings).
//
// Thread-safety: a value, like a std container.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace mp::trainer {

class JsonError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class JsonValue {
 public:
  using Array = std::vector<JsonValue>;
  using Member = std::pair<std::string, JsonValue>;
  using Object = std::vector<Member>;  // in the order of the text

  JsonValue() = default;
  JsonValue(std::nullptr_t) {}                                   // NOLINT(google-explicit-constructor)
  JsonValue(bool value) : value_(value) {}                       // NOLINT(google-explicit-constructor)
  JsonValue(int value) : value_(static_cast<int64_t>(value)) {}  // NOLINT(google-explicit-constructor)
  JsonValue(int64_t value) : value_(value) {}                    // NOLINT(google-explicit-constructor)
  JsonValue(double value) : value_(value) {}                     // NOLINT(google-explicit-constructor)
  JsonValue(const char* value) : value_(std::string(value)) {}   // NOLINT(google-explicit-constructor)
  JsonValue(std::string value) : value_(std::move(value)) {}     // NOLINT(google-explicit-constructor)
  JsonValue(Array value) : value_(std::move(value)) {}           // NOLINT(google-explicit-constructor)
  JsonValue(Object value) : value_(std::move(value)) {}          // NOLINT(google-explicit-constructor)

  bool is_null() const { return std::holds_alternative<std::monostate>(value_); }
  bool is_bool() const { return std::holds_alternative<bool>(value_); }
  bool is_integer() const { return std::holds_alternative<int64_t>(value_); }
  bool is_number() const { return is_integer() || std::holds_alternative<double>(value_); }
  bool is_string() const { return std::holds_alternative<std::string>(value_); }
  bool is_array() const { return std::holds_alternative<Array>(value_); }
  bool is_object() const { return std::holds_alternative<Object>(value_); }

  // Each throws JsonError when the value is of another type.
  bool AsBool() const;
  int64_t AsInteger()
      const;                // also a double without fraction that an int64 holds, and a string of digits (proto3 JSON)
  double AsDouble() const;  // also "NaN", "Infinity", "-Infinity"
  const std::string& AsString() const;
  const Array& AsArray() const;
  const Object& AsObject() const;

  // Member of an object; null when absent or not an object.
  const JsonValue* Find(std::string_view key) const;
  // As Find, but throws JsonError naming the key.
  const JsonValue& At(std::string_view key) const;
  // Sets a member, appending it when it is new; a null value becomes an object first.
  void Set(std::string key, JsonValue value);
  void Append(JsonValue value);

  std::string ToString() const;
  const char* type_name() const;  // "null", "a boolean", "a number", ...

  bool operator==(const JsonValue& other) const = default;

 private:
  std::variant<std::monostate, bool, int64_t, double, std::string, Array, Object> value_;
};

// Throws JsonError with line:column.
JsonValue ParseJson(std::string_view text);

// Appends `text` as a JSON string with quotes. Bytes that are not UTF-8 become U+FFFD.
void AppendJsonString(std::string_view text, std::string* out);
// Appends a number, or a string for those that are not finite.
void AppendJsonDouble(double value, std::string* out);

}  // namespace mp::trainer
