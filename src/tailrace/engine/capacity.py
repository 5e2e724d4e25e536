"""How many KV blocks this machine has memory for. Reads what the kernel says; decides one number."""

from __future__ import annotations

from pathlib import Path

from tailrace.engine.kv.stored import Kv
from tailrace.errors import ConfigError
from tailrace.frozen import frozen

_SHARE = 0.5  # of the memory that is free now; the rest is for the page cache, Python and the neighbours
_ROOT = Path("/")


@frozen
class Capacity:
    """`reason` says what bounded it: "asked", "free_memory" or "all_contexts" (more could never be used at once); `kv`
    how keys and values are stored."""

    blocks: int
    block_bytes: int
    block_tokens: int
    reason: str
    kv: Kv = "bf16"

    @property
    def tokens(self) -> int:
        return self.blocks * self.block_tokens

    def __str__(self) -> str:
        size = self.blocks * self.block_bytes / 2**20
        why = {"asked": "as asked", "free_memory": "from free memory", "all_contexts": "every sequence at full length"}
        held = f"{self.tokens:,} tokens in {self.blocks:,} blocks"
        return f"{self.kv} KV cache {size:,.0f} MiB: {held} ({why[self.reason]})"


def kv_capacity(
    asked_bytes: int,
    block_bytes: int,
    *,
    max_blocks: int,
    max_sequences: int,
    block_tokens: int = 64,
    free: int | None = None,
    kv: Kv = "bf16",
    models: int = 1,
) -> Capacity:
    """Blocks for `asked_bytes`, or when that is 0 for half of the free memory (`free` bytes, or what is free now); of
    several `models` each gets its part of that half.

    Unasked never more than twice what all sequences need at full length (`max_blocks` each); the second half is for
    cached prefixes. Raises ConfigError when not even one block fits.
    """
    if asked_bytes:
        if asked_bytes < block_bytes:
            raise ConfigError(
                f"kv_memory is {asked_bytes} bytes but one block of {block_tokens} tokens takes {block_bytes}: "
                f"give at least that",
                param="kv_memory",
            )
        return Capacity(asked_bytes // block_bytes, block_bytes, block_tokens, "asked", kv)
    free = available_memory() if free is None else free
    most = 2 * max_blocks * max_sequences
    blocks = int(free * _SHARE / models) // block_bytes
    if blocks < 1:
        raise ConfigError(
            f"{free} bytes of memory are free; the KV cache needs at least {2 * block_bytes}: free some memory or set "
            "kv_memory",
            param="kv_memory",
        )
    if blocks > most:
        return Capacity(most, block_bytes, block_tokens, "all_contexts", kv)
    return Capacity(blocks, block_bytes, block_tokens, "free_memory", kv)


def check_asked(asked_bytes: int) -> None:
    """Raises ConfigError when more is asked for than there is: the kernel would give it, and kill us on using it."""
    if asked_bytes and asked_bytes > (free := available_memory()):
        raise ConfigError(
            f"kv_memory is {asked_bytes} bytes but {free} bytes of memory are free: give at most that, or 0 for half",
            param="kv_memory",
        )


def available_memory(root: Path = _ROOT) -> int:
    """Bytes that can be allocated without swapping: the machine's, or what the control groups leave if less."""
    free = _meminfo(root / "proc/meminfo")
    return max(0, min([free, *_cgroup_free(root)]))


def _meminfo(path: Path) -> int:
    for line in path.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise ConfigError("free memory is unknown here: set kv_memory", param="kv_memory")


def _cgroup_free(root: Path) -> list[int]:
    """What each control group from this process's up to the root still allows; version 2, then version 1."""
    base = root / "sys/fs/cgroup"
    folder, found = base / _own_cgroup(root / "proc/self/cgroup"), []
    while folder.is_relative_to(base):
        found.append(_left(folder, "memory.max", "memory.current", "inactive_file"))
        folder = folder.parent
    old = base / "memory"
    found.append(_left(old, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"))
    return [free for free in found if free is not None]


def _own_cgroup(path: Path) -> str:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return ""
    return next((line[3:].strip().strip("/") for line in lines if line.startswith("0::")), "")


def _left(folder: Path, limit: str, used: str, cache: str) -> int | None:
    """Limit - used, where file pages that can be dropped at once do not count as used; None without a limit."""
    try:
        most = (folder / limit).read_text().strip()
        if most == "max":
            return None
        pairs = (line.split() for line in (folder / "memory.stat").read_text().splitlines())
        droppable = next((int(value) for name, value in pairs if name == cache), 0)
        return int(most) - int((folder / used).read_text()) + droppable
    except (OSError, ValueError):
        return None
