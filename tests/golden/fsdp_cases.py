"""The runs that the sharding engine and PyTorch FSDP2 are compared on: one list for the generator and for the test.

Every step sees the whole corpus, so the loss does not depend on which rank got which sample, only the order of sums does.
"""

SAMPLES = 24
SEQUENCE = 32
STEPS = 20
WARMUP = 5
LEARNING_RATE = 0.003
WEIGHT_DECAY = 0.1
LOSS_SCALE = 1024.0  # FP16, static
MODEL = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 112, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "vocab_size": 256, "max_position_embeddings": 64, "tie_word_embeddings": False}

# name: param dtype, reduce dtype
POLICIES = {"FP32": ("FP32", "FP32"), "BF16": ("BF16", "BF16"), "BF16_FP32": ("BF16", "FP32"), "FP16": ("FP16", "FP16")}
# name: accumulation steps, max_grad_norm (0: none), tied embeddings
VARIANTS = {"plain": (1, 0.0, False), "clip": (1, 0.5, False), "accumulate": (2, 0.5, False), "tied": (1, 0.5, True)}
WORLDS = (1, 2, 3, 4)


def cases():
    """(key, world, policy, variant) of every PyTorch run; one rank is FSDP2 over one rank."""
    for world in WORLDS:
        for policy in POLICIES:
            for variant in VARIANTS:
                if variant == "plain" or policy != "BF16_FP32":
                    yield f"{policy}/{variant}/{world}", world, policy, variant


def corpus() -> bytes:
    """SAMPLES x SEQUENCE tokens and the one that follows the last, with something to learn."""
    state = 99
    text = bytearray()
    words = b"gather the shard before the layer and scatter its gradient after it so that every rank holds a part".split()
    while len(text) <= SAMPLES * SEQUENCE:
        state = (state * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        text += words[(state >> 33) % len(words)] + b" "
    return bytes(text[: SAMPLES * SEQUENCE + 1])


def spec(name, policy, variant, world):
    """The same run as a job of ours."""
    param, reduce = POLICIES[policy]
    accumulation, max_norm, tied = VARIANTS[variant]
    precision = {"policy": param, "reduce_dtype": reduce}
    if param == "FP16":
        precision["loss_scale"] = {"mode": "STATIC", "scale": LOSS_SCALE}
    return {
        "name": name,
        "model": {"config": {**MODEL, "tie_word_embeddings": tied}},
        "precision": precision,
        "sharding": {},
        "data": {"train": [{"path": "corpus.txt"}], "sequence_length": SEQUENCE},
        "training": {"max_steps": STEPS, "per_device_train_batch_size": SAMPLES // world // accumulation,
                     "gradient_accumulation_steps": accumulation, "learning_rate": LEARNING_RATE, "lr_scheduler_type": "COSINE",
                     "warmup_steps": WARMUP, "weight_decay": WEIGHT_DECAY, "max_grad_norm": max_norm, "logging_steps": 1,
                     "output_dir": f"runs/{name}"},
    }
