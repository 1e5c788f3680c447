"""A judge as grader: any OpenAI-compatible endpoint (vLLM, a provider) that rates completions.

    vllm serve Qwen/Qwen3-8B --port 8001
    paint train RECIPE --data.path support.jsonl --grading.grader examples.judge:grade \
        --grading.options.url http://localhost:8001/v1 --grading.options.model Qwen/Qwen3-8B

The reward is the judge's score, an integer from 0 to 10, over 10; another score is an error, so the
judge is asked again, and then the call has failed. Its remark, of which the first 300 characters
count, is the feedback. Of a chat it reads all turns. A row may have a field `rubric`, by which the
judge goes. The key of the endpoint is the environment variable
JUDGE_API_KEY, since options are recorded in run.json.
"""

import json
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx2

from paint.grading.contract import Grade
from strictgrade.thoughts import split_thought

CERTIFICATES = ssl.create_default_context()  # takes long, so once for all calls
RUBRIC = "It is correct, it answers what was asked, and it is as short as it can be."
PROMPT = """Rate a reply from 0 (useless) to 10 (perfect), and name its worst fault in a sentence.

A perfect reply: {rubric}

=== Request ===
{problem}

=== Reply ===
{reply}"""
REMARK_CHARACTERS = 300
SCORES = range(11)
# Servers may ignore both limits.
REMARK = {"type": "string", "maxLength": REMARK_CHARACTERS}
SCORE = {"type": "integer", "minimum": SCORES[0], "maximum": SCORES[-1]}
SCHEMA = {
    "type": "object",
    "properties": {"remark": REMARK, "score": SCORE},  # the remark first: the score follows from it
    "required": ["remark", "score"],
    "additionalProperties": False,
}


@dataclass(frozen=True)
class JudgeOptions:
    url: str = "http://localhost:8001/v1"
    """Address of the endpoint, which ends in /v1."""
    model: str = "Qwen/Qwen3-8B"
    """Name of the model at the endpoint."""


async def grade(completion: str, row: Mapping[str, Any], options: JudgeOptions) -> Grade:
    reply = split_thought(completion).answer
    if reply is None:
        return Grade(0.0, "unclosed thought")
    prompt = PROMPT.format(
        rubric=row.get("rubric", RUBRIC), problem=conversation(row), reply=reply.strip()
    )
    request = {
        "model": options.model,
        "messages": [{"role": "user", "content": prompt}],
        "temperature": 0,
        "max_tokens": 400,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "rating", "schema": SCHEMA, "strict": True},
        },
    }
    key = os.environ.get("JUDGE_API_KEY")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    # grading.timeout limits the time of a call.
    async with httpx2.AsyncClient(headers=headers, timeout=None, verify=CERTIFICATES) as client:
        response = await client.post(f"{options.url}/chat/completions", json=request)
    if not response.is_success:  # raise_for_status names the address, which may hold a key
        raise RuntimeError(f"HTTP {response.status_code} {response.reason_phrase}")
    body = response.json()
    rating = json.loads(body["choices"][0]["message"]["content"])
    score, remark = rating["score"], rating["remark"] or ""
    if isinstance(score, bool) or score not in SCORES:
        raise ValueError(f"the judge's score is {str(score)[:20]}, not an integer from 0 to 10")
    usage = body.get("usage") or {}
    tokens = {"judge_tokens": usage["total_tokens"]} if "total_tokens" in usage else {}
    feedback = remark[:REMARK_CHARACTERS]
    return Grade(score / 10, f"{int(score)} of 10", feedback=feedback, metrics=tokens)


def conversation(row: Mapping[str, Any]) -> str:
    """The problem; of a chat all turns up to the last one of the user, each after its role."""
    turns = list(row.get("messages") or [])
    while turns and turns[-1]["role"] != "user":
        turns.pop()  # the reference reply
    if len(turns) < 2:
        return str(row["problem"])
    return "\n\n".join(f"{turn['role']}: {turn['content']}" for turn in turns)
