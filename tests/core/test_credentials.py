"""No setting holds a secret, and no message repeats an address's password or a variable's value."""

import pytest

from paint.core.credentials import (
    hide_values,
    read_references,
    recorded_line,
    redact,
    secret_in,
)
from paint.core.errors import ConfigError, PaintError, reason
from paint.core.extensions import plain_options

SECRETS: dict[str, list[tuple[str, object]]] = {
    "a name": [
        *(("api_key", "x"), ("api-key", "x"), ("apikey", "abc"), ("OPENAI_API_KEY", "abc")),
        *(("judge_key", "hunter"), ("judgeToken", "abc"), ("hf_token", "abc"), ("hftoken", "abc")),
        *(("token", "SECRET"), ("token", "abc123def"), ("my_token", "Abc12"), ("key", "SECRET")),
        *(("access_token", "x"), ("private_key", "x"), ("api_keys", "a"), ("password", 1234)),
        *(("secret", "x"), ("client_secret", "x"), ("clientsecret", "x"), ("mypassword", "x")),
        *(("password", "hunter"), ("db_password", "a b"), ("passwd", "x"), ("passphrase", "x")),
        *(("credential", "x"), ("credentials", "{...}"), ("authorization", "x"), ("bearer", "x")),
        *(("auth", "user:Word1"), ("cookie", "session=Abc12"), ("api_key_2", "x")),
    ],
    "a login": [
        *(("url", "http://user:SECRET@h/v1"), ("url", "https://tok3n@h/v1")),
        *(("url", "postgres://u:p@h/db"), ("url", "ssh://u:p@h"), ("url", "me:SECRET@node1:8000")),
    ],
    "a query": [
        *(("url", "http://h/v1?api_key=SECRET"), ("url", "http://h/v1?x=1&access_token=abc")),
        *(("url", "http://h/v1?key=AIzaXYZ"), ("url", "https://b/x?X-Amz-Signature=ab")),
    ],
    "a header": [
        *(("headers", "Authorization: Bearer SECRET"), ("headers", "X-Api-Key: abc123")),
        *(("headers", '{"Authorization": "Bearer abc"}'), ("headers", "Bearer SECRET")),
        ("server", "bash -c 'curl -H \"Authorization: Bearer SECRET\"'"),
    ],
    "a shape": [
        *(("note", "sk-SECRET"), ("note", "sk-proj-abc123def456")),
        *(("note", "hf_abcdefghijklmnopqrst"), ("note", "ghp_0123456789abcdef0123")),
        *(("note", "of which sk-SECRET is one"), ("notes", ("a", "sk-SECRET"))),
    ],
    "a pair": [
        *(("extra", "password=hunter2"), ("extra", "token=Abc123xyz")),
        ("extra", '{"api_key": "abc"}'),
    ],
}
NO_SECRETS: dict[str, list[tuple[str, object]]] = {
    "numbers": [
        *(("max_tokens", 5), ("max_tokens", "5"), ("skip_tokens", 5), ("session_tokens", 100)),
        *(("n_secrets", 5), ("is_secret", True), ("token_budget", "12k9"), ("key", 12)),
    ],
    "tokens": [
        *(("tokens", "a b D1"), ("token_weights", "a"), ("thinking_tokens", "a1B")),
        *(("pad_token", "<|pad|>"), ("pad_token", "PAD0"), ("eos_token", "<|im_end|>")),
        *(("stop_token", "Answer1:"), ("token", "<think>"), ("token_path", "/a/B1")),
    ],
    "fields": [
        *(("problem_key", "problem"), ("problem_key", "Problem1"), ("answer_key", "Final_2")),
        *(("key", "answer"), ("key", "problem_text"), ("sort_key", "Score1"), ("keys", "a,B1")),
        *(("keyword", "Abc123"), ("monkey", "Abc123"), ("author", "Bob1"), ("auth", "basic")),
        *(("password_field", "Pw1"), ("secret_word", "Banana1"), ("key_file", "/etc/key.pem")),
    ],
    "places of keys": [
        *(("api_key", ""), ("api_key", "EMPTY"), ("api_key", "env:X"), ("api_key", None)),
        *(("api_key_env", "MY_KEY"), ("line", "HF_TOKEN=$HF_TOKEN")),
    ],
    "addresses": [
        *(("url", "http://localhost:8001/v1"), ("url", "http://[fe80::1]:8000")),
        *(("url", "https://h/v1?version=2"), ("url", "https://medium.com/@user/post")),
        *(("url", "ssh://git@github.com/o/r"), ("url", "git@github.com:o/r")),
        *(("path", "owner/name:config@split"), ("path", "gsm8k:main@train"), ("path", "x@y/z")),
        *(("path", "hf://datasets/o/n@main/x"), ("path", "hf_Llama3_8B"), ("path", "sk-learn-1.0")),
    ],
    "prose": [
        *(("text", "bearer bonds are paid"), ("text", "Use Bearer Tokens")),
        *(("text", "Answer key: B2"), ("text", "mail me@example.com")),
        *(("text", "mailto:me@example.com"), ("text", "{{ rows | sort(key=problem) }}")),
        ("args", "--max-num-batched-tokens 2048 --tokenizer-mode slow"),
    ],
}


@pytest.mark.parametrize(("name", "value"), [case for cases in SECRETS.values() for case in cases])
def test_secret_is_refused_without_repeating_it(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"read it from the environment: .*{name} env:NAME") as it:
        plain_options("grading.options", {name: value})
    for text in value if isinstance(value, tuple) else (str(value),):
        assert len(text) < 2 or text not in str(it.value)


@pytest.mark.parametrize(
    ("name", "value"), [case for cases in NO_SECRETS.values() for case in cases]
)
def test_value_that_is_no_secret_is_accepted(name: str, value: object) -> None:
    assert secret_in(name, value) == ""
    assert plain_options("grading.options", {name: value})[name] == value


def test_recorded_line_leaves_out_secrets() -> None:
    line = ["mine.py", "--api-key", "SECRET", "--token=SECRET", "--steps", "3", "sk-SECRET"]
    kept = ["mine.py", "--api-key", "(a secret)", "--token=(a secret)", "--steps", "3"]
    assert recorded_line([*line, "--url", "http://h/v1?x=1"]) == [
        *(*kept, "(a secret)"),
        *("--url", "http://h/v1"),
    ]


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


@pytest.mark.parametrize("text", [text for _, text in SECRETS["a shape"] if isinstance(text, str)])
def test_redact_cuts_what_has_the_shape_of_a_key(text: str) -> None:
    assert "(a secret)" in redact(f"401 for key {text}, try again")
    assert not secret_in("note", redact(text))
    assert redact("scikit: sk-learn, 401 for key 0123456789abcdef") == (
        "scikit: sk-learn, 401 for key 0123456789abcdef"
    )
