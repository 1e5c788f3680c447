"""The token ids and masks of TRL's tool loop, for the same template, tool and sampled texts."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trl
from test_tool_loop import Script, add, call

from conftest import DEMO
from paint.config.schema import ConversationConfig
from paint.core.extensions import spec_of
from paint.data.problems import Problem
from paint.inference.conversations import open_conversations, with_tools
from paint.inference.engine import Sampling
from paint.models.policy import Policy, load_policy
from paint.models.rows import joined_rows

TEMPLATES = Path(trl.__file__).parent / "chat_templates"
FIRST = call("add", '{"a": 2, "b": 3}')
TEXTS = [f"I add.\n{FIRST}", call("add", '{"a": 5, "b": 1}'), "It is 6."]


def trl_loop(policy: Policy, prompt: list[int], texts: list[str]) -> tuple[list[int], list[int]]:
    """TRL's own loop: all ids after the prompt, and its mask of what the model wrote."""
    from trl import GRPOTrainer
    from trl.chat_template_utils import add_response_schema, parse_response

    tokenizer = add_response_schema(policy.tokenizer)
    said = [policy.solution_ids(text) for text in texts]
    first = parse_response(tokenizer, said[0], prefix=prompt, tools=[add])
    loop = object.__new__(GRPOTrainer)
    vars(loop).update(
        processing_class=tokenizer,
        _tokenizer=tokenizer,
        chat_template=tokenizer.chat_template,
        chat_template_kwargs={},
        tools=[add],
        _sync_tool_dicts=[{"add": add}],
        _async_tool_dicts=[{}],
        max_tool_calling_iterations=5,
        use_vllm=False,
        model=SimpleNamespace(config=SimpleNamespace(max_position_embeddings=4096)),
        _is_vlm=False,
        max_completion_length=4096,
        environment_factories=None,
        _generate_single_turn=lambda *_, **__: ([said.pop(1)], None),
    )
    chat = [{"role": "user", "content": "Add 2 and 3, then 1."}]
    found = loop._tool_call_loop([chat], [prompt], [list(said[0])], [[first]], None, None, {})
    mask, _, ids, *_ = found
    return ids[0], mask[0]


@pytest.mark.slow
@pytest.mark.parametrize("template", ["qwen2_5", "qwen3_instruct_2507"])
def test_conversation_has_the_ids_and_the_mask_of_trl(template: str) -> None:
    policy = load_policy(DEMO, seed=0)
    policy.tokenizer.chat_template = (TEMPLATES / f"{template}.jinja").read_text()
    config = ConversationConfig(tools=(spec_of(add),))
    policy = with_tools(policy, config)
    engine = Script(policy, TEXTS)
    problem = Problem("", "", "6", "a", turns=(("user", "Add 2 and 3, then 1."),))
    with open_conversations(policy, config, 4000) as conversations:
        assert conversations is not None
        [ours] = conversations.generate(engine, [problem], Sampling(1.0, 1.0, -1, 100), [7])
    talk: Any = ours.conversation
    assert [m["content"] for m in talk.messages if m["role"] == "tool"] == ["5", "6"]
    prompts = [turn.prompt for turn in talk.turns]
    parts = ours.after(prompts)
    ids, mask = trl_loop(policy, prompts[0], TEXTS)

    [row, *others] = joined_rows(prompts, [ids for _, ids in parts])
    assert not others
    assert row.ids == [*prompts[0], *ids]
    learned = [place - len(prompts[0]) + 1 for place in row.predicts]
    assert learned == [place for place, is_said in enumerate(mask) if is_said]
