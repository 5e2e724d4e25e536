"""Everything that is kept, over one open database. Each part has its own module, with its tables."""

from __future__ import annotations

from tailrace.database.accounts import AccountTables
from tailrace.database.database import Database
from tailrace.database.feedback import FeedbackTable
from tailrace.database.files import Files
from tailrace.database.jobs import Jobs
from tailrace.database.ledger import LedgerTable
from tailrace.database.reporting import Reporting
from tailrace.database.responses import Responses
from tailrace.database.spending import Spending
from tailrace.database.webhooks import Webhooks


class Kept:
    def __init__(self, database: Database) -> None:
        self.database = database
        self.accounts = AccountTables(database)
        self.responses = Responses(database)
        self.webhooks = Webhooks(database)
        self.files = Files(database)
        self.jobs = Jobs(database)
        self.ledger = LedgerTable(database)
        self.feedback = FeedbackTable(database)
        self.spending = Spending(database)
        self.reporting = Reporting(database)

    async def close(self) -> None:
        await self.database.close()
