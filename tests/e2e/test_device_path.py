"""What a GPU runs, on the CPU: ATen's operations in place of our loops, and no wait for the device in a step."""

import unittest

import specs
from cluster import BIN
from ranks import RankTestCase

STEPS = 8
# How far losses may lie apart: the order of sums, then roundings that fall the other way.
TOLERANCES = {"FP32": 1e-5, "BF16": 5e-3, "FP16": 1e-3, "FP8": 1e-2}
ATEN = {"MP_CPU_KERNELS": "aten"}


class DevicePathTest(RankTestCase):
    def spec(self, name, policy, steps=STEPS, **training):
        # Small: ATen's emulation of FP8 products on a CPU takes seconds for what a GPU does in microseconds.
        made = specs.training(name, policy=policy, steps=steps, data__sequence_length=32, training__per_device_train_batch_size=2,
                              training__eval_strategy="NO", **{f"training__{key}": value for key, value in training.items()})
        del made["training"]["eval_steps"]
        return made

    def test_losses_are_those_of_our_loops(self):
        differs = False
        for policy, tolerance in TOLERANCES.items():
            with self.subTest(policy=policy):
                spec = self.spec(f"loops-{policy.lower()}", policy)
                loops = self.losses(self.run_ranks(spec, 2)[0])
                aten = self.losses(self.run_ranks(dict(spec, name=f"aten-{policy.lower()}"), 2, ATEN)[0])
                self.assertEqual(len(loops), STEPS)
                self.assertEqual(loops.keys(), aten.keys())
                farthest = max(abs(aten[step] - loops[step]) / loops[step] for step in loops)
                print(f"{policy}: losses of ATen's operations within {farthest:.1e} of our loops'", flush=True)
                self.assertLessEqual(farthest, tolerance)
                differs = differs or aten != loops
        self.assertTrue(differs, "the other operations did not run")

    def test_a_step_waits_for_nothing(self):
        """MP_CHECK_DEVICE_WAITS ends a rank whose step reads a value out of a tensor."""
        checked = {**ATEN, "MP_CHECK_DEVICE_WAITS": "1"}
        for policy in TOLERANCES:
            for optim in ("ADAMW", "SGD"):
                with self.subTest(policy=policy, optim=optim):
                    spec = self.spec(f"waits-{policy.lower()}-{optim.lower()}", policy, steps=3, optim=optim, warmup_steps=2,
                                     gradient_accumulation_steps=2, activation_checkpointing={"mode": "FULL"})
                    self.run_ranks(spec, 2, checked)

    def test_the_check_sees_a_step_that_waits(self):
        # Our loops read the loss's gradient on the CPU, where that costs nothing.
        ranks = self.start(self.spec("seen", "FP32"), 1, {"MP_CHECK_DEVICE_WAITS": "1"})
        self.assertEqual(ranks[0][0].wait(timeout=60), 1)
        ranks[0][2].seek(0)
        self.assertIn("aten::_local_scalar_dense, which waits for the device", ranks[0][2].read())

    def test_resume_is_bit_identical(self):
        for policy in ("FP16", "FP8"):
            with self.subTest(policy=policy):
                spec = self.spec(f"whole-{policy.lower()}", policy, save_steps=4)
                whole = self.losses(self.run_ranks(spec, 2, ATEN)[0])
                checkpoint = sorted((self.folder / spec["training"]["output_dir"]).glob("step-00000004*"))[0]
                again = dict(spec, name=f"again-{policy.lower()}",
                             training=dict(spec["training"], resume_from_checkpoint=str(checkpoint), output_dir=f"again-{policy}"))
                resumed = self.losses(self.run_ranks(again, 2, ATEN)[0])
                self.assertEqual(resumed, {step: loss for step, loss in whole.items() if step > 4})

    def test_offloading_changes_no_bit(self):
        spec = self.spec("kept", "BF16", activation_checkpointing={"mode": "FULL"})
        kept = self.losses(self.run_ranks(spec, 2)[0])
        away = dict(spec, name="away", sharding={"cpu_offload": True},
                    training=dict(spec["training"], output_dir="away-out",
                                  activation_checkpointing={"mode": "FULL", "offload": True, "loading_horizon": 2}))
        self.assertEqual(self.losses(self.run_ranks(away, 2)[0]), kept)

    def test_a_graph_on_a_cpu_is_refused_with_the_reason(self):
        spec = self.spec("graph", "FP32", cuda_graph=True)
        ranks = self.start(spec, 1)
        self.assertEqual(ranks[0][0].wait(timeout=60), 0)
        ranks[0][2].seek(0)
        self.assertIn("training.cuda_graph: steps are launched operation by operation: a CPU has none", ranks[0][2].read())

    def test_offload_needs_checkpointing(self):
        spec = self.spec("alone", "FP32", activation_checkpointing={"offload": True})
        ranks = self.start(spec, 1)
        self.assertEqual(ranks[0][0].wait(timeout=60), 14)
        ranks[0][2].seek(0)
        self.assertIn("training.activation_checkpointing.offload", ranks[0][2].read())


class CudaLibraryTest(RankTestCase):
    def test_a_missing_library_is_named(self):
        spec = specs.training("gpu")
        spec["resources"] = dict(spec.get("resources", {}), node_class="P5")
        ranks = self.start(spec, 1, {"MP_CUDA_LIBRARY": "/nowhere/libmp_cuda.so"})
        self.assertEqual(ranks[0][0].wait(timeout=60), 14)
        message = [e for e in self.events(ranks[0]) if "failed" in e][0]["failed"]["message"]
        self.assertIn("/nowhere/libmp_cuda.so cannot be loaded", message)
        self.assertIn("deploy/dependencies --cuda", message)

    def test_the_library_has_code_for_both_classes(self):
        library = BIN / "libmp_cuda.so"
        if not library.exists():
            self.skipTest("SKIPPED: no CUDA toolkit on this machine, libmp_cuda.so was not built")
        content = library.read_bytes()
        for target in (b"sm_80", b"sm_90"):
            self.assertIn(target, content)


if __name__ == "__main__":
    unittest.main()
