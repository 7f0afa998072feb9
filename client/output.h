// How mpctl prints: tables, JSON, YAML, names; what is safe on a terminal.
#pragma once

#include <google/protobuf/message.h>
#include <google/protobuf/timestamp.pb.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace mp::client {

enum class Format { kTable, kWide, kJson, kYaml, kName };

// "table", "wide", "json", "yaml" or "name".
absl::StatusOr<Format> ParseFormat(const std::string& text);

// Columns padded to their longest cell, two spaces apart; no trailing spaces; a line feed after each row.
std::string Table(const std::vector<std::vector<std::string>>& rows);
// What stands in a cell: no spaces, "<none>" for nothing.
std::string Cell(const std::string& text);

// proto3 JSON with the names of the .proto file. One line, or indented.
std::string ToJson(const google::protobuf::Message& message, bool indented);
std::string ToYaml(const google::protobuf::Message& message);

// "42s", "5m10s", "3h20m", "4d3h".
std::string ShortDuration(absl::Duration duration);
absl::Time ToTime(const google::protobuf::Timestamp& stamp);
// Control characters of a server's text, which could command a terminal, become "?"; line feeds and tabs stay.
std::string Printable(const std::string& text);
// "1.2e-07", "3.1416": six significant digits.
std::string Number(double value);

}  // namespace mp::client
