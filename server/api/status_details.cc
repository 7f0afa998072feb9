#include "server/api/status_details.h"

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace mp {
namespace {

constexpr char kDomain[] = "mp.v1";
constexpr char kErrorInfoUrl[] = "type.googleapis.com/google.rpc.ErrorInfo";
constexpr char kBadRequestUrl[] = "type.googleapis.com/google.rpc.BadRequest";

}  // namespace

absl::Status WithReason(absl::Status status, const std::string& reason,
                        const std::map<std::string, std::string>& metadata) {
  google::rpc::ErrorInfo info;
  info.set_reason(reason);
  info.set_domain(kDomain);
  for (const auto& [key, value] : metadata) (*info.mutable_metadata())[key] = value;
  status.SetPayload(kErrorInfoUrl, absl::Cord(info.SerializeAsString()));
  return status;
}

absl::Status InvalidSpec(const Violations& violations) {
  google::rpc::BadRequest details;
  for (const FieldViolation& violation : violations) {
    auto* added = details.add_field_violations();
    added->set_field(violation.field);
    added->set_description(violation.description);
  }
  absl::Status status = absl::InvalidArgumentError(
      absl::StrCat("the spec has ", violations.size(), violations.size() == 1 ? " error" : " errors"));
  status.SetPayload(kBadRequestUrl, absl::Cord(details.SerializeAsString()));
  return WithReason(std::move(status), "INVALID_SPEC");
}

Violations ViolationsOf(const absl::Status& status) {
  Violations violations;
  const auto payload = status.GetPayload(kBadRequestUrl);
  google::rpc::BadRequest details;
  if (!payload || !details.ParseFromString(std::string(*payload))) return violations;
  for (const auto& violation : details.field_violations()) {
    violations.push_back({violation.field(), violation.description()});
  }
  return violations;
}

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  google::rpc::Status wire;
  wire.set_code(static_cast<int>(status.code()));
  wire.set_message(std::string(status.message()));
  status.ForEachPayload([&](absl::string_view url, const absl::Cord& value) {
    auto* detail = wire.add_details();
    detail->set_type_url(std::string(url));
    detail->set_value(std::string(value));
  });
  return {static_cast<grpc::StatusCode>(status.code()), wire.message(), wire.SerializeAsString()};
}

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  absl::Status result(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  google::rpc::Status wire;
  if (wire.ParseFromString(status.error_details())) {
    for (const auto& detail : wire.details()) result.SetPayload(detail.type_url(), absl::Cord(detail.value()));
  }
  return result;
}

}  // namespace mp
