#include "worker/trainer/device/cpu/wait_watch.h"

#include <ATen/record_function.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

namespace mp::trainer {
namespace {

constexpr std::array<std::string_view, 5> kWaits = {"aten::_local_scalar_dense", "aten::nonzero", "aten::equal",
                                                    "aten::masked_select", "aten::_unique2"};

std::atomic<bool> forbidden_now{false};
std::atomic<const char*> first_wait{nullptr};
thread_local int depth = 0;

// Kernels that read their scalars on the device where there is one.
bool ReadsOnDevice(const at::RecordFunction& function) {
  const std::string_view name = function.name();
  return name.starts_with("aten::_fused_") || name == "aten::_scaled_mm";
}

std::unique_ptr<at::ObserverContext> OnStart(const at::RecordFunction& function) {
  if (ReadsOnDevice(function)) ++depth;
  if (!forbidden_now.load(std::memory_order_relaxed) || depth > 0) return nullptr;
  const auto* wait = std::find(kWaits.begin(), kWaits.end(), std::string_view(function.name()));
  const char* expected = nullptr;
  if (wait != kWaits.end()) first_wait.compare_exchange_strong(expected, wait->data());
  return nullptr;
}

void OnEnd(const at::RecordFunction& function, at::ObserverContext* /*context*/) {
  if (ReadsOnDevice(function)) --depth;
}

}  // namespace

WaitWatch::WaitWatch() {
  const char* asked = std::getenv("MP_CHECK_DEVICE_WAITS");  // NOLINT(concurrency-mt-unsafe): nothing writes it
  enabled_ = asked != nullptr && std::string_view(asked) == "1";
  if (!enabled_) return;
  static std::once_flag once;
  std::call_once(once, [] {
    at::addGlobalCallback(at::RecordFunctionCallback(OnStart, OnEnd).scopes({at::RecordScope::FUNCTION}));
  });
}

void WaitWatch::Forbid(bool forbidden) const {
  if (!enabled_) return;
  forbidden_now.store(forbidden);
  if (forbidden) {
    first_wait.store(nullptr);
  } else if (const char* wait = first_wait.load(); wait != nullptr) {
    TORCH_CHECK(false, "MP_CHECK_DEVICE_WAITS: a training step called ", wait, ", which waits for the device");
  }
}

}  // namespace mp::trainer
