"""The screen of `tailrace top`: tables that follow a server each second, and three things an operator can do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Input, Label, Static

from tailrace.cli.top import parts
from tailrace.cli.top.source import Source, State
from tailrace.errors import TailraceError

Cells = tuple[str, ...]


class Ask(ModalScreen[str | None]):
    """A question with a line to answer; escape gives None."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape", "leave", "leave it")]
    DEFAULT_CSS = (
        "Ask { align: center middle; } Ask Vertical { width: 64; height: auto; border: round $accent; padding: 1 2; }"
    )

    def __init__(self, question: str, value: str = "") -> None:
        super().__init__()
        self._question = question
        self._value = value

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Label(self._question)
            yield Input(self._value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value.strip())

    def action_leave(self) -> None:
        self.dismiss(None)


class Top(App[None]):
    """`source` is asked every `every` seconds. A server that does not answer is said so, and asked again."""

    TITLE = "tailrace top"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "quit"),
        Binding("p", "pause", "pause"),
        Binding("c", "cancel", "cancel request"),
        Binding("w", "weight", "weight of tenant"),
        Binding("l", "limit", "limit of tenant"),
    ]
    CSS = """
    #head, #map, #step, #rejects, #said { height: 1; padding: 0 1; }
    #said { color: $warning; }
    DataTable { height: 1fr; border: round $primary-darken-1; border-title-color: $text; }
    #upper { height: 2fr; } #lower { height: 3fr; }
    #running { width: 3fr; } #queues, #tenants { width: 2fr; } #tails { width: 2fr; }
    """

    def __init__(self, source: Source, every: float = 1.0) -> None:
        super().__init__()
        self._source = source
        self._every = every
        self._paused = False

    def compose(self) -> ComposeResult:
        yield Static(id="head")
        yield Static(id="map")
        yield Static(id="step")
        yield Static(id="rejects")
        with Horizontal(id="upper"):
            yield self._table("queues", "waiting", parts.QUEUES)
            yield self._table("tails", "last 512 requests", parts.TAILS)
        with Horizontal(id="lower"):
            yield self._table("running", "running", parts.RUNNING)
            yield self._table("tenants", "tenants", parts.TENANTS)
        yield Static(id="said")
        yield Footer()

    async def on_mount(self) -> None:
        self.query_one("#running", DataTable).focus()
        self.set_interval(self._every, self._tick)
        self._tick()

    async def on_unmount(self) -> None:
        await self._source.close()

    # --- following

    def _tick(self) -> None:
        if not self._paused:
            self.follow()

    @work(exclusive=True, group="follow")
    async def follow(self) -> None:
        """Ask once and show."""
        try:
            state = await self._source.state()
        except TailraceError as error:
            self._say(error.message)
            return
        self._say("")
        self.show(state)

    def show(self, state: State) -> None:
        self.query_one("#head", Static).update(parts.headline(state, self._source.name))
        self.query_one("#map", Static).update(parts.kv_map(state))
        self.query_one("#step", Static).update(parts.step_line(state))
        self.query_one("#rejects", Static).update(parts.reject_line(state))
        self._fill("queues", parts.queue_rows(state))
        self._fill("running", parts.running_rows(state))
        self._fill("tenants", parts.tenant_rows(state))
        self._fill("tails", parts.tail_rows(state))

    # --- acting

    def action_pause(self) -> None:
        self._paused = not self._paused
        self._say("paused; p goes on" if self._paused else "")

    @work
    async def action_cancel(self) -> None:
        request_id = self._chosen("running")
        if request_id is None:
            self._say("no request is running")
        elif await self._confirmed(f"Cancel {request_id}? Its client gets an error. Type yes"):
            await self._do(self._source.cancel(request_id), f"{request_id} is cancelled")

    @work
    async def action_weight(self) -> None:
        tenant = self._chosen("tenants")
        if tenant is None:
            return
        found = await self.push_screen_wait(Ask(f"Weight of {tenant}, against 1 of others"))
        weight = _number(found)
        if weight is None or weight <= 0:
            self._say("" if found is None else f"{found!r} is no weight: a number above 0 is")
        else:
            await self._do(self._source.change(tenant, {"weight": weight}), f"{tenant} has weight {weight:g} now")

    @work
    async def action_limit(self) -> None:
        tenant = self._chosen("tenants")
        if tenant is None:
            return
        found = await self.push_screen_wait(Ask(f"Limit of {tenant}: NAME=NUMBER, such as requests_per_minute=60"))
        name, _, value = (found or "").partition("=")
        number = _number(value)
        if found is None or number is None or number < 0:
            self._say("" if found is None else f"{found!r} is no limit: NAME=NUMBER is, with 0 for none")
        else:
            change = self._source.change(tenant, {"limits": {name.strip(): number}})
            await self._do(change, f"{tenant}: {name.strip()} is {number:g} now")

    # --- inside

    async def _confirmed(self, question: str) -> bool:
        answer: str | None = await self.push_screen_wait(Ask(question))
        return answer in ("y", "yes")

    async def _do(self, action: Any, said: str) -> None:
        try:
            await action
        except TailraceError as error:
            self.notify(error.message, severity="error")
            return
        self.follow()
        self.notify(said)

    def _say(self, text: str) -> None:
        self.query_one("#said", Static).update(text)

    def _table(self, name: str, title: str, columns: Cells) -> DataTable[Text]:
        table: DataTable[Text] = DataTable(id=name, cursor_type="row", zebra_stripes=True)
        table.border_title = title
        for column in columns:
            table.add_column(column, key=column)
        return table

    def _chosen(self, name: str) -> str | None:
        """The key of the row under the cursor."""
        table = self.query_one(f"#{name}", DataTable)
        if not table.row_count:
            return None
        return table.coordinate_to_cell_key(table.cursor_coordinate).row_key.value

    def _fill(self, name: str, rows: Iterable[tuple[str, Cells]]) -> None:
        """Put rows in; the cursor stays on its row when that is still there."""
        table = self.query_one(f"#{name}", DataTable)
        chosen = self._chosen(name)
        keys = []
        table.clear()
        for key, cells in rows:
            table.add_row(*map(Text, cells), key=key)
            keys.append(key)
        if chosen in keys:
            table.move_cursor(row=keys.index(chosen))


def _number(text: str | None) -> float | None:
    try:
        return float(text or "")
    except ValueError:
        return None
