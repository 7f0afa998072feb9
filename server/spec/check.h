// Collects the violations of one section of a spec.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "server/api/status_details.h"

namespace mp {

class SectionCheck {
 public:
  SectionCheck(std::string path, Violations* violations) : path_(std::move(path)), violations_(violations) {}

  std::string Path(const std::string& name) const { return path_.empty() ? name : absl::StrCat(path_, ".", name); }

  void Violate(const std::string& name, std::string what) { violations_->push_back({Path(name), std::move(what)}); }

  void Require(const std::string& name, bool is_set) {
    if (!is_set) Violate(name, "is required");
  }

  void Range(const std::string& name, int64_t value, int64_t least,
             int64_t most = std::numeric_limits<int64_t>::max()) {
    if (value >= least && value <= most) return;
    Violate(name, most == std::numeric_limits<int64_t>::max()
                      ? absl::StrCat(value, " is out of range; it must be at least ", least)
                      : absl::StrCat(value, " is out of range; it must be ", least, " to ", most));
  }

  // `legal` decides; `bound` says what would be right.
  void Number(const std::string& name, double value, bool legal, const std::string& bound) {
    if (std::isfinite(value) && legal) return;
    Violate(name, absl::StrCat(value, " is out of range; it must be ", bound));
  }

  // A path of the spec: not empty, relative or absolute, without "..": it must not leave the shared root.
  void FilePath(const std::string& name, const std::string& value) {
    if (value.empty()) return Violate(name, "is required");
    if (value.find('\0') != std::string::npos || value.find('\n') != std::string::npos) {
      return Violate(name, "must not hold control characters");
    }
    if (absl::StrCat("/", value, "/").find("/../") != std::string::npos) {
      Violate(name, absl::StrCat("\"", value, "\" must not contain \"..\"; give the path itself"));
    }
  }

 private:
  std::string path_;
  Violations* violations_;
};

}  // namespace mp
