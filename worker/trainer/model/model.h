// What a model family offers to the sharding engine and to the loop.
//
// A model is a list of stages run one after another: embedding, one for each layer, final norm with head and loss. The
// parameters of a stage form one group that the engine gathers before the stage runs and frees after it. The model
// declares its parameters and never owns their storage.
//
//   auto model = MakeModel(config, precision, checkpointing, tokens, fp8_context);
//   for (size_t i = 0; i < model->stages().size(); ++i)
//     x = model->stages()[i]->Forward(x, parameters_of_group_i, batch);
//
// Thread-safety: one thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace mp::trainer {

struct ParameterSpec {
  enum class Init { kNormal, kOnes, kZeros };
  std::string name;  // as in Hugging Face checkpoints: "model.layers.0.self_attn.q_proj.weight"
  std::vector<int64_t> shape;
  Init init = Init::kNormal;
  double init_std = 0.02;    // kNormal
  bool weight_decay = true;  // false for biases and norm weights

  int64_t numel() const;
};

// One micro-batch of a static shape.
struct Batch {
  at::Tensor input_ids;  // int64 [batch, sequence]
  // int64 [batch, sequence]: the token that follows each position; -100 is ignored in the loss. Already shifted: the
  // last position of a sample is -100 where the sample has no next token.
  at::Tensor labels;
};

// Tensors in the order of Stage::parameters(), then of Stage::tied_parameters(), in param_dtype, leaves of autograd
// when training. A stage must not keep references to their storage beyond autograd's saved tensors: the engine frees it
// between uses.
using ParameterList = std::vector<at::Tensor>;

class Stage {
 public:
  virtual ~Stage() = default;
  virtual const std::string& name() const = 0;
  virtual const std::vector<ParameterSpec>& parameters() const = 0;
  // Names of parameters of earlier stages that this one uses as well.
  virtual std::vector<std::string> tied_parameters() const { return {}; }
  // x: undefined for the first stage; param_dtype [batch, sequence, hidden] between stages. The last stage returns the
  // sum of token losses over valid labels, fp32 [] (not the mean: the loop divides by the global count of valid
  // labels).
  virtual at::Tensor Forward(const at::Tensor& x, const ParameterList& parameters, const Batch& batch) = 0;
};

// How one linear layer computes, for the PrecisionPlan event.
struct LinearPlan {
  std::string name;     // parameter name without ".weight"
  std::string compute;  // "FP8", "BF16", "FP16", "FP32"
  std::string reason;   // why not FP8 although the policy asks for it; else empty
};

class Model {
 public:
  virtual ~Model() = default;
  virtual const std::vector<std::unique_ptr<Stage>>& stages() const = 0;
  virtual std::vector<LinearPlan> linear_plan() const = 0;
  virtual int64_t vocab_size() const = 0;
  virtual int64_t max_position_embeddings() const = 0;
  // Tables that are no parameters (RoPE): fp32 always, made on the CPU.
  virtual void MoveBuffersTo(at::Device /*device*/) {}
  // The last stage up to logits: fp32 [batch, sequence, vocab]. For tests and generation.
  virtual at::Tensor Logits(const at::Tensor& x, const ParameterList& parameters) = 0;
};

}  // namespace mp::trainer
