// A whole controller: stores, coordinator, gRPC server, /metrics, and the thread that keeps time.
//
//   absl::StatusOr<std::unique_ptr<Controller>> controller = Controller::Start(options);
//   ... (*controller)->Stop();
//
// Thread-safety: Start and Stop from one thread; the getters from any.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/fleet/coordinator.h"

namespace mp {

struct ControllerOptions {
  std::string data_dir;                           // created when missing; one controller at a time
  std::string listen = "127.0.0.1:7070";          // port 0: any free one
  std::string metrics_listen = "127.0.0.1:9464";  // port 0: any free one; empty: no /metrics
  CoordinatorOptions coordinator;
};

class Controller {
 public:
  // Errors name the directory, address or file and what is wrong with it.
  static absl::StatusOr<std::unique_ptr<Controller>> Start(const ControllerOptions& options);
  ~Controller();

  const std::string& address() const;          // host:port of gRPC
  const std::string& metrics_address() const;  // host:port of /metrics; empty: none

  // Health turns NOT_SERVING, open streams end, then the server. Jobs go on under their workers' leases.
  void Stop();

 private:
  struct Impl;
  explicit Controller(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace mp
