// The port on which the ranks of a gang meet: bound and listening from the moment it is reported, so that nobody can
// take it.
#pragma once

#include <string>
#include <utility>

#include "absl/status/statusor.h"

namespace mp::agent {

// A descriptor that closes itself.
class OwnedFd {
 public:
  OwnedFd() = default;
  explicit OwnedFd(int fd) : fd_(fd) {}
  OwnedFd(OwnedFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  OwnedFd& operator=(OwnedFd&& other) noexcept;
  ~OwnedFd() { Close(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  void Close();

 private:
  int fd_ = -1;
};

struct RendezvousSocket {
  OwnedFd fd;  // close-on-exec
  int port = 0;
};

// `host`: a name or an IPv4 or IPv6 address of this host.
absl::StatusOr<RendezvousSocket> ListenForRendezvous(const std::string& host);

}  // namespace mp::agent
