// YAML or JSON text into a JobSpec, walked along the message's descriptor.
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <google/protobuf/struct.pb.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "google/protobuf/duration.pb.h"
#include "proto/utf8.h"
#include "server/spec/spec.h"

namespace mp {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

constexpr size_t kMaxDocument = size_t{1} << 20;
constexpr int kMaxDepth = 32;
// Aliases can make a small text stand for a huge tree; this bounds the walk.
constexpr int kMaxNodes = 100000;

std::string Join(const std::string& path, const std::string& name) {
  return path.empty() ? name : absl::StrCat(path, ".", name);
}

std::string Describe(const YAML::Node& node) {
  if (node.IsNull()) return "null";
  if (node.IsSequence()) return "a list";
  if (node.IsMap()) return "a mapping";
  const std::string& text = node.Scalar();
  return text.size() > 60 ? absl::StrCat("\"", text.substr(0, 60), "...\"") : absl::StrCat("\"", text, "\"");
}

// Number of single-character edits between two names (Levenshtein).
size_t EditDistance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t cost = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, cost});
    }
  }
  return row[b.size()];
}

const FieldDescriptor* FindField(const Descriptor* message, const std::string& name) {
  if (const auto* field = message->FindFieldByName(name)) return field;
  for (int i = 0; i < message->field_count(); ++i) {
    if (message->field(i)->json_name() == name) return message->field(i);
  }
  return nullptr;
}

std::string UnknownField(const Descriptor* message, const std::string& name) {
  std::string nearest;
  size_t best = std::max<size_t>(2, name.size() / 3) + 1;
  std::vector<std::string> known;
  for (int i = 0; i < message->field_count(); ++i) {
    const std::string& candidate = message->field(i)->name();
    known.push_back(candidate);
    const size_t distance = EditDistance(name, candidate);
    if (distance < best) {
      best = distance;
      nearest = candidate;
    }
  }
  if (!nearest.empty()) return absl::StrCat("unknown field; did you mean \"", nearest, "\"?");
  return absl::StrCat("unknown field; known here: ", absl::StrJoin(known, ", "));
}

class Walker {
 public:
  explicit Walker(Violations* violations) : violations_(violations) {}

  void Read(const YAML::Node& node, Message* message, const std::string& path, int depth) {
    if (!Enter(path, depth)) return;
    if (node.IsNull()) return;
    if (!node.IsMap()) return Violate(path, absl::StrCat("a mapping was expected, this is ", Describe(node)));
    std::set<std::string> seen;
    for (const auto& entry : node) {
      if (!entry.first.IsScalar()) {
        Violate(path, "a field's name must be plain text");
        continue;
      }
      const std::string& name = entry.first.Scalar();
      const FieldDescriptor* field = FindField(message->GetDescriptor(), name);
      const std::string field_path = Join(path, name);
      if (field == nullptr) {
        Violate(field_path, UnknownField(message->GetDescriptor(), name));
      } else if (!seen.insert(field->name()).second) {
        Violate(field_path, "is given twice");
      } else {
        ReadField(entry.second, message, field, Join(path, field->name()), depth);
      }
    }
  }

  void ReadField(const YAML::Node& node, Message* message, const FieldDescriptor* field, const std::string& path,
                 int depth) {
    if (node.IsNull()) return;  // as in proto3 JSON: the default
    if (field->is_map()) return ReadMap(node, message, field, path);
    if (!field->is_repeated()) return ReadSingle(node, message, field, path, depth);
    if (!node.IsSequence()) return Violate(path, absl::StrCat("a list was expected, this is ", Describe(node)));
    for (size_t i = 0; i < node.size(); ++i) {
      ReadSingle(node[i], message, field, absl::StrCat(path, "[", i, "]"), depth);
    }
  }

 private:
  void Violate(const std::string& path, std::string what) {
    violations_->push_back({path.empty() ? "(document)" : path, std::move(what)});
  }

  bool Enter(const std::string& path, int depth) {
    if (depth > kMaxDepth || ++nodes_ > kMaxNodes) {
      if (!overflowed_)
        Violate(path, absl::StrCat("the document is nested deeper than ", kMaxDepth, " or stands for more than ",
                                   kMaxNodes, " values"));
      overflowed_ = true;
      return false;
    }
    return true;
  }

  void ReadMap(const YAML::Node& node, Message* message, const FieldDescriptor* field, const std::string& path) {
    if (!node.IsMap())
      return Violate(path, absl::StrCat("a mapping of text to text was expected, this is ", Describe(node)));
    const auto* reflection = message->GetReflection();
    std::set<std::string> seen;
    for (const auto& entry : node) {
      if (!entry.first.IsScalar() || !entry.second.IsScalar()) {
        Violate(path, "a mapping of text to text was expected");
        continue;
      }
      if (!seen.insert(entry.first.Scalar()).second) {
        Violate(Join(path, entry.first.Scalar()), "is given twice");
        continue;
      }
      Message* pair = reflection->AddMessage(message, field);
      pair->GetReflection()->SetString(pair, pair->GetDescriptor()->FindFieldByName("key"), entry.first.Scalar());
      pair->GetReflection()->SetString(pair, pair->GetDescriptor()->FindFieldByName("value"), entry.second.Scalar());
    }
  }

  // One value; appended where the field is repeated.
  void ReadSingle(const YAML::Node& node, Message* message, const FieldDescriptor* field, const std::string& path,
                  int depth) {
    if (!Enter(path, depth)) return;
    const auto* reflection = message->GetReflection();
    const bool repeated = field->is_repeated();
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      Message* child = repeated ? reflection->AddMessage(message, field) : reflection->MutableMessage(message, field);
      if (auto* value = dynamic_cast<google::protobuf::Struct*>(child)) return ReadStruct(node, value, path, depth + 1);
      if (auto* value = dynamic_cast<google::protobuf::Duration*>(child)) return ReadDuration(node, value, path);
      return Read(node, child, path, depth + 1);
    }
    if (!node.IsScalar())
      return Violate(path, absl::StrCat(Expected(field), " was expected, this is ", Describe(node)));
    const std::string& text = node.Scalar();
    const bool quoted = node.Tag() == "!";
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_STRING:
        if (text.find('\0') != std::string::npos) return Violate(path, "a NUL character is not allowed");
        repeated ? reflection->AddString(message, field, text) : reflection->SetString(message, field, text);
        return;
      case FieldDescriptor::CPPTYPE_ENUM: {
        const auto* value = field->enum_type()->FindValueByName(text);
        if (value == nullptr || value->number() == 0) return Violate(path, UnknownEnum(field->enum_type(), node));
        reflection->SetEnum(message, field, value);
        return;
      }
      case FieldDescriptor::CPPTYPE_INT32:
      case FieldDescriptor::CPPTYPE_INT64: {
        int64_t value = 0;
        if (!absl::SimpleAtoi(text, &value)) {
          return Violate(path, absl::StrCat("a whole number was expected, this is ", Describe(node)));
        }
        if (field->cpp_type() == FieldDescriptor::CPPTYPE_INT64) return reflection->SetInt64(message, field, value);
        if (value > std::numeric_limits<int32_t>::max() || value < std::numeric_limits<int32_t>::min()) {
          return Violate(path, absl::StrCat(text, " is out of range"));
        }
        return reflection->SetInt32(message, field, static_cast<int32_t>(value));
      }
      case FieldDescriptor::CPPTYPE_DOUBLE: {
        double value = 0;
        if (quoted || !absl::SimpleAtod(text, &value) || !std::isfinite(value)) {
          return Violate(path, absl::StrCat("a finite number was expected, this is ", Describe(node)));
        }
        return reflection->SetDouble(message, field, value);
      }
      case FieldDescriptor::CPPTYPE_BOOL:
        if (text != "true" && text != "false")
          return Violate(path, absl::StrCat("true or false was expected, this is ", Describe(node)));
        return reflection->SetBool(message, field, text == "true");
      default:
        return Violate(path, "this field can't be set in a document");
    }
  }

  static std::string Expected(const FieldDescriptor* field) {
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_STRING:
        return "text";
      case FieldDescriptor::CPPTYPE_ENUM:
        return "a name";
      case FieldDescriptor::CPPTYPE_DOUBLE:
        return "a number";
      case FieldDescriptor::CPPTYPE_BOOL:
        return "true or false";
      default:
        return "a whole number";
    }
  }

  static std::string UnknownEnum(const EnumDescriptor* type, const YAML::Node& node) {
    std::vector<std::string> legal;
    for (int i = 0; i < type->value_count(); ++i) {
      if (type->value(i)->number() != 0) legal.push_back(type->value(i)->name());
    }
    return absl::StrCat(Describe(node), " is not known; it must be one of ", absl::StrJoin(legal, ", "));
  }

  // The form of proto3 JSON, "90s", and with m and h.
  void ReadDuration(const YAML::Node& node, google::protobuf::Duration* duration, const std::string& path) {
    double value = 0;
    const std::string text = node.IsScalar() ? node.Scalar() : "";
    const char unit = text.empty() ? '\0' : text.back();
    const double seconds = unit == 's' ? 1 : unit == 'm' ? 60 : unit == 'h' ? 3600 : 0;
    if (seconds == 0 || !absl::SimpleAtod(text.substr(0, text.size() - 1), &value) || !std::isfinite(value) ||
        std::fabs(value * seconds) > 3e11) {
      return Violate(path, absl::StrCat("a duration such as 90s, 30m or 2h was expected, this is ", Describe(node)));
    }
    const double total = value * seconds;
    duration->set_seconds(static_cast<int64_t>(total));
    duration->set_nanos(static_cast<int32_t>(std::llround((total - std::trunc(total)) * 1e9)));
  }

  void ReadStruct(const YAML::Node& node, google::protobuf::Struct* object, const std::string& path, int depth) {
    if (!node.IsMap()) return Violate(path, absl::StrCat("a mapping was expected, this is ", Describe(node)));
    for (const auto& entry : node) {
      if (!entry.first.IsScalar()) {
        Violate(path, "a key must be plain text");
        continue;
      }
      const std::string& key = entry.first.Scalar();
      if (object->fields().contains(key)) {
        Violate(Join(path, key), "is given twice");
        continue;
      }
      ReadValue(entry.second, &(*object->mutable_fields())[key], Join(path, key), depth);
    }
  }

  void ReadValue(const YAML::Node& node, google::protobuf::Value* value, const std::string& path, int depth) {
    if (!Enter(path, depth)) return;
    if (node.IsNull()) {
      value->set_null_value(google::protobuf::NULL_VALUE);
    } else if (node.IsMap()) {
      ReadStruct(node, value->mutable_struct_value(), path, depth + 1);
    } else if (node.IsSequence()) {
      for (size_t i = 0; i < node.size(); ++i) {
        ReadValue(node[i], value->mutable_list_value()->add_values(), absl::StrCat(path, "[", i, "]"), depth + 1);
      }
    } else {
      const std::string& text = node.Scalar();
      double number = 0;
      const bool quoted = node.Tag() == "!";
      if (!quoted && (text == "true" || text == "false")) {
        value->set_bool_value(text == "true");
      } else if (!quoted && absl::SimpleAtod(text, &number) && std::isfinite(number)) {
        value->set_number_value(number);
      } else {
        value->set_string_value(text);
      }
    }
  }

  Violations* violations_;
  int nodes_ = 0;
  bool overflowed_ = false;
};

// JSON writes characters beyond U+FFFF as two escapes, which YAML does not know: they are written out.
std::string WithoutSurrogates(std::string_view text) {
  std::string written;
  written.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    written.push_back(text[i]);
    if (text[i] != '\\' || i + 1 == text.size()) continue;
    const std::string_view escape = text.substr(i, 12);
    const auto is_half = [&](size_t at, std::string_view letters) {
      return escape.size() == 12 && escape[at] == '\\' && escape[at + 1] == 'u' &&
             (escape[at + 2] == 'd' || escape[at + 2] == 'D') && letters.find(escape[at + 3]) != std::string_view::npos;
    };
    if (is_half(0, "89abAB") && is_half(6, "cdefCDEF")) {
      written.pop_back();
      written += nlohmann::json::parse("\"" + std::string(escape) + "\"").get<std::string>();
      i += 11;
    } else {
      written.push_back(text[++i]);  // also of "\\\\", whose second half escapes nothing
    }
  }
  return written;
}

class DocumentStart : public YAML::EventHandler {
 public:
  void OnDocumentStart(const YAML::Mark& mark) override { mark_ = mark; }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t, const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}

  const YAML::Mark& mark() const { return mark_; }

 private:
  YAML::Mark mark_ = YAML::Mark::null_mark();
};

// Null when there is one document at most. Not by YAML::LoadAll: at a stray bracket it finds documents without end.
YAML::Mark StartOfSecondDocument(const std::string& text) {
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  DocumentStart first, second;
  if (!parser.HandleNextDocument(first) || !parser.HandleNextDocument(second)) return YAML::Mark::null_mark();
  return second.mark();
}

// Loads YAML; undefined with a violation when it isn't.
YAML::Node Load(std::string_view text, const std::string& path, Violations* violations) {
  if (const std::string why = WhyNotUtf8(text); !why.empty()) {
    violations->push_back({path, absl::StrCat("is not UTF-8 text: ", why)});
    return YAML::Node(YAML::NodeType::Undefined);
  }
  try {
    const std::string written = nlohmann::json::accept(text) ? WithoutSurrogates(text) : std::string(text);
    if (const YAML::Mark second = StartOfSecondDocument(written); !second.is_null()) {
      violations->push_back({path, absl::StrCat("one document was expected, another begins at line ", second.line + 1,
                                                ", column ", second.column + 1)});
    }
    return YAML::Load(written);
  } catch (const YAML::Exception& error) {
    violations->push_back({path, absl::StrCat("is neither YAML nor JSON: line ", error.mark.line + 1, ", column ",
                                              error.mark.column + 1, ": ", error.msg)});
    return YAML::Node(YAML::NodeType::Undefined);
  }
}

}  // namespace

void ParseSpecDocument(std::string_view document, v1::JobSpec* spec, Violations* violations) {
  constexpr char kDocument[] = "(document)";
  if (document.size() > kMaxDocument) {
    violations->push_back({kDocument, absl::StrCat(document.size(), " bytes; a spec has at most ", kMaxDocument)});
    return;
  }
  const YAML::Node node = Load(document, kDocument, violations);
  if (!node.IsDefined()) return;
  try {
    Walker(violations).Read(node, spec, "", 0);
  } catch (const YAML::Exception& error) {
    violations->push_back({kDocument, absl::StrCat("can't be read: ", error.what())});
  }
}

void ApplyOverride(std::string_view assignment, v1::JobSpec* spec, Violations* violations) {
  const size_t equals = assignment.find('=');
  const std::string path(assignment.substr(0, equals));
  if (equals == std::string_view::npos || path.empty()) {
    violations->push_back({std::string(assignment), "PATH=VALUE was expected, for example training.max_steps=10"});
    return;
  }
  const YAML::Node value = Load(assignment.substr(equals + 1), path, violations);
  if (!value.IsDefined()) return;
  Message* message = spec;
  const std::vector<std::string> names = absl::StrSplit(path, '.');
  for (size_t i = 0; i < names.size(); ++i) {
    const FieldDescriptor* field = FindField(message->GetDescriptor(), names[i]);
    if (field == nullptr) {
      violations->push_back({path, UnknownField(message->GetDescriptor(), names[i])});
      return;
    }
    const bool last = i + 1 == names.size();
    if (last) {
      message->GetReflection()->ClearField(message, field);
      try {
        Walker(violations).ReadField(value, message, field, path, 0);
      } catch (const YAML::Exception& error) {
        violations->push_back({path, error.what()});
      }
      return;
    }
    if (field->is_repeated() || field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) {
      violations->push_back(
          {path, absl::StrCat("\"", names[i], "\" has no fields to set; give it a whole value instead")});
      return;
    }
    Message* child = message->GetReflection()->MutableMessage(message, field);
    if (auto* object = dynamic_cast<google::protobuf::Struct*>(child)) {
      // A key of model.config: set through a one-key mapping, after the old value is gone.
      const std::string key = absl::StrJoin(names.begin() + static_cast<int64_t>(i) + 1, names.end(), ".");
      object->mutable_fields()->erase(key);
      YAML::Node pair;
      pair[key] = value;
      v1::ModelSpec holder;
      Walker(violations).ReadField(pair, &holder, holder.GetDescriptor()->FindFieldByName("config"), "model.config", 0);
      object->MergeFrom(holder.config());
      return;
    }
    message = child;
  }
}

}  // namespace mp
