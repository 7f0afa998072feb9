"""Job specs for the tests: a model small enough that a step takes milliseconds."""

import copy
import pathlib

WORDS = (
    "the gang of ranks trains one model on many hosts and each host keeps a shard of every weight while gradients travel "
    "between them in the type that the policy names and the scale of the loss follows what the numbers say"
).split()


def write_corpus(folder: pathlib.Path, samples=2000):
    """Two text files with some structure to learn, the same each time."""
    state = 12345
    for name, count in (("train.txt", samples), ("held-out.txt", samples // 20)):
        lines = []
        for _ in range(count):
            line = []
            for _ in range(12):
                state = (state * 6364136223846793005 + 1442695040888963407) % (1 << 64)
                line.append(WORDS[(state >> 33) % len(WORDS)])
            lines.append(" ".join(line))
        (folder / name).write_text("\n".join(lines) + "\n")


def training(name, policy="FP8", steps=20, **overrides):
    """A spec of a two-rank job; overrides are "section__key" = value."""
    spec = {
        "name": name,
        "model": {
            "config": {
                "model_type": "llama",
                "hidden_size": 64,
                "intermediate_size": 128,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "vocab_size": 256,
                "max_position_embeddings": 128,
            }
        },
        "precision": {"policy": policy},
        "data": {
            "train": [{"path": "train.txt"}],
            "eval": [{"path": "held-out.txt"}],
            "sequence_length": 64,
        },
        "training": {
            "max_steps": steps,
            "per_device_train_batch_size": 4,
            "learning_rate": 0.003,
            "warmup_steps": min(5, steps),
            "logging_steps": 1,
            "eval_strategy": "STEPS",
            "eval_steps": steps,
            "save_steps": 5,
            "output_dir": f"runs/{name}",
        },
        "resources": {"nodes": 2},
    }
    for key, value in overrides.items():
        section, _, field = key.partition("__")
        spec[section][field] = copy.deepcopy(value)
    return spec


def command(name, argv, nodes=1, **sections):
    """A spec of a job with a program of its own."""
    return {"name": name, "workload": {"command": argv}, "resources": {"nodes": nodes}, **sections}
