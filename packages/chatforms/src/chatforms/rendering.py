"""Rendering of Jinja templates within a limit of time.

A chat template is code of whoever made the model, and transformers runs it in this process. Jinja's
sandbox keeps it from files and attributes, and not from loops without an end.
"""

import operator
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache, wraps
from math import inf
from threading import local
from typing import Any, TypeVar, cast

from jinja2.compiler import CodeGenerator, Frame, MacroRef
from jinja2.nodes import CallBlock, For, Macro, Node, Template
from jinja2.sandbox import ImmutableSandboxedEnvironment
from transformers import PreTrainedTokenizerBase

from chatforms.errors import TemplateLimitError

SECONDS = 5.0
"""The limit of a rendering. Those of real templates take milliseconds."""

_MOST_BITS = 100_000
"""Of a number that a template computes."""

F = TypeVar("F", bound=Callable[..., Any])


def by_template(most: int = 8) -> Callable[[F], F]:
    """Cache what a function finds of a tokenizer, as long as its template and vocabulary stay."""

    def decorate(function: F) -> F:
        @lru_cache(maxsize=most)
        def cached(tokenizer: Any, template: str, size: int, *args: Any, **options: Any) -> Any:
            return function(tokenizer, *args, **options)

        @wraps(function)
        def called(tokenizer: Any, *args: Any, **options: Any) -> Any:
            template = str(tokenizer.chat_template)
            return cached(tokenizer, template, len(tokenizer), *args, **options)

        return cast(F, called)

    return decorate


class _Watch(local):
    """The limit of the rendering under way in this thread."""

    whose = ""
    wall = inf  # of time.monotonic, which costs less
    own = inf  # of time.thread_time: a machine under load is no fault of the template


_watch = _Watch()


def render_chat(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Mapping[str, Any]], **options: Any
) -> str:
    """Return the text of a chat by the chat template, with ``apply_chat_template``'s options.

    Raises TemplateLimitError, and what the template raises.
    """
    with limited(f"the chat template of {tokenizer.name_or_path}"):
        return str(tokenizer.apply_chat_template(list(messages), tokenize=False, **options))


@contextmanager
def limited(whose: str) -> Iterator[None]:
    """Limit the templates that are rendered within. ``whose`` names them, for messages."""
    _watch.whose = whose
    _watch.wall, _watch.own = time.monotonic() + SECONDS, time.thread_time() + SECONDS
    try:
        yield
    finally:
        _watch.wall = inf


def _tick() -> None:
    """Raise TemplateLimitError where the rendering has taken too long."""
    if time.monotonic() > _watch.wall and time.thread_time() > _watch.own:
        raise TemplateLimitError(
            f"{_watch.whose} takes over {SECONDS:g} s for one text; mend its loops, or take "
            f"another model"
        )


class _LimitedCode(CodeGenerator):
    """Jinja's compiler, with a look at the time in each round of a loop and call of a macro."""

    _begins = False  # the next block is the body of a loop or a macro

    def visit_Template(self, node: Template, frame: Frame | None = None) -> None:
        # It writes as many paragraphs as it is told to, without a loop of the template.
        self.environment.globals.pop("lipsum", None)
        super().visit_Template(node, frame)

    def visit_For(self, node: For, frame: Frame) -> None:
        self._begins = True
        super().visit_For(node, frame)

    def macro_body(self, node: Macro | CallBlock, frame: Frame) -> tuple[Frame, MacroRef]:
        self._begins = True
        return super().macro_body(node, frame)

    def blockvisit(self, nodes: Iterable[Node], frame: Frame) -> None:
        if self._begins:
            self._begins = False
            self.writeline("environment.chatforms_tick()")
        super().blockvisit(nodes, frame)


def _bounded(operation: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """A product or power, without those of integers that take long by themselves."""

    def bounded(left: Any, right: Any) -> Any:
        if isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * right if operation is operator.pow else left.bit_length()
            if max(bits, right.bit_length()) > _MOST_BITS and _watch.wall < inf:
                raise TemplateLimitError(f"{_watch.whose} computes a number that is too large")
        return operation(left, right)

    return bounded


# The class in which transformers compiles chat templates. Outside of ``limited`` its templates do
# what they did.
_Sandbox: Any = ImmutableSandboxedEnvironment
_Sandbox.chatforms_tick = staticmethod(_tick)
_Sandbox.code_generator_class = _LimitedCode
_Sandbox.intercepted_binops = frozenset(("*", "**"))
_Sandbox.default_binop_table = _Sandbox.default_binop_table | {
    "*": _bounded(operator.mul),
    "**": _bounded(operator.pow),
}
