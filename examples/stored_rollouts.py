"""Stored rollouts: one run samples; two ablations train on the same completions."""

import paint

SETTINGS = {"steps": 4}

first = paint.train("demo-paint", output_dir="runs/sampled", train=SETTINGS)

# Nothing is generated again: the runs differ in the mask ratio alone.
for name, ratio in (("whole", 0.0), ("half", 0.5)):
    run = paint.train(
        "demo-paint",
        output_dir=f"runs/{name}",
        rollout={"engine": "stored", "stored": str(first.path)},
        context={"mask_ratio_correct": ratio, "mask_ratio_wrong": ratio},
        train=SETTINGS,
    )
    assert list(run.rollouts()["text"]) == list(first.rollouts()["text"])
    print(name, run.metrics[["loss", "kl", "off_policy_kl"]], sep="\n")
