#!/usr/bin/env python3
"""One rank of PyTorch FSDP2 + Transformers on the runs of fsdp_cases.py; started by generate_fsdp.py with torchrun's environment.

  fsdp_peer.py WEIGHTS OUT

WEIGHTS: a folder with untied.safetensors and tied.safetensors, the models that training starts from. Rank 0 writes OUT, a JSON object:
key -> {"losses", "grad_norms", "reordered_losses"}; the last is the same run with samples handed out in another order.
"""

import json
import pathlib
import sys

import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import LlamaConfig, LlamaForCausalLM, get_cosine_schedule_with_warmup

import fsdp_cases as cases

DTYPES = {"FP32": torch.float32, "BF16": torch.bfloat16, "FP16": torch.float16}


def samples():
    tokens = torch.frombuffer(bytearray(cases.corpus()), dtype=torch.uint8).long()
    count = cases.SAMPLES * cases.SEQUENCE
    return tokens[:count].view(cases.SAMPLES, -1), tokens[1 : count + 1].view(cases.SAMPLES, -1)


def run(policy, variant, weights, order):
    param, reduce = (DTYPES[name] for name in cases.POLICIES[policy])
    accumulation, max_norm, tied = cases.VARIANTS[variant]
    scale = cases.LOSS_SCALE if param == torch.float16 else 1.0
    model = LlamaForCausalLM(LlamaConfig(**{**cases.MODEL, "tie_word_embeddings": tied}, attn_implementation="sdpa"))
    missing, unexpected = model.load_state_dict(load_file(weights / ("tied" if tied else "untied") / "model.safetensors"), strict=False)
    assert not unexpected and set(missing) <= ({"lm_head.weight"} if tied else set()), (missing, unexpected)
    mixed = MixedPrecisionPolicy(param_dtype=param, reduce_dtype=reduce)
    for layer in model.model.layers:
        fully_shard(layer, mp_policy=mixed)
    fully_shard(model, mp_policy=mixed)
    named = dict(model.named_parameters())
    optimizer = torch.optim.AdamW(
        [{"params": [p for n, p in named.items() if "norm" not in n], "weight_decay": cases.WEIGHT_DECAY},
         {"params": [p for n, p in named.items() if "norm" in n], "weight_decay": 0.0}], lr=cases.LEARNING_RATE)
    schedule = get_cosine_schedule_with_warmup(optimizer, cases.WARMUP, cases.STEPS)
    rank, world = dist.get_rank(), dist.get_world_size()
    ids, labels = (tensor[order][rank::world].chunk(accumulation) for tensor in samples())
    losses, norms = [], []
    for _ in range(cases.STEPS):
        total = torch.zeros((), dtype=torch.float64)
        for micro in range(accumulation):
            model.set_requires_gradient_sync(micro + 1 == accumulation)
            logits = model(input_ids=ids[micro]).logits
            loss = torch.nn.functional.cross_entropy(logits.float().view(-1, logits.size(-1)), labels[micro].reshape(-1))
            total += loss.detach().double() / accumulation
            (loss / accumulation * scale).backward()
        dist.all_reduce(total)
        for parameter in model.parameters():
            parameter.grad.div_(scale)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm if max_norm > 0 else float("inf"))
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(total.item() / world)
        norms.append(norm.full_tensor().item())
    return losses, norms


def main():
    weights = pathlib.Path(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    world = dist.get_world_size()
    straight = torch.arange(cases.SAMPLES)
    shuffled = torch.randperm(cases.SAMPLES, generator=torch.Generator().manual_seed(7))
    results = {}
    for key, case_world, policy, variant in cases.cases():
        if case_world != world:
            continue
        losses, norms = run(policy, variant, weights, straight)
        reordered, _ = run(policy, variant, weights, shuffled)
        results[key] = {"losses": losses, "grad_norms": norms, "reordered_losses": reordered}
        if dist.get_rank() == 0:
            print(key, losses[0], losses[-1], norms[0], flush=True)
    if dist.get_rank() == 0:
        pathlib.Path(sys.argv[2]).write_text(json.dumps(results))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
