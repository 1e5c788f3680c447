"""A teacher's likeliest entries, stored next to completions: training on them needs no teacher.

``local`` scores with a model of this process, ``served`` with a vLLM server that was started with
``--max-logprobs 16``. The teacher has the student's tokenizer.
"""

import json
import urllib.request
from pathlib import Path
from typing import Any

import torch

import paint
from paint.config.schema import ModelConfig
from paint.models.policy import Policy, load_policy

KEPT = ("problem", "prompt_ids", "completion_ids", "engine_log_probs")
Top = tuple[list[list[int]], list[list[float]]]  # ids and log-probs at each token


def local(teacher: Policy, prompt: list[int], ids: list[int], k: int = 16) -> Top:
    with torch.no_grad():
        logits = teacher.lm_head(teacher.hidden_states([prompt], [ids])).float()
    top = logits.log_softmax(-1).topk(k)
    return top.indices.tolist(), top.values.tolist()


def served(url: str, model: str, prompt: list[int], ids: list[int], k: int = 16) -> Top:
    body = {"model": model, "prompt": [*prompt, *ids], "max_tokens": 1, "prompt_logprobs": k}
    request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode())
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request) as answer:
        found = json.load(answer)["choices"][0]["prompt_logprobs"][len(prompt) :]
    # Next to the likeliest, a server gives the token itself.
    pairs = [[(entry["logprob"], int(i)) for i, entry in token.items()] for token in found]
    tops = [sorted(token, reverse=True)[:k] for token in pairs]
    return [[i for _, i in top] for top in tops], [[value for value, _ in top] for top in tops]


if __name__ == "__main__":
    run = paint.train("demo-paint", output_dir="runs/sampled", train={"steps": 2})
    teacher = load_policy(ModelConfig(path="demo", dtype="float32"), seed=0)
    rows: list[dict[str, Any]] = []
    for step in (1, 2):
        for row in run.rollouts(step).to_dict("records"):
            # What the teacher read in that run: the problem and its solution.
            top = local(teacher, row["teacher_prompt_ids"], row["completion_ids"])
            kept = {name: row[name] for name in KEPT}
            rows.append({**kept, "teacher_ids": top[0], "teacher_log_probs": top[1]})
    Path("scored.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    paint.train(
        "demo-paint",
        output_dir="runs/without-teacher",
        rollout={"engine": "stored", "stored": "scored.jsonl"},
        objective={"temperature": 1.0},
        train={"steps": 2, "method": "paintvariants.stored_teacher:StoredTeacher"},
    )
