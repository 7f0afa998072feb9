// Finds operations of ATen that would make a host wait for a device, where there is none: what reads a value out of a
// tensor, or makes a shape of values. ATen's fused optimizers and scaled products are let
// through: their CPU kernels read values that their CUDA kernels leave on the device.
//
// Thread-safety: one thread at a time; sees all threads' operations.
#pragma once

namespace mp::trainer {

class WaitWatch {
 public:
  // Looks only where the environment variable MP_CHECK_DEVICE_WAITS is 1.
  WaitWatch();

  // From true to false. Throws c10::Error at false, naming the first operation that waited.
  void Forbid(bool forbidden) const;

 private:
  bool enabled_;
};

}  // namespace mp::trainer
