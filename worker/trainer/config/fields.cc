#include "worker/trainer/config/fields.h"

#include <cctype>
#include <cmath>
#include <limits>

namespace mp::trainer {
namespace {

std::string CamelCase(const std::string& name) {
  std::string camel;
  bool upper = false;
  for (const char c : name) {
    if (c == '_') {
      upper = true;
      continue;
    }
    camel.push_back(upper ? static_cast<char>(std::toupper(static_cast<unsigned char>(c))) : c);
    upper = false;
  }
  return camel;
}

std::string Text(double value) {
  std::string text;
  AppendJsonDouble(value, &text);
  return text;
}

}  // namespace

FieldReader::FieldReader(Violations* violations, std::string path, const JsonValue* object)
    : violations_(violations), path_(std::move(path)), object_(object) {
  if (object_ != nullptr && object_->is_null()) object_ = nullptr;
  if (object_ != nullptr && !object_->is_object()) {
    violations_->push_back(path_ + ": an object was expected, this is " + object_->type_name());
    object_ = nullptr;
  }
}

const JsonValue* FieldReader::Get(const std::string& name) {
  const std::string camel = CamelCase(name);
  known_.insert(name);
  known_.insert(camel);
  if (object_ == nullptr) return nullptr;
  const JsonValue* value = object_->Find(name);
  if (camel != name) {
    if (const JsonValue* other = object_->Find(camel)) {
      if (value != nullptr) Violate(name, "is given twice, as " + name + " and as " + camel);
      value = other;
    }
  }
  return value != nullptr && value->is_null() ? nullptr : value;
}

void FieldReader::String(const std::string& name, std::string* target) {
  const JsonValue* value = Get(name);
  if (value == nullptr) return;
  if (!value->is_string()) return Violate(name, std::string("a string was expected, this is ") + value->type_name());
  if (value->AsString().find('\0') != std::string::npos) return Violate(name, "a NUL character is not allowed");
  *target = value->AsString();
}

void FieldReader::Bool(const std::string& name, bool* target) {
  const JsonValue* value = Get(name);
  if (value == nullptr) return;
  if (!value->is_bool()) return Violate(name, std::string("true or false was expected, this is ") + value->type_name());
  *target = value->AsBool();
}

void FieldReader::Integer(const std::string& name, int64_t least, int64_t most, int64_t* target) {
  const JsonValue* value = Get(name);
  if (value == nullptr) return;
  try {
    const int64_t number = value->AsInteger();
    if (number < least || number > most) {
      const std::string bound = most == std::numeric_limits<int64_t>::max()
                                    ? "at least " + std::to_string(least)
                                    : std::to_string(least) + " to " + std::to_string(most);
      return Violate(name, std::to_string(number) + " is out of range; it must be " + bound);
    }
    *target = number;
  } catch (const JsonError& error) {
    Violate(name, error.what());
  }
}

void FieldReader::Double(const std::string& name, double least, bool above, double most, bool below, double* target) {
  const JsonValue* value = Get(name);
  if (value == nullptr) return;
  try {
    const double number = value->AsDouble();
    const bool legal =
        std::isfinite(number) && (above ? number > least : number >= least) && (below ? number < most : number <= most);
    if (!legal) {
      std::string bound = (above ? "greater than " : "at least ") + Text(least);
      if (std::isfinite(most)) bound += std::string(" and ") + (below ? "less than " : "at most ") + Text(most);
      return Violate(name, Text(number) + " is out of range; it must be finite, " + bound);
    }
    *target = number;
  } catch (const JsonError& error) {
    Violate(name, error.what());
  }
}

void FieldReader::RefuseOthers() {
  if (object_ == nullptr) return;
  for (const auto& [key, value] : object_->AsObject()) {
    if (!known_.contains(key)) Violate(key, "unknown field");
  }
}

}  // namespace mp::trainer
