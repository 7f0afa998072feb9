#include "worker/trainer/device/cuda/cuda_device.h"

#include <ATen/Context.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/CUDAGraph.h>
#include <ATen/ops/empty_like.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>

#include "worker/trainer/config/error.h"

namespace mp::trainer {
namespace {

class CudaUpload : public Device::Upload {
 public:
  CudaUpload(at::Tensor tensor, at::cuda::CUDAEvent done) : tensor_(std::move(tensor)), done_(std::move(done)) {}

  at::Tensor Get() override {
    const c10::cuda::CUDAStream compute = c10::cuda::getCurrentCUDAStream();
    done_.block(compute);
    // It was allocated on the copies' stream: not to be reused before the work on this one is done.
    tensor_.record_stream(compute.unwrap());
    return tensor_;
  }

 private:
  at::Tensor tensor_;
  at::cuda::CUDAEvent done_;
};

class CudaGraph : public Device::Graph {
 public:
  at::cuda::CUDAGraph graph;
  void Replay() override { graph.replay(); }
};

void SetNumerics() {
  at::Context& context = at::globalContext();
  context.setAllowTF32CuBLAS(false);
  context.setAllowTF32CuDNN(false);
  context.setAllowFP16ReductionCuBLAS(false);
  context.setAllowBF16ReductionCuBLAS(false);
  // A resumed run repeats to the bit. cuBLAS asks for a workspace of its own kind (CUBLAS_WORKSPACE_CONFIG, set before
  // it starts).
  context.setDeterministicAlgorithms(true, /*warn_only=*/true);
  context.setDeterministicFillUninitializedMemory(false);
}

class CudaDevice : public Device {
 public:
  explicit CudaDevice(c10::DeviceIndex index)
      : index_(index),
        compute_(c10::cuda::getStreamFromPool(/*isHighPriority=*/false, index)),
        copies_(c10::cuda::getStreamFromPool(/*isHighPriority=*/false, index)) {
    c10::cuda::setCurrentCUDAStream(compute_);
    const char* check = std::getenv("MP_CHECK_DEVICE_WAITS");  // NOLINT(concurrency-mt-unsafe): nothing writes it
    checks_waits_ = check != nullptr && std::string_view(check) == "1";
  }

  at::Device place() const override { return {at::kCUDA, index_}; }
  bool wants_pinned_memory() const override { return true; }

  std::unique_ptr<Upload> StartUpload(const at::Tensor& host) override {
    const c10::cuda::CUDAStreamGuard guard(copies_);
    at::Tensor tensor = host.to(place(), /*non_blocking=*/true, /*copy=*/true);
    at::cuda::CUDAEvent done;
    done.record(copies_);
    return std::make_unique<CudaUpload>(std::move(tensor), std::move(done));
  }

  at::Tensor Download(const at::Tensor& tensor) override {
    at::cuda::CUDAEvent ready;
    ready.record(c10::cuda::getCurrentCUDAStream());
    ready.block(copies_);
    const c10::cuda::CUDAStreamGuard guard(copies_);
    at::Tensor host = at::empty_like(tensor, tensor.options().device(at::kCPU).pinned_memory(true));
    host.copy_(tensor, /*non_blocking=*/true);
    tensor.record_stream(copies_.unwrap());
    return host;
  }

  Memory memory() const override {
    using c10::CachingAllocator::StatType;
    const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(index_);
    const auto& allocated = stats.allocated_bytes[static_cast<size_t>(StatType::AGGREGATE)];
    return {allocated.current, allocated.peak};
  }

  void ForbidWaits(bool forbidden) override {
    if (!checks_waits_) return;
    c10::cuda::warning_state().set_sync_debug_mode(forbidden ? c10::cuda::SyncDebugMode::L_ERROR
                                                             : c10::cuda::SyncDebugMode::L_DISABLED);
  }

  std::unique_ptr<Graph> Capture(const std::function<void()>& work) override {
    auto graph = std::make_unique<CudaGraph>();
    c10::cuda::device_synchronize();
    // Other threads (the loader's, NCCL's watchdog) go on with calls that a recording of the whole process would
    // forbid.
    graph->graph.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
    try {
      work();
      graph->graph.capture_end();
    } catch (...) {
      try {
        graph->graph.capture_end();
      } catch (const c10::Error&) {  // NOLINT(bugprone-empty-catch): the recording is void; the first error counts
      }
      static_cast<void>(cudaGetLastError());
      throw;
    }
    return graph;
  }

 private:
  const c10::DeviceIndex index_;
  c10::cuda::CUDAStream compute_;
  c10::cuda::CUDAStream copies_;
  bool checks_waits_;
};

}  // namespace

std::unique_ptr<Device> MakeCudaDevice(int index) {
  const c10::DeviceIndex count = c10::cuda::device_count();
  if (count == 0) {
    throw TrainerError(EndCause::kBadConfig,
                       "resources.node_class: this process sees no CUDA device (CUDA_VISIBLE_DEVICES, the driver)");
  }
  if (count == 1) index = 0;
  if (index >= count) {
    throw TrainerError(EndCause::kBadConfig, "LOCAL_RANK=" + std::to_string(index) + ": this process sees " +
                                                 std::to_string(count) + " CUDA devices");
  }
  // Before cuBLAS starts; see SetNumerics. Nothing else reads the environment yet.
  setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);  // NOLINT(concurrency-mt-unsafe)
  at::globalContext().lazyInitDevice(at::kCUDA);
  c10::cuda::set_device(static_cast<c10::DeviceIndex>(index));
  SetNumerics();
  return std::make_unique<CudaDevice>(static_cast<c10::DeviceIndex>(index));
}

}  // namespace mp::trainer
