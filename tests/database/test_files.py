"""Files in a real database."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tailrace.database.database import Database
from tailrace.database.file import StoredFile
from tailrace.database.files import CHUNK, Files


@pytest.fixture
async def files(url: str) -> AsyncIterator[Files]:
    database = Database(url)
    await database.open()
    yield Files(database)
    await database.close()


async def put(files: Files, name: str, created: float, data: bytes = b"x", tenant: str = "acme") -> StoredFile:
    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(data), 1000):
            yield data[start : start + 1000]

    size = await files.write(name, pieces())
    assert await files.write(name, pieces()) == size == len(data)
    file = StoredFile(name, tenant, "batch", "a.jsonl", size, created)
    await files.add(file)
    return file


async def content(files: Files, name: str) -> bytes:
    return b"".join([piece async for piece in files.content(name)])


async def test_what_was_written_is_read(files: Files) -> None:
    data = bytes(range(256)) * (CHUNK // 128) + b"end"
    file = await put(files, "file-1", 1.0, data)
    assert await content(files, "file-1") == data
    assert await files.find("acme", "file-1") == file and await files.find("other", "file-1") is None
    assert not await files.delete("other", "file-1")
    assert await files.delete("acme", "file-1")
    assert await content(files, "file-1") == b"" and await files.find("acme", "file-1") is None


async def test_pages_and_forgetting(files: Files) -> None:
    for number in range(25):
        await put(files, f"file-{number:02}", float(number), tenant="acme" if number % 2 else "other")
    newest = await files.page("acme", None, None, 2, newest_first=True)
    assert newest is not None and [each.id for each in newest] == ["file-23", "file-21"]
    behind = await files.page("acme", "batch", "file-03", 2, newest_first=False)
    assert behind is not None and [each.id for each in behind] == ["file-05", "file-07"]
    assert await files.page("acme", "other", None, 2, newest_first=False) == []
    assert await files.page("acme", None, "file-02", 2, newest_first=False) is None
    await files.forget(23.0)
    left = await files.page("acme", None, None, 99, newest_first=False)
    assert left is not None and [each.id for each in left] == ["file-23"]
    assert await content(files, "file-05") == b""
