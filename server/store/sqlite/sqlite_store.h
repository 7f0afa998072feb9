// Store on one SQLite file, WAL with synchronous=FULL: a commit survives power loss.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/store/store.h"

namespace mp {

// Opens or creates `path` and brings its schema up to date. An older program refuses a newer schema.
absl::StatusOr<std::unique_ptr<Store>> OpenSqliteStore(const std::string& path);

}  // namespace mp
