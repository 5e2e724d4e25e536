"""A look at the web view as a user has it, which notes everything that must not happen."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from playwright.async_api import BrowserContext, ConsoleMessage, Dialog, Page, Request, Route, expect

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
TIMEOUT = 60_000  # milliseconds; it only ends what hangs


@dataclass
class Visit:
    """`complaints`: errors on the console, uncaught ones, dialogs, requests to other hosts, what the policy stopped.
    A test that provokes a refusal names its status in `expected`: the console mentions each."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    urls: list[str] = field(default_factory=list)
    expected: list[int] = field(default_factory=list)
    host: str = ""

    @classmethod
    async def begin(cls, context: BrowserContext) -> Visit:
        context.set_default_timeout(TIMEOUT)
        expect.set_options(timeout=TIMEOUT)
        made = cls(await context.new_page())
        await context.route("**/*", made._asked)
        await made.page.add_init_script(
            "addEventListener('securitypolicyviolation', (e) => console.error('stopped', e.violatedDirective))"
        )
        made.page.on("console", made._said)
        made.page.on("pageerror", lambda error: made.complaints.append(f"uncaught: {error}"))
        made.page.on("dialog", made._asked_user)
        return made

    async def open(self, base: str, page: str = "playground") -> Page:
        self.host = urlsplit(base).netloc
        await self.page.goto(f"{base}/ui/#/{page}")
        await self.page.wait_for_selector("#nav a[aria-current]")
        return self.page

    async def ask(self, text: str) -> None:
        """Send, and wait for the answer's figures."""
        answered = await self.page.locator(".facts-line").count()
        await self.page.fill("#composer", text)
        await self.page.keyboard.press("Enter")
        await self.page.locator(".facts-line").nth(answered).wait_for()

    async def _asked(self, route: Route, request: Request) -> None:
        self.urls.append(request.url)
        if urlsplit(request.url).netloc != self.host:
            self.complaints.append(f"asked {request.url}")
            await route.abort()
        else:
            await route.continue_()

    async def _asked_user(self, dialog: Dialog) -> None:
        self.complaints.append(f"dialog: {dialog.message}")
        await dialog.dismiss()

    def _said(self, message: ConsoleMessage) -> None:
        if message.type not in ("error", "warning"):
            return
        if not any(f"status of {status}" in message.text for status in self.expected):
            self.complaints.append(f"{message.type}: {message.text}")
