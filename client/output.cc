#include "client/output.h"

#include <google/protobuf/util/json_util.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"

namespace mp::client {
namespace {

// nlohmann keeps the order of keys here, so that YAML shows fields in the order of the .proto file.
void EmitYaml(const nlohmann::ordered_json& value, YAML::Emitter* out) {
  if (value.is_object()) {
    *out << YAML::BeginMap;
    for (const auto& [key, member] : value.items()) {
      *out << YAML::Key << key << YAML::Value;
      EmitYaml(member, out);
    }
    *out << YAML::EndMap;
  } else if (value.is_array()) {
    *out << YAML::BeginSeq;
    for (const auto& element : value) EmitYaml(element, out);
    *out << YAML::EndSeq;
  } else if (value.is_string()) {
    const std::string& text = value.get_ref<const std::string&>();
    // An int64 is a string in proto3 JSON and a number here.
    const bool digits = !text.empty() && text.size() < 20 &&
                        std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isdigit(c); });
    // What a reader of YAML could take for null, a truth value, a number or a date is quoted.
    bool is_bool = false;
    const bool like_number = !text.empty() && (std::isdigit(static_cast<unsigned char>(text[0])) ||
                                               std::string_view("+-.").find(text[0]) != std::string_view::npos);
    if (!digits && (like_number || YAML::IsNullString(text) || YAML::convert<bool>::decode(YAML::Node(text), is_bool)))
      *out << YAML::DoubleQuoted;
    *out << text;
  } else {
    *out << value.dump();
  }
}

}  // namespace

absl::StatusOr<Format> ParseFormat(const std::string& text) {
  if (text == "table") return Format::kTable;
  if (text == "wide") return Format::kWide;
  if (text == "json") return Format::kJson;
  if (text == "yaml") return Format::kYaml;
  if (text == "name") return Format::kName;
  return absl::InvalidArgumentError(absl::StrCat("-o ", text, ": table, wide, json, yaml or name was expected"));
}

std::string Table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      text += row[i];
      if (i + 1 < row.size()) text.append(widths[i] - row[i].size() + 2, ' ');
    }
    text += "\n";
  }
  return text;
}

std::string Cell(const std::string& text) {
  if (text.empty()) return "<none>";
  std::string cell = Printable(text);
  std::replace_if(
      cell.begin(), cell.end(), [](char c) { return c == ' ' || c == '\n' || c == '\t'; }, '-');
  return cell;
}

std::string ToJson(const google::protobuf::Message& message, bool indented) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.add_whitespace = indented;
  std::string json;
  const auto status = google::protobuf::util::MessageToJsonString(message, &json, options);
  return status.ok() ? json : "{}";
}

std::string ToYaml(const google::protobuf::Message& message) {
  const auto json = nlohmann::ordered_json::parse(ToJson(message, false), nullptr, false);
  YAML::Emitter out;
  EmitYaml(json, &out);
  return absl::StrCat(out.c_str(), "\n");
}

std::string ShortDuration(absl::Duration duration) {
  const int64_t seconds = std::max<int64_t>(0, absl::ToInt64Seconds(duration));
  if (seconds < 120) return absl::StrCat(seconds, "s");
  if (seconds < 3600)
    return seconds % 60 == 0 ? absl::StrCat(seconds / 60, "m") : absl::StrCat(seconds / 60, "m", seconds % 60, "s");
  if (seconds < 86400) return absl::StrCat(seconds / 3600, "h", seconds / 60 % 60, "m");
  return absl::StrCat(seconds / 86400, "d", seconds / 3600 % 24, "h");
}

absl::Time ToTime(const google::protobuf::Timestamp& stamp) {
  return absl::FromUnixSeconds(stamp.seconds()) + absl::Nanoseconds(stamp.nanos());
}

std::string Printable(const std::string& text) {
  std::string safe = text;
  std::replace_if(
      safe.begin(), safe.end(), [](unsigned char c) { return (c < 0x20 && c != '\n' && c != '\t') || c == 0x7F; }, '?');
  return safe;
}

std::string Number(double value) {
  char buffer[32];
  std::snprintf(buffer, sizeof(buffer), "%.6g", value);
  return buffer;
}

}  // namespace mp::client
