#include "worker/trainer/model/llama.h"

#include <ATen/ops/add.h>

#include <optional>
#include <utility>

#include "worker/trainer/model/activation_checkpointing.h"
#include "worker/trainer/model/linear_layer.h"
#include "worker/trainer/model/ops/attention.h"
#include "worker/trainer/model/ops/cross_entropy.h"
#include "worker/trainer/model/ops/embedding.h"
#include "worker/trainer/model/ops/rms_norm.h"
#include "worker/trainer/model/ops/swiglu.h"
#include "worker/trainer/precision/convert.h"
#include "worker/trainer/precision/gemm.h"

namespace mp::trainer {
namespace {

constexpr char kEmbeddingWeight[] = "model.embed_tokens.weight";

struct Build {
  const LlamaConfig& config;
  const PrecisionConfig& precision;
  const ActivationCheckpointingConfig& checkpointing;
  int64_t tokens;
  fp8::Context* fp8;
  std::vector<LinearPlan>* plan;
  ActivationOffload* offload;

  LinearLayer Layer(const std::string& name, int64_t in, int64_t out, bool bias,
                    std::vector<ParameterSpec>* parameters) const {
    return LinearLayer(name, in, out, bias, config.initializer_range, precision, tokens, fp8, "", parameters, plan);
  }
};

ParameterSpec NormWeight(const std::string& name, int64_t hidden) {
  return {name, {hidden}, ParameterSpec::Init::kOnes, 0, false};
}

class LlamaStage : public Stage {
 public:
  explicit LlamaStage(std::string name) : name_(std::move(name)) {}
  const std::string& name() const override { return name_; }
  const std::vector<ParameterSpec>& parameters() const override { return specs_; }

 protected:
  std::string name_;
  std::vector<ParameterSpec> specs_;
};

class EmbeddingStage : public LlamaStage {
 public:
  explicit EmbeddingStage(const LlamaConfig& config) : LlamaStage("model.embed_tokens") {
    specs_.push_back({kEmbeddingWeight,
                      {config.vocab_size, config.hidden_size},
                      ParameterSpec::Init::kNormal,
                      config.initializer_range,
                      true});
  }
  at::Tensor Forward(const at::Tensor& /*x*/, const ParameterList& parameters, const Batch& batch) override {
    return Embedding(batch.input_ids, parameters[0]);
  }
};

class LayerStage : public LlamaStage {
 public:
  LayerStage(const Build& build, int64_t index, std::shared_ptr<const RopeTables> rope)
      : LlamaStage("model.layers." + std::to_string(index)),
        eps_(build.config.rms_norm_eps),
        shape_{build.config.num_attention_heads, build.config.num_key_value_heads, build.config.head_dim},
        rope_(std::move(rope)),
        checkpointed_(PartsOf(build.checkpointing, index)),
        fp8_(build.fp8),
        offload_(build.offload),
        input_norm_(AddNorm(".input_layernorm.weight", build.config.hidden_size)),
        q_(Attention(build, "q_proj", build.config.hidden_size, shape_.heads * shape_.head_dim)),
        k_(Attention(build, "k_proj", build.config.hidden_size, shape_.kv_heads * shape_.head_dim)),
        v_(Attention(build, "v_proj", build.config.hidden_size, shape_.kv_heads * shape_.head_dim)),
        o_(Attention(build, "o_proj", shape_.heads * shape_.head_dim, build.config.hidden_size)),
        post_norm_(AddNorm(".post_attention_layernorm.weight", build.config.hidden_size)),
        gate_(Mlp(build, "gate_proj", build.config.hidden_size, build.config.intermediate_size)),
        up_(Mlp(build, "up_proj", build.config.hidden_size, build.config.intermediate_size)),
        down_(Mlp(build, "down_proj", build.config.intermediate_size, build.config.hidden_size)) {}

  at::Tensor Forward(const at::Tensor& x, const ParameterList& parameters, const Batch& /*batch*/) override {
    return Run(checkpointed_.layer, &LayerStage::Layer, x, parameters);
  }

 private:
  using Part = at::Tensor (LayerStage::*)(const at::Tensor&, const ParameterList&) const;

  at::Tensor Run(bool checkpointed, Part part, const at::Tensor& x, const ParameterList& parameters) const {
    if (!checkpointed) return (this->*part)(x, parameters);
    return Checkpointed([this, part, parameters](const at::Tensor& in) { return (this->*part)(in, parameters); }, x,
                        fp8_, offload_);
  }

  at::Tensor Layer(const at::Tensor& x, const ParameterList& parameters) const {
    const at::Tensor middle = at::add(x, Run(checkpointed_.attention, &LayerStage::AttentionPart, x, parameters));
    return at::add(middle, Run(checkpointed_.mlp, &LayerStage::MlpPart, middle, parameters));
  }

  at::Tensor AttentionPart(const at::Tensor& x, const ParameterList& parameters) const {
    const at::Tensor normed = RmsNorm(x, parameters[input_norm_], eps_);
    const at::Tensor attended = RotaryAttention(q_.Forward(normed, parameters), k_.Forward(normed, parameters),
                                                v_.Forward(normed, parameters), *rope_, shape_);
    return o_.Forward(attended, parameters);
  }

  at::Tensor MlpPart(const at::Tensor& x, const ParameterList& parameters) const {
    const at::Tensor normed = RmsNorm(x, parameters[post_norm_], eps_);
    return down_.Forward(SwiGlu(gate_.Forward(normed, parameters), up_.Forward(normed, parameters)), parameters);
  }

  size_t AddNorm(const std::string& suffix, int64_t hidden) {
    specs_.push_back(NormWeight(name_ + suffix, hidden));
    return specs_.size() - 1;
  }
  LinearLayer Attention(const Build& build, const std::string& name, int64_t in, int64_t out) {
    return build.Layer(name_ + ".self_attn." + name, in, out, build.config.attention_bias, &specs_);
  }
  LinearLayer Mlp(const Build& build, const std::string& name, int64_t in, int64_t out) {
    return build.Layer(name_ + ".mlp." + name, in, out, build.config.mlp_bias, &specs_);
  }

  double eps_;
  AttentionShape shape_;
  std::shared_ptr<const RopeTables> rope_;
  CheckpointedParts checkpointed_;
  fp8::Context* fp8_;
  ActivationOffload* offload_;
  // In the order of the parameters.
  size_t input_norm_;
  LinearLayer q_;
  LinearLayer k_;
  LinearLayer v_;
  LinearLayer o_;
  size_t post_norm_;
  LinearLayer gate_;
  LinearLayer up_;
  LinearLayer down_;
};

class HeadStage : public LlamaStage {
 public:
  explicit HeadStage(const Build& build)
      : LlamaStage("lm_head"),
        eps_(build.config.rms_norm_eps),
        hidden_(build.config.hidden_size),
        tied_(build.config.tie_word_embeddings) {
    specs_.push_back(NormWeight("model.norm.weight", hidden_));
    // A tied head's weight is the embedding's, which stands last in the list.
    std::vector<ParameterSpec> weight = specs_;
    head_.emplace("lm_head", hidden_, build.config.vocab_size, false, build.config.initializer_range, build.precision,
                  build.tokens, build.fp8, "the head stays in the half type", &weight, build.plan);
    if (!tied_) specs_ = std::move(weight);
  }

  std::vector<std::string> tied_parameters() const override {
    return tied_ ? std::vector<std::string>{kEmbeddingWeight} : std::vector<std::string>{};
  }

  at::Tensor Forward(const at::Tensor& x, const ParameterList& parameters, const Batch& batch) override {
    const at::Tensor normed = RmsNorm(x, parameters[0], eps_);
    return HeadCrossEntropy(normed.view({-1, hidden_}), head_->weight(parameters), batch.labels.reshape({-1}));
  }

  at::Tensor Logits(const at::Tensor& x, const ParameterList& parameters) const {
    const at::Tensor logits = head_->Forward(RmsNorm(x, parameters[0], eps_), parameters);
    return logits.to(at::kFloat);
  }

 private:
  double eps_;
  int64_t hidden_;
  bool tied_;
  std::optional<LinearLayer> head_;
};

class Llama : public Model {
 public:
  Llama(const LlamaConfig& config, const PrecisionConfig& precision, const ActivationCheckpointingConfig& checkpointing,
        int64_t tokens, fp8::Context* fp8, ActivationOffload* offload)
      : config_(config) {
    const Build build{config_, precision, checkpointing, tokens, fp8, &plan_, offload};
    rope_ = std::make_shared<RopeTables>(
        MakeRopeTables(config.max_position_embeddings, config.head_dim, config.rope_theta));
    stages_.push_back(std::make_unique<EmbeddingStage>(config));
    for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
      stages_.push_back(std::make_unique<LayerStage>(build, i, rope_));
    }
    auto head = std::make_unique<HeadStage>(build);
    head_ = head.get();
    stages_.push_back(std::move(head));
  }

  const std::vector<std::unique_ptr<Stage>>& stages() const override { return stages_; }
  std::vector<LinearPlan> linear_plan() const override { return plan_; }
  int64_t vocab_size() const override { return config_.vocab_size; }
  int64_t max_position_embeddings() const override { return config_.max_position_embeddings; }
  void MoveBuffersTo(at::Device device) override {
    rope_->cos = rope_->cos.to(device);
    rope_->sin = rope_->sin.to(device);
  }
  at::Tensor Logits(const at::Tensor& x, const ParameterList& parameters) override {
    return head_->Logits(x, parameters);
  }

 private:
  LlamaConfig config_;
  std::shared_ptr<RopeTables> rope_;  // of all layers
  std::vector<LinearPlan> plan_;
  std::vector<std::unique_ptr<Stage>> stages_;
  const HeadStage* head_ = nullptr;  // the last of stages_
};

}  // namespace

std::unique_ptr<Model> MakeLlama(const LlamaConfig& config, const PrecisionConfig& precision,
                                 const ActivationCheckpointingConfig& checkpointing, int64_t tokens_per_micro_batch,
                                 fp8::Context* fp8, ActivationOffload* offload) {
  return std::make_unique<Llama>(config, precision, checkpointing, tokens_per_micro_batch, fp8, offload);
}

}  // namespace mp::trainer
