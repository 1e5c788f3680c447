"""No setting holds a secret, and no message repeats an address's password or a variable's value."""

import pytest

from paint.core.credentials import hide_values, read_references, recorded_line, redact, secret_in
from paint.core.errors import ConfigError, PaintError, reason
from paint.core.extensions import plain_options

SECRETS: list[tuple[str, object]] = [
    *(("api_key", "x"), ("api-key", "x"), ("apikey", "abc"), ("OPENAI_API_KEY", "abc")),
    *(("token", "abc"), ("hf_token", "abc"), ("access_token", "x"), ("password", 1234)),
    *(("secret", "x"), ("client_secret", "x"), ("db_password", "a b"), ("api_key", ("a", "b"))),
    *(("url", "http://user:SECRET@h/v1"), ("url", "postgres://u:p@h/db")),
    *(("url", "http://h/v1?api_key=SECRET"), ("url", "http://h/v1?x=1&access_token=abc")),
    *(("line", "env HF_TOKEN=abc vllm serve"), ("line", "serve --api-key SECRET")),
    *(("line", "--hf-token SECRET"), ("line", "--ssl-keyfile-password=SECRET")),
    ("line", "--otlp-traces-endpoint http://me:SECRET@collector"),
]
NO_SECRETS: list[tuple[str, object]] = [
    *(("max_tokens", 5), ("is_secret", True), ("token_budget", "12k9"), ("key", "answer")),
    *(("pad_token", "<|pad|>"), ("stop_token", "Answer1:"), ("problem_key", "problem")),
    *(("secret_word", "Banana1"), ("key_file", "/etc/key.pem"), ("api_key_env", "MY_KEY")),
    *(("api_key", ""), ("api_key", "EMPTY"), ("api_key", "env:X"), ("api_key", None)),
    *(("line", "HF_TOKEN=$HF_TOKEN"), ("line", "--max-num-batched-tokens 2048")),
    *(("url", "http://[fe80::1]:8000"), ("url", "https://h/v1?version=2")),
    *(("url", "ssh://git@github.com/o/r"), ("path", "owner/name:config@split")),
    *(("note", "sk-abc123def456"), ("text", "a token of 5 letters")),
]


@pytest.mark.parametrize(("name", "value"), SECRETS)
def test_secret_is_refused_without_repeating_it(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"read it from the environment: .*{name} env:NAME") as it:
        plain_options("grading.options", {name: value})
    for text in value if isinstance(value, tuple) else (str(value),):
        assert len(text) < 2 or text not in str(it.value)


@pytest.mark.parametrize(("name", "value"), NO_SECRETS)
def test_value_that_is_no_secret_is_accepted(name: str, value: object) -> None:
    assert secret_in(name, value) == ""
    assert plain_options("grading.options", {name: value})[name] == value


def test_recorded_line_leaves_out_secrets() -> None:
    line = ["mine.py", "--api-key", "SECRET", "--token=SECRET", "--steps", "3"]
    kept = ["mine.py", "--api-key", "(a secret)", "--token=(a secret)", "--steps", "3"]
    assert recorded_line([*line, "--url", "http://h/v1?x=1"]) == [*kept, "--url", "http://h/v1"]


def test_redact_cuts_logins_queries_and_values_of_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = "at https://user:S@CRET@h/x?api_key=1, 'https://a@b/c?d' and http://node1:8000/v1"
    cut = "at https://h/x 'https://b/c' and http://node1:8000/v1"
    assert redact(text) == str(PaintError(text)) == reason(ValueError(text)) == cut
    assert hide_values(text) == text
    monkeypatch.setenv("JUDGE_KEY", "n0t-f0r-files")
    assert read_references(("a", "env:JUDGE_KEY")) == ("a", "n0t-f0r-files")
    assert hide_values("401 for n0t-f0r-files") == redact("401 for n0t-f0r-files")
    assert redact("401 for n0t-f0r-files") == "401 for env:JUDGE_KEY"
