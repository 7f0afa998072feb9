#include "worker/trainer/json/json.h"

#include <charconv>
#include <cmath>
#include <limits>

#include "worker/trainer/json/utf8.h"

namespace mp::trainer {
namespace {

[[noreturn]] void WrongType(const char* wanted, const JsonValue& value) {
  throw JsonError(std::string(wanted) + " was expected, this is " + value.type_name());
}

void AppendValue(const JsonValue& value, std::string* out) {
  if (value.is_null()) {
    *out += "null";
  } else if (value.is_bool()) {
    *out += value.AsBool() ? "true" : "false";
  } else if (value.is_integer()) {
    *out += std::to_string(value.AsInteger());
  } else if (value.is_number()) {
    AppendJsonDouble(value.AsDouble(), out);
  } else if (value.is_string()) {
    AppendJsonString(value.AsString(), out);
  } else if (value.is_array()) {
    out->push_back('[');
    const char* separator = "";
    for (const JsonValue& element : value.AsArray()) {
      *out += separator;
      AppendValue(element, out);
      separator = ",";
    }
    out->push_back(']');
  } else {
    out->push_back('{');
    const char* separator = "";
    for (const auto& [key, member] : value.AsObject()) {
      *out += separator;
      AppendJsonString(key, out);
      out->push_back(':');
      AppendValue(member, out);
      separator = ",";
    }
    out->push_back('}');
  }
}

}  // namespace

bool JsonValue::AsBool() const {
  if (const bool* value = std::get_if<bool>(&value_)) return *value;
  WrongType("true or false", *this);
}

int64_t JsonValue::AsInteger() const {
  if (const int64_t* value = std::get_if<int64_t>(&value_)) return *value;
  if (const double* value = std::get_if<double>(&value_)) {
    // 2^63 is a double, 2^63 - 1 is not.
    if (*value == std::floor(*value) && *value >= -0x1p63 && *value < 0x1p63) return static_cast<int64_t>(*value);
    throw JsonError("a whole number was expected, this is " + ToString());
  }
  if (const std::string* value = std::get_if<std::string>(&value_)) {
    int64_t parsed = 0;
    const char* end = value->data() + value->size();
    const auto result = std::from_chars(value->data(), end, parsed);
    if (result.ec == std::errc() && result.ptr == end && !value->empty()) return parsed;
  }
  WrongType("a whole number", *this);
}

double JsonValue::AsDouble() const {
  if (const double* value = std::get_if<double>(&value_)) return *value;
  if (const int64_t* value = std::get_if<int64_t>(&value_)) return static_cast<double>(*value);
  if (const std::string* value = std::get_if<std::string>(&value_)) {
    if (*value == "NaN") return std::numeric_limits<double>::quiet_NaN();
    if (*value == "Infinity") return std::numeric_limits<double>::infinity();
    if (*value == "-Infinity") return -std::numeric_limits<double>::infinity();
  }
  WrongType("a number", *this);
}

const std::string& JsonValue::AsString() const {
  if (const std::string* value = std::get_if<std::string>(&value_)) return *value;
  WrongType("a string", *this);
}

const JsonValue::Array& JsonValue::AsArray() const {
  if (const Array* value = std::get_if<Array>(&value_)) return *value;
  WrongType("a list", *this);
}

const JsonValue::Object& JsonValue::AsObject() const {
  if (const Object* value = std::get_if<Object>(&value_)) return *value;
  WrongType("an object", *this);
}

const JsonValue* JsonValue::Find(std::string_view key) const {
  const Object* object = std::get_if<Object>(&value_);
  if (object == nullptr) return nullptr;
  for (const Member& member : *object) {
    if (member.first == key) return &member.second;
  }
  return nullptr;
}

const JsonValue& JsonValue::At(std::string_view key) const {
  const JsonValue* value = Find(key);
  if (value == nullptr) throw JsonError("member \"" + std::string(key) + "\" is missing");
  return *value;
}

void JsonValue::Set(std::string key, JsonValue value) {
  if (is_null()) value_ = Object();
  Object* object = std::get_if<Object>(&value_);
  if (object == nullptr) WrongType("an object", *this);
  for (Member& member : *object) {
    if (member.first == key) {
      member.second = std::move(value);
      return;
    }
  }
  object->emplace_back(std::move(key), std::move(value));
}

void JsonValue::Append(JsonValue value) {
  if (is_null()) value_ = Array();
  Array* array = std::get_if<Array>(&value_);
  if (array == nullptr) WrongType("a list", *this);
  array->push_back(std::move(value));
}

std::string JsonValue::ToString() const {
  std::string out;
  AppendValue(*this, &out);
  return out;
}

const char* JsonValue::type_name() const {
  if (is_null()) return "null";
  if (is_bool()) return "a boolean";
  if (is_number()) return "a number";
  if (is_string()) return "a string";
  if (is_array()) return "a list";
  return "an object";
}

void AppendJsonString(std::string_view text, std::string* out) {
  constexpr char kHex[] = "0123456789abcdef";
  out->push_back('"');
  while (!text.empty()) {
    const size_t length = Utf8SequenceLength(text);
    const auto c = static_cast<unsigned char>(text[0]);
    if (length == 0) {
      *out += "\\ufffd";
      text.remove_prefix(1);
      continue;
    }
    if (c == '"' || c == '\\') {
      out->push_back('\\');
      out->push_back(static_cast<char>(c));
    } else if (c == '\n') {
      *out += "\\n";
    } else if (c == '\t') {
      *out += "\\t";
    } else if (c < 0x20 || c == 0x7F) {
      *out += "\\u00";
      out->push_back(kHex[c >> 4]);
      out->push_back(kHex[c & 15]);
    } else {
      out->append(text.substr(0, length));
    }
    text.remove_prefix(length);
  }
  out->push_back('"');
}

void AppendJsonDouble(double value, std::string* out) {
  if (std::isnan(value)) {
    *out += "\"NaN\"";
  } else if (std::isinf(value)) {
    *out += value > 0 ? "\"Infinity\"" : "\"-Infinity\"";
  } else {
    char buffer[32];
    const auto result = std::to_chars(buffer, buffer + sizeof(buffer), value);
    out->append(buffer, result.ptr);
  }
}

}  // namespace mp::trainer
