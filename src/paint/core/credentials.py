"""Secrets: settings that would hold one, values of the environment, messages without either.

A setting holds no secret, because it is written to run.json, logs, pages and cards. An option of an
extension names an environment variable in its place, ``env:JUDGE_API_KEY``, which is read where the
extension is used, and written nowhere.

What is a secret is told by its name or by its shape. Names of fields and of special tokens, such as
problem_key and pad_token, and numbers of tokens are none.
"""

import os
import re
from collections.abc import Iterator, Sequence
from typing import Any

REFERENCE = re.compile(r"env:([A-Za-z_]\w*)", re.ASCII)

_ALWAYS = (
    *("password", "passwd", "passphrase", "passcode", "pwd", "secret", "credential", "cred"),
    *("authorization", "bearer", "jwt", "apikey", "accesskey", "privatekey"),
)
"""Ends of names whose value is always a secret."""

_HOLDERS = {
    *("access", "account", "admin", "anthropic", "api", "app", "auth", "authentication", "aws"),
    *("azure", "bearer", "bot", "client", "cohere", "comet", "credential", "deepseek", "deploy"),
    *("encryption", "endpoint", "fireworks", "gcp", "gemini", "git", "github", "gitlab", "google"),
    *("groq", "hf", "hub", "huggingface", "jwt", "judge", "login", "master", "mistral", "neptune"),
    *("oauth", "openai", "openrouter", "personal", "private", "refresh", "secret", "security"),
    *("server", "service", "session", "signing", "slack", "ssh", "ssl", "subscription", "tls"),
    *("together", "vllm", "wandb", "webhook"),
}
"""Words before key or token with which it is always a secret."""

_NO_HOLDERS = {
    *("answer", "assistant", "begin", "bos", "boundary", "cache", "category", "chat", "choice"),
    *("class", "cls", "column", "completion", "content", "context", "data", "dict", "end", "eos"),
    *("example", "extra", "feedback", "field", "first", "foreign", "gold", "group", "id", "image"),
    *("index", "input", "json", "label", "language", "last", "level", "map", "mask", "message"),
    *("metric", "name", "newline", "next", "order", "output", "pad", "partition", "prefix"),
    *("primary", "problem", "prompt", "public", "question", "record", "reference", "response"),
    *("reward", "role", "row", "rubric", "sample", "score", "sep", "separator", "solution"),
    *("sort", "source", "special", "start", "stop", "subject", "suffix", "system", "target"),
    *("task", "test", "text", "think", "tool", "topic", "turn", "unk", "user", "word"),
}
"""Words before key or token that name a field of a row, or a token of a model."""

_EMPTY = {"", "empty", "none", "null", "unset"}
"""What stands for no key, such as the EMPTY that an endpoint without one wants."""

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
# A field's name, a special token such as <|im_end|> or [SEP], prose, or what is no text.
_PLAIN = re.compile(r"[a-z_.-]{1,24}|<.*>|\[.*\]|\{.*\}|.*\s.*|\W*|.{1,3}", re.DOTALL)
# In a command line or a template.
_VARIABLE = re.compile(r"\$\{?\w+\}?|%\w+%|<.*|\{.*")

_SHAPE = re.compile(
    r"(?<![\w/.-])(?:"
    r"sk-(?!learn)(?=[\w-]*[A-Z\d])[\w-]{6,}"  # of OpenAI, Anthropic and others
    r"|(?:hf|gh[oprsu]|gsk)_[A-Za-z\d]{12,}(?![\w-])|github_pat_\w{12,}"
    r"|(?:glpat|xox[abeprs])-[\w-]{12,}|AKIA[A-Z\d]{12,}|AIza[\w-]{30,}"
    r"|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"  # a JSON Web Token
    r")|-----BEGIN [A-Z ]*PRIVATE KEY-----",
    re.ASCII,
)
_HEADER = re.compile(
    r"authorization\W{1,4}(?:bearer|basic|digest|token|negotiate|aws\S*)\s+\w"
    # Prose has bearer bonds, and Bearer Tokens.
    r"|\bbearer\s+(?=\S*\d|(?-i:\S*[A-Z]\S*[A-Z]))[\w.~+/=-]{4,}",
    re.IGNORECASE,
)
_LOGIN = re.compile(
    r"[a-z][a-z\d+.-]*(?<!ssh)://[^\s/?#@]+@|ssh://[^\s/?#@:]+:[^\s/?#@]*@"
    # user:password@host.name, or with a port; owner/name:config@split is a name of the hub.
    r"|(?:^|[\s=\"'])(?!mailto:)[\w.+-]+:[^\s/@:]+@[\w-]+(?:\.[\w-]+|:\d)",
    re.IGNORECASE | re.ASCII,
)
_SIGNED = re.compile(r"[?&][\w-]*sig(?:nature)?=", re.IGNORECASE)
_PAIR = re.compile(
    r"(?:(?P<name>[\w-]+)=|[\"'](?P<quoted>[\w-]+)[\"']\s*:\s*|\b(?P<header>x-[\w-]+|api-key):\s*)"
    r"[\"']?(?P<value>[^\s\"'&;,(){}]+)",
    re.IGNORECASE,
)
_QUERY = re.compile(r"([a-z][a-z\d+.-]*://[^\s?\"'<>]*)\?[^\s\"'<>]*", re.IGNORECASE)
_USER = re.compile(r"\b([a-z][a-z\d+.-]*://)[^\s/?#\"'<>]*@", re.IGNORECASE)

_read: dict[str, str] = {}
# Values that this process has read from its environment, with what stands for them in messages.


def secret_in(name: str, value: Any) -> str:
    """Say why a setting or an option with this value would hold a secret; "" if it holds none.

    The reason does not repeat the value.
    """
    items = value if isinstance(value, tuple | list) else (value,)
    for item in items:
        found = _secret_in_one(name.rpartition(".")[2], item)
        if found:
            return found
    return ""


def _secret_in_one(name: str, value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int):
        return ""
    if isinstance(value, str) and REFERENCE.fullmatch(value):
        return ""
    if _is_secret(name, value):
        return "its name is that of a secret"
    if isinstance(value, int):
        return ""
    if _LOGIN.search(value):
        return "it has a password before an @"
    if _HEADER.search(value) or _SIGNED.search(value):
        return "it has a header or a signature that gives access"
    if _SHAPE.search(value):
        return "it has the shape of a key"
    for pair in _PAIR.finditer(value):
        called = pair["name"] or pair["quoted"] or pair["header"]
        if not _VARIABLE.fullmatch(pair["value"]) and _is_secret(called, pair["value"]):
            return f"it has a value for {called}"
    return ""


def _is_secret(name: str, value: str | int) -> bool:
    """Whether what a name such as api_key, judgeToken or X-Api-Key calls is a secret."""
    words = [word.lower() for word in _WORD.findall(name)]
    while len(words) > 1 and words[-1] in ("value", "text", "string", "json"):
        words.pop()
    if not words or str(value).lower() in _EMPTY:
        return False
    last, holder = words[-1].removesuffix("s"), words[-2] if len(words) > 1 else ""
    is_number, is_one = isinstance(value, int), last == words[-1]
    if last.endswith(_ALWAYS):
        return is_one or not is_number
    for kind in ("key", "token", "auth", "cookie"):
        if last == kind or (last.endswith(kind) and last.removesuffix(kind) in _HOLDERS):
            holder = last.removesuffix(kind) or holder
            if holder in _HOLDERS:
                return is_one or not is_number
            # Several are numbers of tokens, or names of fields.
            is_other = is_number or not is_one or holder in _NO_HOLDERS
            return not is_other and not _PLAIN.fullmatch(str(value))
    return False


def flag_values(line: Sequence[str]) -> Iterator[tuple[str, str]]:
    """For each word of a command line the flag that it is a value of, "" before any, and itself.

    Of --name=value it is the part after the equals sign. Flags are named as settings are.
    """
    flag = ""
    for word in line:
        value = word
        if word.startswith("--"):
            flag, equals, value = word[2:].replace("-", "_").partition("=")
            value = value if equals else ""
        yield flag, value


def recorded_line(line: Sequence[str]) -> list[str]:
    """A command line without what seems to be secrets."""
    recorded = []
    for word, (flag, value) in zip(line, flag_values(line), strict=True):
        is_kept = not (value and secret_in(flag, value))
        recorded.append(redact(word) if is_kept else word.replace(value, "(a secret)"))
    return recorded


def is_reference(value: Any) -> bool:
    """Whether a value of an option, or one in a list, is read from the environment."""
    items = value if isinstance(value, tuple) else (value,)
    return any(isinstance(item, str) and REFERENCE.fullmatch(item) for item in items)


def read_references(value: Any) -> Any:
    """A value of an option, with those of the environment for ``env:NAME``.

    Raises KeyError with the name of a variable that is not set.
    """
    if isinstance(value, tuple):
        return tuple(map(read_references, value))
    found = REFERENCE.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        return value
    secret = os.environ[found[1]]
    if len(secret) >= 4:  # a shorter one would be cut out of every message
        _read[secret] = value
    return secret


def hide_values(text: str) -> str:
    """Put ``env:NAME`` for each value that this process has read from its environment."""
    for secret in sorted(_read, key=len, reverse=True):
        text = text.replace(secret, _read[secret])
    return text


def redact(text: str) -> str:
    """``hide_values``, cut user, password and query from addresses, and keys of known shapes."""
    without_addresses = _QUERY.sub(r"\1", _USER.sub(r"\1", hide_values(text)))
    return _SHAPE.sub("(a secret)", without_addresses)
