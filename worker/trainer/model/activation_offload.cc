#include "worker/trainer/model/activation_offload.h"

namespace mp::trainer {

size_t ActivationOffload::Put(const at::Tensor& x) {
  parked_.push_back({device_->Download(x.detach()), nullptr});
  return parked_.size() - 1;
}

void ActivationOffload::StartUpload(Parked* parked) {
  if (parked->upload == nullptr && parked->host.defined()) parked->upload = device_->StartUpload(parked->host);
}

at::Tensor ActivationOffload::Take(size_t ticket) {
  TORCH_CHECK(ticket < parked_.size() && parked_[ticket].host.defined(), "activation ", ticket, " is not parked");
  StartUpload(&parked_[ticket]);
  for (int64_t ahead = 1; ahead <= horizon_ && static_cast<size_t>(ahead) <= ticket; ++ahead) {
    StartUpload(&parked_[ticket - static_cast<size_t>(ahead)]);
  }
  at::Tensor x = parked_[ticket].upload->Get();
  parked_[ticket] = {};
  while (!parked_.empty() && !parked_.back().host.defined()) parked_.pop_back();
  return x;
}

}  // namespace mp::trainer
