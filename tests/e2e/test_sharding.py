"""The sharding engine's strategies and settings, with real ranks: what must not change a result, what must change the bytes, and what a
checkpoint of one strategy is to another."""

import unittest

import specs
from ranks import RankTestCase

STRATEGIES = {
    "full": {"strategy": "FULL_SHARD"},
    "full_kept": {"strategy": "FULL_SHARD", "reshard_after_forward": False},
    "grad_op": {"strategy": "SHARD_GRAD_OP"},
    "none": {"strategy": "NO_SHARD"},
    "hybrid": {"strategy": "HYBRID_SHARD", "hybrid_shard_degree": 2},
}
STEPS = 8


def spec(name, sharding, policy="FP32", batch=12, steps=STEPS, model=None, **overrides):
    made = specs.training(name, policy=policy, steps=steps, training__per_device_train_batch_size=batch, training__eval_strategy="STEPS",
                          training__eval_steps=steps, training__save_steps=0, **overrides)
    made["sharding"] = sharding
    made["model"]["config"].update(model or {})
    return made


class ShardingTest(RankTestCase):
    def curve(self, made, world):
        """Losses by step, and evaluation loss; the same on all ranks."""
        ranks = self.run_ranks(made, world)
        curves = [self.losses(events) for events in ranks]
        for other in curves[1:]:
            self.assertEqual(curves[0], other)
        evaluation = next(e["evaluation"]["metrics"]["loss"] for e in ranks[0] if "evaluation" in e)
        return list(curves[0].values()) + [evaluation]

    def bytes_sent(self, made, world):
        metrics = next(e["finished"]["metrics"] for e in self.run_ranks(made, world)[0] if "finished" in e)
        return {k[len("wire_bytes_"):]: v for k, v in metrics.items() if k.startswith("wire_bytes_")}

    def assert_near(self, a, b, tolerance):
        self.assertEqual(len(a), len(b))
        self.assertLessEqual(max(abs(x - y) / abs(x) for x, y in zip(a, b)), tolerance)

    def test_every_strategy_trains_the_same_model(self):
        for tied in (False, True):
            model = {"tie_word_embeddings": tied, "intermediate_size": 112}
            reference = self.curve(spec(f"one-{tied}".lower(), {}, model=model), 1)
            for key, sharding in STRATEGIES.items():
                for world in (2, 3, 4):
                    if key == "hybrid" and world != 4:
                        continue
                    with self.subTest(strategy=key, world=world, tied=tied):
                        made = spec(f"{key}-{world}-{tied}".lower().replace("_", "-"), sharding, batch=12 // world, model=model)
                        self.assert_near(reference, self.curve(made, world), 1e-5)

    def test_settings_that_move_bytes_or_memory_change_no_bit(self):
        """Prefetch, limits and resharding decide when things happen, never what is computed."""
        for policy in ("FP32", "FP8"):
            reference = self.curve(spec(f"plain-{policy}".lower(), {}, policy, batch=4), 2)
            for number, sharding in enumerate((
                {"forward_prefetch": False, "backward_prefetch": "NO_PREFETCH"},
                {"backward_prefetch": "BACKWARD_POST"},
                {"limit_all_gathers": False},
                {"reshard_after_forward": False},
                {"strategy": "SHARD_GRAD_OP", "backward_prefetch": "BACKWARD_POST", "limit_all_gathers": False},
            )):
                with self.subTest(policy=policy, sharding=sharding):
                    self.assertEqual(reference, self.curve(spec(f"set-{policy}-{number}".lower(), sharding, policy, batch=4), 2))

    def test_activation_checkpointing_changes_no_bit(self):
        for policy in ("FP32", "BF16", "FP16", "FP8"):
            reference = self.curve(spec(f"keep-{policy}".lower(), {}, policy, batch=4, training__gradient_accumulation_steps=2), 2)
            for number, checkpointing in enumerate(({"mode": "FULL"}, {"mode": "FULL", "every_n_layers": 2}, {"mode": "ATTENTION"},
                                                    {"mode": "MLP"})):
                with self.subTest(policy=policy, checkpointing=checkpointing):
                    made = spec(f"again-{policy}-{number}".lower(), {}, policy, batch=4, training__gradient_accumulation_steps=2,
                                training__activation_checkpointing=checkpointing)
                    self.assertEqual(reference, self.curve(made, 2))

    def test_accumulation_without_communication(self):
        """no_sync: the result of reducing after each micro-batch, for the bytes of one reduction."""
        sync = spec("sync", {}, batch=4, training__gradient_accumulation_steps=3)
        no_sync = spec("no-sync", {"sync_each_batch": False}, batch=4, training__gradient_accumulation_steps=3)
        self.assert_near(self.curve(sync, 2), self.curve(no_sync, 2), 1e-6)
        sync["name"], no_sync["name"] = "sync-again", "no-sync-again"
        sync["training"]["output_dir"], no_sync["training"]["output_dir"] = "runs/sync-again", "runs/no-sync-again"
        a, b = self.bytes_sent(sync, 2), self.bytes_sent(no_sync, 2)
        self.assertAlmostEqual(a["reduce_scatter_Float"] / b["reduce_scatter_Float"], 3, delta=0.01)
        self.assertEqual(a["all_gather_Float"], b["all_gather_Float"])

    def test_bytes_of_each_strategy(self):
        """In whole models sent by a rank and step: nothing is wider than its dtype, and nothing is sent that the strategy does not need."""
        world, steps = 4, 4
        for key, gathers, scatters, replicas in (("full", 2, 1, 0), ("grad_op", 1, 1, 0), ("none", 0, 0, 1), ("hybrid", 2, 1, 1)):
            with self.subTest(strategy=key):
                made = spec(f"bytes-{key}".replace("_", "-"), STRATEGIES[key], "BF16", batch=2, steps=steps, precision__reduce_dtype="FP32")
                made["training"].update(eval_strategy="NO")
                del made["data"]["eval"]
                events = self.run_ranks(made, world)[0]
                parameters = next(int(e["started"]["parameters"]) for e in events if "started" in e)
                metrics = next(e["finished"]["metrics"] for e in events if "finished" in e)
                sent = lambda kind: metrics.get(f"wire_bytes_{kind}", 0) / steps / parameters
                degree = {"full": 4, "grad_op": 4, "none": 1, "hybrid": 2}[key]
                copies = world // degree
                share = (degree - 1) / degree
                replica_share = (copies - 1) / copies / degree
                # The last stage is not gathered again for backward: a little less than two.
                self.assertLessEqual(sent("all_gather_BFloat16"), 1.1 * 2 * gathers * share)
                self.assertGreaterEqual(sent("all_gather_BFloat16"), 0.7 * 2 * gathers * share)
                self.assertAlmostEqual(sent("reduce_scatter_Float"), 4 * (scatters * share + replicas * replica_share), delta=0.2)
                self.assertAlmostEqual(sent("all_gather_Float"), 4 * replicas * replica_share, delta=0.2)

    def test_a_checkpoint_of_one_strategy_resumes_in_another(self):
        whole = spec("whole", {}, batch=6, steps=6)
        reference = self.losses(self.run_ranks(whole, 2)[0])
        for first, second, world in (("hybrid", "full", 4), ("full", "hybrid", 4), ("none", "full", 2), ("grad_op", "none", 3)):
            with self.subTest(first=first, second=second):
                name = f"{first}-to-{second}".replace("_", "-")
                made = spec(name, STRATEGIES[first], batch=12 // world, steps=6)
                made["training"]["save_steps"] = 3
                made["training"]["eval_strategy"] = "NO"
                self.run_ranks(made, world)
                for rank in range(world):
                    (self.folder / f"{name}-{rank}.out").unlink()
                made["sharding"] = STRATEGIES[second]
                made["training"]["resume_from_checkpoint"] = f"runs/{name}/step-00000003-attempt-1"
                resumed = self.losses(self.run_ranks(made, world)[0])
                self.assertEqual(sorted(resumed), [4, 5, 6])
                self.assert_near([reference[s] for s in (4, 5, 6)], [resumed[s] for s in (4, 5, 6)], 1e-5)

    def test_fp16_division_keeps_the_meaning_of_a_loss_scale(self):
        """With a static scale, gradients in fp16 are those of each rank's own mean, whatever the number of ranks: the curve does not move."""
        curves = []
        for world in (1, 2, 4):
            made = spec(f"half-{world}", {}, "FP16", batch=12 // world, precision__loss_scale={"mode": "STATIC", "scale": 256})
            curves.append(self.curve(made, world))
        for other in curves[1:]:
            self.assert_near(curves[0], other, 5e-3)

    def test_optimizers_train_and_resume(self):
        for optim in ("ADAM", "SGD"):
            with self.subTest(optim=optim):
                extra = {"optim": optim, "learning_rate": 0.5 if optim == "SGD" else 0.003, "save_steps": 4}
                if optim == "SGD":
                    extra["momentum"] = 0.9
                made = spec(f"optim-{optim}".lower(), {}, batch=4, steps=8)
                made["training"].update(extra)
                whole = self.losses(self.run_ranks(made, 2)[0])
                self.assertLess(whole[8], whole[1])
                for rank in range(2):
                    (self.folder / f"{made['name']}-{rank}.out").unlink()
                made["training"]["resume_from_checkpoint"] = f"runs/{made['name']}/step-00000004-attempt-1"
                self.assertEqual({s: whole[s] for s in (5, 6, 7, 8)}, self.losses(self.run_ranks(made, 2)[0]))

    def test_a_pinned_loss_scale_ends_the_job(self):
        made = spec("pinned", {}, "FP16", batch=2, steps=50,
                    precision__loss_scale={"mode": "DYNAMIC", "init_scale": 2.0**60, "min_scale": 2.0**58, "max_consecutive_skips": 5})
        ranks = self.start(made, 2)
        for process, _, _ in ranks:
            self.assertEqual(process.wait(timeout=60), 11)
        failed = self.events(ranks[0])[-1]["failed"]
        self.assertEqual(failed["cause"], "END_CAUSE_NON_FINITE")
        self.assertEqual(int(failed["step"]), 5)
        self.assertIn("5 steps in a row", failed["message"])
        scales = [e["frame"]["scalars"]["loss_scale"] for e in self.events(ranks[0]) if "frame" in e]
        self.assertEqual(scales[:4], [2.0**60, 2.0**59, 2.0**58, 2.0**58])


if __name__ == "__main__":
    unittest.main()
