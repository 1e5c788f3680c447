"""Own grader: GRPO on a reward that counts short answers more."""

import paint


def grade(completion: str, row: dict[str, str]) -> paint.Grade:
    """Half a point for the right number, and half for saying it in 200 characters."""
    is_right = f"\\boxed{{{row['answer']}}}" in completion
    is_short = len(completion) <= 200
    return paint.Grade(is_right * (0.5 + 0.5 * is_short), "short" if is_short else "long")


run = paint.train(
    "demo-grpo",
    output_dir="runs/own-grader",
    train={"steps": 2, "batch_size": 16},
    grading={"grader": grade},
)
rollouts = run.rollouts()
print(rollouts[["problem_id", "reward", "reason"]].head())
print(rollouts.groupby("reason")["reward"].mean())
