"""/ui: its files with the right types and headers, nothing beside them, and pages of others kept out of /admin."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from importlib.resources import files

import httpx
import pytest

from tests.serving import in_process, live, make_state, patient

FOLDER = files("tailrace.api") / "web"


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with in_process(make_state()) as made:
        yield made


@pytest.mark.parametrize("path", ["/", "/ui"])
async def test_the_view_is_found(client: httpx.AsyncClient, path: str) -> None:
    answer = await client.get(path)
    assert (answer.status_code, answer.headers["location"]) == (307, "ui/")
    assert (await client.get(path, follow_redirects=True)).text == (FOLDER / "index.html").read_text()


@pytest.mark.parametrize(
    ("name", "media_type"),
    [
        ("", "text/html; charset=utf-8"),
        ("index.html", "text/html; charset=utf-8"),
        ("app.js", "text/javascript; charset=utf-8"),
        ("pages/live.js", "text/javascript; charset=utf-8"),
        ("base.css", "text/css; charset=utf-8"),
        ("mark.svg", "image/svg+xml"),
    ],
)
async def test_a_file_has_its_type_and_says_what_a_page_may(
    client: httpx.AsyncClient, name: str, media_type: str
) -> None:
    answer = await client.get(f"/ui/{name}")
    assert (answer.status_code, answer.headers["content-type"]) == (200, media_type)
    policy = dict(line.split(" ", 1) for line in answer.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert policy["script-src"] == policy["connect-src"] == "'self'"
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"


async def test_a_file_that_is_known_is_not_sent_again(client: httpx.AsyncClient) -> None:
    first = await client.get("/ui/app.js")
    again = await client.get("/ui/app.js", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", first.headers["etag"])
    assert first.headers["cache-control"] == "no-cache"
    assert (await client.get("/ui/app.js", headers={"if-none-match": '"another"'})).status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/ui/../server.py", "/ui/%2e%2e/server.py", "/ui/..%2fserver.py", "/ui//etc/passwd", "/ui/%2fetc/passwd",
        "/ui/pages", "/ui/pages/", "/ui/pages/../../auth.py", "/ui/app.js/", "/ui/APP.JS", "/ui/app.js%00",
        "/ui/..\\server.py", "/ui/%5c..%5cserver.py", "/ui/none.js",
    ],
)  # fmt: skip
async def test_nothing_else_is_served(path: str) -> None:
    async with live(make_state()) as base, patient() as client:
        request = client.build_request("GET", base)
        request.url = request.url.copy_with(raw_path=path.encode())  # as it is, without tidying the dots
        answer = await client.send(request)
    assert answer.status_code == 404
    assert "def " not in answer.text


async def test_scripts_make_no_markup_and_no_page_asks_anybody_else() -> None:
    names = [f"{folder}{each.name}" for folder in ("", "pages/") for each in (FOLDER / folder).iterdir()]
    assert len(names) > 20
    for name in names:
        if (FOLDER / name).is_file():
            text = (FOLDER / name).read_text(encoding="utf-8")
            assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text)
            assert not re.search(r"(?:src|href|from|import|url\()\W{0,3}https?://", text), name


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"origin": "http://localhost:8000"}, 200),
        ({"origin": "http://localhost:8000", "sec-fetch-site": "same-origin"}, 200),
        ({"sec-fetch-site": "none"}, 200),
        ({"origin": "http://localhost:3000"}, 403),  # another server of this machine
        ({"origin": "https://localhost:8000"}, 403),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"host": "evil.example:8000"}, 403),  # a name that leads here, made by whoever owns it
        ({"host": "evil.example:8000", "origin": "http://evil.example:8000", "sec-fetch-site": "same-origin"}, 403),
        ({"host": "localhost.evil.example", "origin": "http://localhost.evil.example"}, 403),
    ],
)
async def test_an_open_server_is_steered_from_its_own_page_alone(headers: dict[str, str], status: int) -> None:
    async with in_process(make_state()) as client:
        sent = {"host": "localhost:8000"} | headers
        assert (await client.get("/admin/state", headers=sent)).status_code == status
        answer = await client.post("/admin/requests/none/cancel", headers=sent)
        assert answer.status_code == (404 if status == 200 else status)


async def test_a_host_that_is_no_name_of_this_machine_is_refused() -> None:
    async with live(make_state()) as base, patient() as client:
        for host in ("[", "[::1", "a b", "localhost:99999999", "localhost@evil.example"):
            assert (await client.get(base + "/admin/state", headers={"host": host})).status_code == 403, host
