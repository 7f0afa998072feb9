#include "worker/agent/rendezvous.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace mp::agent {

OwnedFd& OwnedFd::operator=(OwnedFd&& other) noexcept {
  if (this != &other) {
    Close();
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

void OwnedFd::Close() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

absl::StatusOr<RendezvousSocket> ListenForRendezvous(const std::string& host) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  if (const int status = getaddrinfo(host.c_str(), "0", &hints, &found); status != 0) {
    return absl::InvalidArgumentError(absl::StrCat("--address ", host, ": ", gai_strerror(status)));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, &freeaddrinfo);
  int error = EADDRNOTAVAIL;
  for (const addrinfo* candidate = found; candidate != nullptr; candidate = candidate->ai_next) {
    RendezvousSocket result{OwnedFd(socket(candidate->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0)), 0};
    sockaddr_storage bound = {};
    socklen_t size = sizeof(bound);
    constexpr int kBacklog = 4096;  // ranks may connect before rank 0 accepts
    if (result.fd.valid() && bind(result.fd.get(), candidate->ai_addr, candidate->ai_addrlen) == 0 &&
        listen(result.fd.get(), kBacklog) == 0 &&
        getsockname(result.fd.get(), reinterpret_cast<sockaddr*>(&bound), &size) == 0) {
      const uint16_t port = bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port
                                                        : reinterpret_cast<sockaddr_in*>(&bound)->sin_port;
      result.port = ntohs(port);
      return result;
    }
    error = errno;
  }
  return absl::ErrnoToStatus(error, absl::StrCat("--address ", host, ": no port can be bound"));
}

}  // namespace mp::agent
