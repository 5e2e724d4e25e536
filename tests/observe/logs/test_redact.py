"""Secrets do not get into lines, however they got into texts."""

from __future__ import annotations

import pytest

from tailrace.config import load
from tailrace.observe.logs.redact import Redactor, secrets_of

SECRET = "s3cr3t-Value_42"


@pytest.mark.parametrize(
    "text",
    [
        f"Authorization: Bearer {SECRET}",
        f"authorization: bearer   {SECRET}",
        f"{{'authorization': 'Bearer {SECRET}'}}",
        f"[(b'authorization', b'Bearer {SECRET}'), (b'host', b'x')]",
        f"[(b'x-api-key', b'{SECRET}')]",
        f"Authorization: {SECRET}",
        f"Authorization: Basic {SECRET}=",
        f"x-api-key: {SECRET}",
        f"GET /v1/models?api_key={SECRET}&x=1",
        f"password={SECRET} host=db",
        f'{{"password": "{SECRET}"}}',
        f"access_token='{SECRET}'",
        f"redis://:{SECRET}@cache:6379/0 does not answer",
        f"postgresql+asyncpg://tailrace:{SECRET}@db/tailrace",
        f"could not connect to https://me:{SECRET}@host/path: refused",
        f"unknown key sk-{SECRET}",
        f"KeyError: 'sk-{SECRET}'",
        f"Cookie: {SECRET}",
    ],
)
def test_what_looks_like_a_secret_is_hidden(text: str) -> None:
    hidden = Redactor()(text)
    assert SECRET not in hidden and "***" in hidden
    assert Redactor()(hidden) == hidden


@pytest.mark.parametrize(
    "text",
    [
        "request req-0af7651916cd43dd8448eb211c80319c failed",
        "max_tokens=5, completion_tokens: 12",
        "a bearer of bad news",
        "http://127.0.0.1:8000/v1/models",
        "mail me@example.com about http://host/x",
        "the password is wrong",
        "stopping: refusing new work, finishing what runs",
    ],
)
def test_other_texts_stay_as_they_are(text: str) -> None:
    assert Redactor()(text) == text


def test_the_settings_own_secrets_are_hidden_wherever_they_stand() -> None:
    flags = {
        "data.database": "postgresql://tailrace:p%40ss%2Fword@db/tailrace",
        "control.limits_url": "redis://:hunter22@cache:6379/0",
        "observe.otlp_endpoint": "https://me:open-sesame@collector",
        "observe.otlp_headers": ["x-token=abra=cadabra"],
    }
    hide = Redactor(secrets_of(load(environ={}, flags=flags).config))
    for secret in ("p%40ss%2Fword", "p@ss/word", "hunter22", "open-sesame", "abra=cadabra"):
        assert hide(f"FATAL: {secret!r} is not it, said {secret}") == "FATAL: '***' is not it, said ***"


def test_settings_without_secrets_hide_nothing() -> None:
    hide = Redactor(secrets_of(load(environ={}, flags={"control.limits_url": "redis://:abc@[bad"}).config))
    assert hide("abc") == "abc"


def test_long_texts_take_little_time_each() -> None:
    text = "://" + "a" * 50_000 + " password" * 5_000 + " sk-" * 5_000
    assert len(Redactor()(text)) == len(text)
