// What a rank computes on, behind one interface: a CPU, or a GPU whose part lives in the CUDA library that is loaded
// only where it is asked for (cuda/library.h).
//
// Errors: c10::Error. Thread-safety: one thread for all but memory().
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace mp::trainer {

class Device {
 public:
  // A copy on its way to the device.
  class Upload {
   public:
    virtual ~Upload() = default;
    // The tensor there; work that the caller enqueues from now on sees its values. Does not wait for the copy.
    virtual at::Tensor Get() = 0;
  };
  // Recorded work of static shapes, launched as one.
  class Graph {
   public:
    virtual ~Graph() = default;
    virtual void Replay() = 0;
  };
  struct Memory {
    int64_t held = 0;  // bytes of this process now
    int64_t peak = 0;
  };

  virtual ~Device() = default;
  virtual at::Device place() const = 0;
  // Host memory that is pinned is copied without waiting; whether allocating it is worth while.
  virtual bool wants_pinned_memory() const = 0;
  // Copies beside the work that is enqueued already.
  virtual std::unique_ptr<Upload> StartUpload(const at::Tensor& host) = 0;
  // A copy in pinned host memory: valid for StartUpload at once, for the host after a wait for the device.
  virtual at::Tensor Download(const at::Tensor& tensor) = 0;
  virtual Memory memory() const = 0;
  // For checks, with the environment variable MP_CHECK_DEVICE_WAITS=1: while forbidden, an operation that waits for the
  // device is an error, thrown at the latest when they are allowed again.
  virtual void ForbidWaits(bool forbidden) = 0;
  // Runs `work` in recording, which computes nothing. Throws c10::Error with the reason where something in it can't be
  // recorded.
  virtual std::unique_ptr<Graph> Capture(const std::function<void()>& work) = 0;
};

}  // namespace mp::trainer
