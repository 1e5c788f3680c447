"""What the real model is before anybody trains it: its tokenizer, and what its teacher knows.

    python benchmarks/smollm2.py tokenizer CACHE
    python benchmarks/smollm2.py views CACHE [--model base|warmed-1|model]
                                  [--problems familiar|validation] [--count N]

CACHE is what `paint lab --model smollm2` has prepared (default there: runs/smollm2). The first
shows the nats a character of three texts under the converted model, with digits split before the
merges, as the model was trained, and without. The second answers problems greedily that no warm-up
trained on: alone, with the own solution, and with another problem's of the same file, each with
0.35 hidden. Intervals are 95 %. The evaluation problems are asked by `paint lab` alone.
"""

import argparse
import resource
import time
from pathlib import Path

import numpy as np
import torch
from tokenizers.pre_tokenizers import ByteLevel

from paint.config import Data, Model
from paint.context import mask_solution
from paint.data.problems import read_problems
from paint.engines.local import LocalEngine
from paint.engines.protocol import Sampling
from paint.evaluation.metrics import avg_at_k
from paint.grading.grader import is_correct
from paint.model.policy import load_policy
from paint.smollm2.problems import HIDDEN, WARM_UP, word_problems

GREEDY = Sampling(temperature=0.0, top_p=1.0, top_k=-1, max_new_tokens=80)
BATCH = 60


def texts() -> dict[str, str]:
    """Plain arithmetic, a list with blank lines before its numbers, and columns."""
    problems = word_problems(WARM_UP, "evaluation", 24, seed=1)
    solutions = [problem.solution for problem in problems]
    sums = [(i * 7 % 23 + 2, i * 5 % 19 + 3) for i in range(24)]
    return {
        "plain": " ".join(solutions),
        "list": "\n\n".join(f"{i}. {text}" for i, text in enumerate(solutions, start=1)),
        "columns": "\n".join(f"{a:4d} +{b:4d} ={a + b:5d}" for a, b in sums),
    }


def tokenizer(cache: Path) -> None:
    """Print nats a character and tokens of each text, as trained and without the split."""
    policy = load_policy(Model(path=str(cache / "base"), dtype="float32"), seed=0)
    backend = policy.tokenizer.backend_tokenizer
    trained = backend.pre_tokenizer
    for name, text in texts().items():
        figures = []
        for pre_tokenizer in (trained, ByteLevel(add_prefix_space=False)):
            backend.pre_tokenizer = pre_tokenizer
            ids = policy.tokenizer.encode(text, add_special_tokens=False)
            with torch.no_grad():
                hidden = policy.hidden_states([[policy.end_ids[0]]], [ids])
                log_probs = policy.lm_head(hidden).log_softmax(-1)
            nats = -float(log_probs.gather(1, torch.tensor(ids)[:, None]).sum())
            figures.append(f"{nats / len(text):.4f} ({len(ids)} tokens)")
        print(f"{name:8} as trained {figures[0]}, without {figures[1]}", flush=True)


def views(cache: Path, model: str, file: str, count: int) -> None:
    """Print the share of right greedy answers by what is shown."""
    policy = load_policy(Model(path=str(cache / model), dtype="float32"), seed=0)
    problems = read_problems(Data(path=str(cache / f"{file}.jsonl"), limit=count)).problems
    others = problems[1:] + problems[:1]  # families come in turn, so these are of another one

    def shown(solution: str, problem: str) -> list[int]:
        return policy.teacher_prompt(problem, mask_solution(solution, HIDDEN), complete=False)

    prompts = {
        "alone": [policy.student_prompt(p.problem) for p in problems],
        "own": [shown(p.solution, p.problem) for p in problems],
        "other": [shown(o.solution, p.problem) for o, p in zip(others, problems, strict=True)],
    }
    for name, rows in prompts.items():
        began = time.process_time()
        engine = LocalEngine(policy, batch_size=BATCH)
        completions = engine.generate(rows, GREEDY, range(len(rows)))
        written = [policy.transcript(r, c.ids) for r, c in zip(rows, completions, strict=True)]
        right = [is_correct(text, p.answer) for text, p in zip(written, problems, strict=True)]
        share = avg_at_k(np.array(right)[:, None])
        seconds = time.process_time() - began
        print(f"{name:6} {share.points()} of {len(rows)}, {seconds:.0f} CPU s", flush=True)
        print(f"  {problems[0].problem!r}\n  {written[0]!r}", flush=True)


def main() -> None:
    """Read the arguments, print the figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["tokenizer", "views"])
    parser.add_argument("cache", type=Path)
    parser.add_argument("--model", default="model")
    parser.add_argument("--problems", choices=["familiar", "validation"], default="familiar")
    parser.add_argument("--count", type=int, default=60)
    options = parser.parse_args()
    if options.what == "tokenizer":
        tokenizer(options.cache)
    else:
        views(options.cache, options.model, options.problems, options.count)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"peak {peak:.1f} GB")


if __name__ == "__main__":
    main()
