"""Chat templates in the styles of model families, and a tokenizer that has their tokens."""

import re
from copy import deepcopy
from functools import cache
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

LOOP, END = "{%- for m in messages %}", "{%- endfor %}"
PROMPT, END_IF = "{%- if add_generation_prompt %}", "{%- endif %}"
TURN = "{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}"
ASSISTANT = "{{- '<|im_start|>assistant\\n' }}"
OFF = "{%- if enable_thinking is defined and not enable_thinking %}"

CHATML = f"{LOOP}{TURN}{END}{PROMPT}{ASSISTANT}{END_IF}"
DATED = "{{- '<|im_start|>system\\n' + strftime_now('%d %b %Y') + '<|im_end|>\\n' }}" + CHATML

HEADER = "{{- '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' }}"
LLAMA3 = f"""{{%- if not date_string is defined %}}{{%- if strftime_now is defined %}}
{{%- set date_string = strftime_now('%d %b %Y') %}}{{%- else %}}
{{%- set date_string = '26 Jul 2024' %}}{END_IF}{END_IF}
{{{{- '<|start_header_id|>system<|end_header_id|>\\n\\nToday: ' + date_string + '<|eot_id|>' }}}}
{LOOP}{HEADER}{{{{- m.content | trim + '<|eot_id|>' }}}}{END}
{PROMPT}{{{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}}}{END_IF}"""

GEMMA = f"""{LOOP}{{%- set role = 'model' if m.role == 'assistant' else m.role %}}
{{{{- '<start_of_turn>' + role + '\\n' + m.content | trim + '<end_of_turn>\\n' }}}}{END}
{PROMPT}{{{{- '<start_of_turn>model\\n' }}}}{END_IF}"""

PHI3 = f"""{LOOP}{{{{- '<|' + m.role + '|>\\n' + m.content + '<|end|>\\n' }}}}{END}
{PROMPT}{{{{- '<|assistant|>\\n' }}}}{{%- else %}}{{{{- eos_token }}}}{END_IF}"""

MISTRAL = f"""{LOOP}{{%- if m.role == 'user' %}}{{{{- '[INST] ' + m.content + ' [/INST]' }}}}
{{%- else %}}{{{{- ' ' + m.content + '</s>' }}}}{END_IF}{END}"""

R1 = f"""{LOOP}{{%- if m.role == 'user' %}}{{{{- '<|User|>' + m.content }}}}{{%- else %}}
{{{{- '<|Assistant|>' + m.content.split('</think>')[-1] + '<|end_of_sentence|>' }}}}{END_IF}{END}
{PROMPT}{{{{- '<|Assistant|><think>\\n' }}}}{END_IF}"""

GPT_OSS = f"""{{%- if reasoning_effort is not defined %}}
{{%- set reasoning_effort = 'low' %}}{END_IF}
{{{{- '<|start|>system<|message|>Date: ' + strftime_now('%Y-%m-%d') }}}}
{{{{- '\\nReasoning: ' + reasoning_effort + '<|end|>' }}}}
{LOOP}{{%- if m.role != 'assistant' %}}
{{{{- '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' }}}}{{%- else %}}
{{%- if m.thinking and loop.last %}}
{{{{- '<|start|>assistant<|channel|>analysis<|message|>' + m.thinking + '<|end|>' }}}}{END_IF}
{{{{- '<|start|>assistant<|channel|>final<|message|>' + m.content }}}}
{{{{- '<|return|>' if loop.last and not add_generation_prompt else '<|end|>' }}}}{END_IF}{END}
{PROMPT}{{{{- '<|start|>assistant' }}}}{END_IF}"""

QWEN3_TURN = f"""{{%- if m.role == 'assistant' %}}{{{{- '<|im_start|>assistant\\n' }}}}
{{%- if loop.last or m.reasoning_content %}}
{{{{- '<think>\\n' + (m.reasoning_content or '') + '\\n</think>\\n\\n' }}}}{END_IF}
{{{{- m.content + '<|im_end|>\\n' }}}}{{%- else %}}{TURN}{END_IF}"""
QWEN3 = f"""{LOOP}{QWEN3_TURN}{END}{PROMPT}{ASSISTANT}{OFF}
{{{{- '<think>\\n\\n</think>\\n\\n' }}}}{END_IF}{END_IF}"""
QWEN3_THINKING = f"{LOOP}{QWEN3_TURN}{END}{PROMPT}{ASSISTANT}{{{{- '<think>\\n' }}}}{END_IF}"

DEEPSEEK_V3 = f"""{{%- if not thinking is defined %}}{{%- set thinking = false %}}{END_IF}
{LOOP}{{%- if m.role == 'user' %}}{{{{- '<|User|>' + m.content }}}}{{%- else %}}
{{{{- '<|Assistant|></think>' + m.content + '<|end_of_sentence|>' }}}}{END_IF}{END}
{PROMPT}{{{{- '<|Assistant|>' + ('<think>' if thinking else '</think>') }}}}{END_IF}"""

SEED = f"""{{%- if thinking_budget is not defined %}}{{%- set thinking_budget = -1 %}}{END_IF}
{{%- if thinking_budget > 0 %}}{{{{- 'At most ' ~ thinking_budget ~ ' tokens.' }}}}{END_IF}
{LOOP}{TURN}{END}{PROMPT}{ASSISTANT}
{{%- if thinking_budget == 0 %}}{{{{- '<seed:think>\\n</seed:think>' }}}}{END_IF}{END_IF}"""

NO_THINKING = f"""{LOOP}{TURN}{END}{PROMPT}{ASSISTANT}
{{%- if no_thinking is defined and no_thinking %}}{{{{- '[THINK]\\n[/THINK]\\n' }}}}{END_IF}
{END_IF}"""

COHERE = f"""{LOOP}{{%- if m.role == 'user' %}}
{{{{- '<|TURN|><|USER|>' + m.content + '<|END_OF_TURN|>' }}}}{{%- else %}}
{{{{- '<|TURN|><|CHATBOT|><|START_RESPONSE|>' + m.content }}}}
{{{{- '<|END_RESPONSE|><|END_OF_TURN|>' }}}}{END_IF}{END}{PROMPT}{{{{- '<|TURN|><|CHATBOT|>' }}}}
{END_IF}"""

NOTHING = f"""{LOOP}{{{{- '<|' + m.role + '|>\\n' + m.content }}}}{END}
{PROMPT}{{{{- '<|assistant|>\\n' }}}}{END_IF}"""

NO_LAST_END = f"""{LOOP}{{{{- '<|im_start|>' + m.role + '\\n' + m.content }}}}
{{%- if not loop.last or add_generation_prompt %}}{{{{- '<|im_end|>\\n' }}}}{END_IF}{END}
{PROMPT}{ASSISTANT}{END_IF}"""

SINGLE = f"{{%- if messages | length > 2 %}}{{{{- raise_exception('one') }}}}{END_IF}{CHATML}"

ALWAYS_PROMPTS = f"""{LOOP}{{{{- m.role + ': ' + m.content + '\\n' }}}}{END}
{{{{- 'assistant: ' }}}}"""

WORDS = f"""{LOOP}{{{{- m.role + ': ' + m.content + ' END OF TURN\\n' }}}}{END}
{PROMPT}{{{{- 'assistant: ' }}}}{END_IF}"""

TEMPLATES = {
    name: value.replace("\n", "")
    for name, value in list(globals().items())
    if isinstance(value, str) and "messages" in value and "content" in value
}


@cache
def _bytes_as_tokens() -> PreTrainedTokenizerBase:
    """A token for each byte, with ChatML's marks as special tokens, and tags of thoughts."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    made.add_tokens([AddedToken(tag, special=False) for tag in ("<think>", "</think>")])
    return PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )


def small_tokenizer(template: str, folder: Path | None = None) -> PreTrainedTokenizerBase:
    """A tokenizer of bytes, or the one in a folder, with a chat template."""
    if folder is None:
        tokenizer = deepcopy(_bytes_as_tokens())
    else:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    tokenizer.chat_template = template
    return tokenizer


def tokenizer_of(name: str, folder: Path | None = None) -> PreTrainedTokenizerBase:
    """``small_tokenizer`` with a template of this module, and with its marks as special tokens."""
    template = TEMPLATES[name]
    tokenizer = small_tokenizer(template, folder)
    marks = re.findall(r"<\|?[\w:]+\|?>|</s>|\[/?INST\]", template)
    marks = sorted({*marks, "<|user|>", "<|assistant|>"} - {"<think>"})
    tokenizer.add_special_tokens({"additional_special_tokens": marks})
    tokenizer.eos_token = "<|endoftext|>"
    return tokenizer
