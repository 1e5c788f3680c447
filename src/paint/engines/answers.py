"""What a server may answer: read within bounds, checked before it is believed.

A server may be broken, be another program, or lie. So the number of bytes that are read follows
from what was asked (``most_bytes``), and what they hold must be a completion of the prompt that was
sent, in ids of the model's vocabulary. Pure functions: who asks, and how often, is
paint.engines.server's business.

Left out on purpose: mending. A completion that is cut to what was asked is not what was sampled.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paint.errors import plain

PROMPT_TOKEN_BYTES = 16
"""A token id of the prompt in JSON, with room to spare."""

NEW_TOKEN_BYTES = 1024
"""A new token in JSON: its id, its log-prob, and three times its text, of up to 128 characters."""

FRAME_BYTES = 2**16
"""Everything else in a response to a request for a completion."""

LARGEST_LOG_PROB = 1e-3
"""Above 0 by what rounding may add; a log-prob in nats is at most 0."""

SHOWN_CHARACTERS = 600
"""How much of a response is passed on in messages."""


class Unusable(Exception):
    """A response that does not fit what was asked; the message says how."""


@dataclass(frozen=True)
class Vocabulary:
    """The token ids that a completion may hold: from 0 to below ``size``; some end it."""

    size: int
    end_ids: Sequence[int]


@dataclass(frozen=True)
class Served:
    """A model that a server has.

    Attributes:
        adapter: folder of an adapter; None for the base model.
        max_tokens: the base model's longest prompt and completion together; 0 for an adapter.
    """

    name: str
    adapter: Path | None
    max_tokens: int


def most_bytes(prompt_tokens: int, new_tokens: int) -> int:
    """The most bytes that a response with one completion of so many tokens can have."""
    return FRAME_BYTES + PROMPT_TOKEN_BYTES * prompt_tokens + NEW_TOKEN_BYTES * new_tokens


def read_completion(
    content: bytes, prompt: Sequence[int], longest: int, vocabulary: Vocabulary
) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """The token ids that a response holds, to the ids that were sent, and the log-prob of each.

    Args:
        longest: tokens that the completion may have.

    Raises:
        Unusable: the response holds something else.
    """
    choices = _field(_object(content), "choices", list)
    if len(choices) != 1 or not isinstance(choices[0], dict):
        raise Unusable(f"{len(choices)} choices where one completion was asked for")

    choice = choices[0]
    read = _field(choice, "prompt_token_ids", list)
    if read != list(prompt):
        raise Unusable(f"it read other token ids than it was sent: {show(read[:20])} ...")

    ids = _field(choice, "token_ids", list)
    log_probs = _field(_field(choice, "logprobs", dict), "token_logprobs", list)
    if not 0 < len(ids) <= longest or len(ids) != len(log_probs):
        raise Unusable(f"{len(ids)} token ids and {len(log_probs)} log-probs")
    for token in ids:
        if type(token) is not int or not 0 <= token < vocabulary.size:
            raise Unusable(f"a token id {show(token)}; the model has {vocabulary.size}")
    for value in log_probs:
        # -1e30: not infinite; and an integer of a thousand digits is no float.
        if type(value) not in (float, int) or not -1e30 < value <= LARGEST_LOG_PROB:
            raise Unusable(f"log-probs that are not finite or above 0: {show(value)}")

    _require_end(ids, _field(choice, "finish_reason", str), choice, longest, vocabulary)
    return tuple(ids), tuple(map(float, log_probs))


def read_models(content: bytes) -> list[Served]:
    """The base model and the adapters, as a list of models holds them.

    Raises:
        Unusable: it holds something else, or no base model.
    """
    models = []
    for model in _field(_object(content), "data", list):
        if not isinstance(model, dict):
            raise Unusable(f"a model {show(model)}")
        name = _field(model, "id", str)
        if model.get("parent"):
            models.append(Served(name, Path(_field(model, "root", str)), 0))
        else:
            models.append(Served(name, None, _field(model, "max_model_len", int)))

    if not any(model.max_tokens > 0 for model in models):
        raise Unusable("no base model with its max_model_len")
    return models


def said(content: bytes) -> str:
    """What the body of a response says, in one line that may be shown."""
    try:
        message = json.loads(content)["error"]["message"]
        text = message if isinstance(message, str) else ""
    except (ValueError, LookupError, TypeError, RecursionError):
        text = ""
    text = text or content.decode("utf-8", "replace")
    return plain(" ".join(text.split())[:SHOWN_CHARACTERS])


def show(value: object) -> str:
    """A value out of a response, short and as plain text."""
    return plain(json.dumps(value)[:80])


def _require_end(
    ids: Sequence[int],
    finish: str,
    choice: dict[str, Any],
    longest: int,
    vocabulary: Vocabulary,
) -> None:
    """A completion ends with its first end token, or where it is as long as it may be."""
    if ended := [place for place, token in enumerate(ids, 1) if token in vocabulary.end_ids]:
        if ended[0] < len(ids):
            raise Unusable(f"{len(ids)} token ids, of which number {ended[0]} ends the completion")
        is_whole = finish == "stop" or (finish == "length" and len(ids) == longest)
    else:
        is_whole = finish == "length" and len(ids) == longest
    if not is_whole:
        raise Unusable(
            f"it stopped after {len(ids)} of {longest} tokens "
            f"{'with' if ended else 'without'} an end token ({show(finish)}, "
            f"{show(choice.get('stop_reason'))}); look at its --max-model-len and stop settings"
        )


def _object(content: bytes) -> dict[str, Any]:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        raise Unusable("no JSON") from None
    if not isinstance(value, dict):
        raise Unusable("JSON, but no object")
    return value


def _field(value: dict[str, Any], name: str, kind: type[Any]) -> Any:
    """A field of a JSON object, which must be of that very kind: true is no number."""
    if type(value.get(name)) is not kind:
        raise Unusable(f"{name}: {show(value[name])}" if name in value else f"no {name}")
    return value[name]
