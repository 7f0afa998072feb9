// Reading a JSON object field by field, with every violation collected under its path.
//
//   FieldReader training(&violations, "training", document.Find("training"));
//   training.Integer("max_steps", 1, kMax, &config.max_steps);
//   training.RefuseOthers();
//
// Fields are found by their snake_case or lowerCamelCase name (proto3 JSON takes both). An absent or null field leaves
// the target as it is. Thread-safety: one thread.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "worker/trainer/json/json.h"

namespace mp::trainer {

using Violations = std::vector<std::string>;  // "path: what is wrong; what would be right"

class FieldReader {
 public:
  // `object` may be null (all fields absent); anything but an object is a violation.
  FieldReader(Violations* violations, std::string path, const JsonValue* object);

  // The field's value; null when absent.
  const JsonValue* Get(const std::string& name);
  bool Has(const std::string& name) { return Get(name) != nullptr; }

  void String(const std::string& name, std::string* target);
  void Bool(const std::string& name, bool* target);
  void Integer(const std::string& name, int64_t least, int64_t most, int64_t* target);
  // A finite number with least <= x (or < when `above`) and x <= most (or < when `below`).
  void Double(const std::string& name, double least, bool above, double most, bool below, double* target);
  // One of the names.
  template <typename T>
  void Enum(const std::string& name, const std::vector<std::pair<std::string, T>>& values, T* target) {
    const JsonValue* value = Get(name);
    if (value == nullptr) return;
    std::string legal;
    for (const auto& [key, meaning] : values) {
      if (value->is_string() && value->AsString() == key) {
        *target = meaning;
        return;
      }
      legal += (legal.empty() ? "" : ", ") + key;
    }
    Violate(name, value->ToString() + " is not known; it must be one of " + legal);
  }

  std::string Path(const std::string& name) const { return path_.empty() ? name : path_ + "." + name; }
  void Violate(const std::string& name, const std::string& what) { violations_->push_back(Path(name) + ": " + what); }
  // Every field that was not asked for is a violation.
  void RefuseOthers();

 private:
  Violations* violations_;
  std::string path_;
  const JsonValue* object_;
  std::set<std::string> known_;
};

}  // namespace mp::trainer
