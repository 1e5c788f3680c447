"""Generator of the table of chat templates with tools, from the templates that TRL ships.

python tools/chat_templates_table.py writes it into docs/how-to/turns-and-tools.md; with --check it
writes nothing and exits with status 1 if the page differs. --model FOLDER prints the row of a
model's template.
"""

import argparse
import re
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from transformers import AutoTokenizer, PreTrainedTokenizerBase
from transformers.utils import logging

from chatforms.call_styles import CallStyle, call_style
from chatforms.conventions import RENDERING_ERRORS, read_thinking, template_arguments
from chatforms.errors import ChatFormError
from chatforms.messages import Message
from chatforms.spellings import ToolCall
from chatforms.tool_calls import Reply, read_reply
from chatforms.tool_schemas import tool_schemas
from paint.core.demo_files import MODEL

PAGE = Path(__file__).parents[1] / "docs" / "how-to" / "turns-and-tools.md"
BEGIN, END = "<!-- table: tools/chat_templates_table.py -->", "<!-- end of the table -->"
DAY = "2026-01-01"
MARK = re.compile(r"<[^<>\s]+>|\[/?[A-Z_]+\]")


def look_up(text: str, count: int = 1, exact: bool = False, words: list[str] | None = None) -> str:
    """Look something up.

    Args:
        text: What to look for.
        count: How many results.
        exact: Whether case matters.
        words: Other words.
    """
    raise NotImplementedError


SCHEMAS = tool_schemas([look_up])
ASKED = {"role": "user", "content": "Which is it?"}
CALLS = (
    ToolCall("look_up", {"text": 'a "b"\n</tool_call> it\'s', "count": 3, "exact": True}),
    ToolCall("look_up", {"text": "c", "words": ["d", "e"]}),
)


def row(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """The cells of a template: a call, whether calls are read back, history."""
    try:
        style = call_style(tokenizer)
    except ChatFormError as error:
        has_tools = "no calls of tools" not in str(error)
        return ["of unknown spelling" if has_tools else "", "", history(tokenizer, None)]
    names = {"trial_tool_1": "add", "trialkey": "k", "trialvalue": "v", "\0": "ID", "|": "\\|"}
    example = " ".join(style.example.split())
    for name, short in names.items():
        example = example.replace(name, short)
    several = "" if style.turns.several else ", one a turn"
    return [f"`` {example} ``", read_back(style) + several, history(tokenizer, style)]


def read_back(style: CallStyle) -> str:
    """Whether rendered calls are read as they were given."""
    calls = CALLS if style.turns.several else CALLS[:1]
    message = Reply("", None, calls).message()
    prompt, whole, _ = renderings(style.tokenizer, style, message, [])
    text, opened = whole.partition(ASKED["content"])[2], ""
    if whole.startswith(prompt):
        text, opened = whole.removeprefix(prompt), read_thinking(style.tokenizer, DAY).opened[True]
    reply = read_reply(style, text, SCHEMAS, opened=opened)
    same = [call.arguments for call in reply.calls] == [call.arguments for call in calls]
    return "equal" if same and not reply.faults else "differ"


def history(tokenizer: PreTrainedTokenizerBase, style: CallStyle | None) -> str:
    """Which turns of an assistant the next prompt does not repeat as they were sampled."""
    answer: Message = {"role": "assistant", "content": "I look."}
    asked_again = [{"role": "user", "content": "Check it."}]
    cases = {"answers": (answer, asked_again)}
    if style:
        call = Reply("", None, CALLS[:1]).message()
        result = [{"role": "tool", "name": "look_up", "content": "5"}]
        cases["calls"] = (call, result)
        if style.thought_field:
            thought = {style.thought_field: "Hm."}
            cases["thoughts before answers"] = (answer | thought, asked_again)
            cases["thoughts before calls"] = (call | thought, result)
    try:
        _, whole, _ = renderings(tokenizer, style, answer, [])
        rewritten = [name for name, case in cases.items() if not grows(tokenizer, style, *case)]
    except RENDERING_ERRORS:
        return "no texts"
    if answer["content"] not in whole:
        return "no texts"
    return f"rewrites {', '.join(rewritten)}" if rewritten else "grows"


def grows(
    tokenizer: PreTrainedTokenizerBase,
    style: CallStyle | None,
    message: Message,
    following: list[Message],
) -> bool:
    """Whether the next prompt begins with this prompt and what was sampled on it."""
    prompt, whole, later = renderings(tokenizer, style, message, following)
    if not whole.startswith(prompt):
        return False
    sampled, text = whole.removeprefix(prompt).rstrip(), message["content"]
    if text:  # up to the first mark behind it, which ends the turn
        until = re.search(rf"(?s)^.*{re.escape(text)}\s*({MARK.pattern})?", sampled)
        sampled = until[0] if until else sampled
    thinking = read_thinking(tokenizer, DAY)
    if not thinking.opened[True]:  # models need not write the empty thought of the last turn
        for tags in thinking.tags:
            empty = rf"\s*{re.escape(tags.opening)}\s*{re.escape(tags.closing)}\s*"
            sampled = re.sub(rf"^{empty}", "", sampled)
    return later.startswith(prompt + sampled)


def renderings(
    tokenizer: PreTrainedTokenizerBase,
    style: CallStyle | None,
    message: Message,
    following: list[Message],
) -> tuple[str, str, str]:
    """The first prompt, it with the assistant's turn, and the prompt behind what follows."""
    chat = [ASKED, message, *following]
    options = template_arguments(tokenizer, thinking=True, day=DAY)
    if style:
        chat, options = style.turns.messages(chat), options | {"tools": SCHEMAS}
    first, whole, later = (
        tokenizer.apply_chat_template(
            chat[:count], tokenize=False, add_generation_prompt=is_prompt, **options
        )
        for count, is_prompt in ((1, True), (2, False), (len(chat), True))
    )
    return first, whole, later


def table(templates: dict[str, str]) -> str:
    """The tables: how calls are spelled, and what templates do with them.

    A training variant has a row where it differs.
    """
    tokenizer = AutoTokenizer.from_pretrained(MODEL, trust_remote_code=False)
    tokenizer.bos_token = tokenizer.eos_token
    rows: dict[str, list[str]] = {}
    spellings: list[str] = []
    for name, template in templates.items():
        tokenizer.chat_template = template
        call, *cells = row(tokenizer)
        spellings += [call] if call and call not in spellings else []
        rows[name] = [str(spellings.index(call) + 1) if call else "none", *cells]
    calls = [[str(number), call] for number, call in enumerate(spellings, start=1)]
    kept = [
        [f"`{name}`", *cells]
        for name, cells in rows.items()
        if cells != rows.get(name.removesuffix("_training")) or not name.endswith("_training")
    ]
    heads = ["template", "spelling", "calls read back", "the next prompt"]
    return f"{cells_of(['', 'a call'], calls)}\n\n{cells_of(heads, kept)}"


def cells_of(heads: list[str], rows: list[list[str]]) -> str:
    """A table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def trl_templates() -> dict[str, str]:
    """The templates that TRL ships, by their files' names."""
    found = find_spec("trl")
    folders = (found.submodule_search_locations if found else None) or ()
    paths = [path for folder in folders for path in Path(folder, "chat_templates").glob("*.jinja")]
    return {path.stem: path.read_text(encoding="utf-8") for path in sorted(paths)}


def page(text: str) -> str:
    """The page with the table of the installed TRL in it."""
    before, _, rest = text.partition(BEGIN)
    source = f"TRL {version('trl')}, transformers {version('transformers')}."
    return (
        f"{before}{BEGIN}\n\n{source}\n\n{table(trl_templates())}\n\n{END}{rest.partition(END)[2]}"
    )


def main() -> int:
    """Write, check or print the table; the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="exit with 1 if the page differs")
    parser.add_argument("--model", metavar="FOLDER", help="print the row of a model's template")
    options = parser.parse_args()
    logging.set_verbosity_error()
    if options.model:
        tokenizer = AutoTokenizer.from_pretrained(options.model, trust_remote_code=False)
        print(table({Path(options.model).name: str(tokenizer.get_chat_template())}))
        return 0
    written = PAGE.read_text(encoding="utf-8")
    text = page(written)
    if options.check and written != text:
        print(f"run python tools/chat_templates_table.py: {PAGE} differs")
        return 1
    if not options.check:
        PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
