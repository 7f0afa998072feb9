#!/usr/bin/env python3
"""One rank of the peer: PyTorch FSDP2 + Transformers' Llama at its best on a CPU (SDPA, fused AdamW, one thread a rank).

Started by bench.py with torchrun's environment; prints one JSON line on rank 0.
"""

import argparse
import json
import os
import resource
import time

import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import LlamaConfig, LlamaForCausalLM


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True, help="JSON of LlamaConfig's arguments")
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--reshard", choices=("true", "false"), default="true")
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--sequence", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--warmup", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**json.loads(args.model), attn_implementation="sdpa"))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16) if args.dtype == "bf16" else MixedPrecisionPolicy()
    reshard = args.reshard == "true"
    for layer in model.model.layers:
        fully_shard(layer, mp_policy=policy, reshard_after_forward=reshard)
    fully_shard(model, mp_policy=policy, reshard_after_forward=reshard)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    vocab = model.config.vocab_size
    rank = dist.get_rank()
    generator = torch.Generator().manual_seed(rank)
    times = []
    for _ in range(args.warmup + args.steps):
        ids = torch.randint(0, vocab, (args.batch, args.sequence), generator=generator)
        dist.barrier()
        began = time.perf_counter()
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.perf_counter() - began)
    if rank == 0:
        seconds = sorted(times[args.warmup:])[len(times[args.warmup:]) // 2]
        tokens = args.batch * args.sequence * dist.get_world_size()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(json.dumps({"tokens_per_second": tokens / seconds, "peak_bytes": peak, "loss": float(loss)}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
