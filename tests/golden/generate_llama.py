#!/usr/bin/env python3
"""Writes tests/golden/llama/*.safetensors: tiny random Llama models with what Hugging Face Transformers computes for them.

  pip install torch==2.11.0 transformers safetensors
  tests/golden/generate_llama.py

Each file holds, in fp32: "param/NAME", "input_ids" and "labels" (int64; labels shifted already), "logits", "loss_sum" (sum of token
losses), and "grad/NAME" of loss_sum. Its metadata holds the config as JSON.
"""

import json
import pathlib

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

BASE = {"model_type": "llama", "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "max_position_embeddings": 32, "rms_norm_eps": 1e-5, "initializer_range": 0.2}
CONFIGS = {
    "mha": {},
    "gqa": {"num_key_value_heads": 2, "rope_theta": 500.0},
    "bias_headdim": {"num_key_value_heads": 1, "head_dim": 12, "attention_bias": True, "mlp_bias": True},
}


def main():
    folder = pathlib.Path(__file__).parent / "llama"
    for seed, (name, extra) in enumerate(CONFIGS.items()):
        torch.manual_seed(seed)
        config = {**BASE, **extra}
        model = LlamaForCausalLM(LlamaConfig(**config, attn_implementation="eager")).float()
        for parameter_name, parameter in model.named_parameters():
            # Norm weights of 1 and biases of 0 would hide mistakes.
            if parameter.dim() == 1:
                torch.nn.init.normal_(parameter, 1.0 if "norm" in parameter_name else 0.0, 0.3)
        ids = torch.randint(0, config["vocab_size"], (2, 16))
        labels = torch.full_like(ids, -100)
        labels[:, :-1] = ids[:, 1:]
        labels[0, 3] = -100
        logits = model(input_ids=ids).logits
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, config["vocab_size"]), labels.reshape(-1), ignore_index=-100, reduction="sum")
        loss.backward()
        tensors = {"input_ids": ids, "labels": labels, "logits": logits.detach().contiguous(), "loss_sum": loss.detach().reshape(1)}
        for parameter_name, parameter in model.named_parameters():
            tensors[f"param/{parameter_name}"] = parameter.detach().contiguous()
            tensors[f"grad/{parameter_name}"] = parameter.grad.contiguous()
        save_file(tensors, folder / f"{name}.safetensors", metadata={"config": json.dumps(config)})
        print(name, float(loss))


if __name__ == "__main__":
    main()
