"""Where webhooks may go: what a hostile caller writes, and what a name may stand for."""

from __future__ import annotations

import pytest

from tailrace.control.webhooks.target import allowed_address, check_target
from tailrace.errors import InvalidRequest

LISTED = ("hooks.example.com", "inner.example.com:8443", "127.0.0.1:9000", "localhost:9001", "[::1]:9002", "UP.example")


@pytest.mark.parametrize(
    "url",
    [
        "https://hooks.example.com/a?b=c",
        "https://HOOKS.example.com:443/",
        "https://inner.example.com:8443/x",
        "http://127.0.0.1:9000/",
        "https://127.0.0.1:9000/",
        "http://localhost:9001/hook",
        "http://[::1]:9002/",
        "https://up.example",
    ],
)
def test_listed_hosts_are_taken(url: str) -> None:
    check_target(url, LISTED, "webhook")


@pytest.mark.parametrize(
    "url",
    [
        "http://hooks.example.com/",
        "http://hooks.example.com:443/",
        "https://hooks.example.com:8443/",
        "https://inner.example.com/",
        "https://hooks.example.com.evil.net/",
        "https://evil.net/hooks.example.com",
        "https://hooks.example.com@evil.net/",
        "https://user:pass@hooks.example.com/",
        "https://evil.net\\@hooks.example.com/",
        "https://hooks.example.com\\.evil.net/",
        "https://hooks.example.com#@evil.net/",
        "https://hooks.example.com /",
        "https://hooks.example.com\r\nhost: evil.net/",
        "https://hooks.example.com\t/",
        "https://hooks.examplе.com/",
        "http://169.254.169.254/latest/meta-data/",
        "https://169.254.169.254/",
        "http://localhost/",
        "http://127.0.0.1/",
        "http://127.0.0.1:8000/admin/state",
        "http://127.1:9000/",
        "http://0x7f.0.0.1:9000/",
        "http://2130706433:9000/",
        "http://[::ffff:127.0.0.1]:9000/",
        "http://0.0.0.0:9000/",
        "ftp://hooks.example.com/",
        "file:///etc/passwd",
        "//hooks.example.com/",
        "hooks.example.com",
        "https://",
        "https://hooks.example.com:99999/",
        "https://hooks.example.com:x/",
        "https://[::1/",
        "",
        "https://hooks.example.com/" + "a" * 2048,
    ],
)
def test_everything_else_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_target(url, LISTED, "webhook")
    assert (refused.value.param, refused.value.code) == ("webhook", "webhook_not_allowed")


def test_nothing_is_listed_by_default() -> None:
    with pytest.raises(InvalidRequest):
        check_target("https://hooks.example.com/", (), "webhook")


@pytest.mark.parametrize(
    ("host", "address", "allowed"),
    [
        ("hooks.example.com", "93.184.216.34", True),
        ("hooks.example.com", "10.0.0.7", True),
        ("hooks.example.com", "fd00::7", True),
        ("hooks.example.com", "127.0.0.1", False),
        ("hooks.example.com", "127.8.8.8", False),
        ("hooks.example.com", "::1", False),
        ("hooks.example.com", "::ffff:127.0.0.1", False),
        ("hooks.example.com", "169.254.169.254", False),
        ("hooks.example.com", "::ffff:169.254.169.254", False),
        ("hooks.example.com", "fe80::1", False),
        ("hooks.example.com", "0.0.0.0", False),
        ("hooks.example.com", "::", False),
        ("hooks.example.com", "224.0.0.1", False),
        ("169.254.169.254", "169.254.169.254", False),
        ("localhost", "127.0.0.1", True),
        ("localhost", "169.254.169.254", False),
        ("127.0.0.1", "127.0.0.1", True),
    ],
)
def test_what_a_name_may_stand_for(host: str, address: str, allowed: bool) -> None:
    assert allowed_address(host, address) is allowed
