"""What tenants and keys have spent, as the ledger has it: where their budgets stand after a restart."""

from __future__ import annotations

from sqlalchemy import func, select

from tailrace.database.database import Database
from tailrace.database.ledger import ledger


class Spending:
    """Raises Unavailable where the database is away."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def since(self, begin: float, tenant: str, key: str | None = None) -> int:
        """Millionths that a tenant, or one key of it, was charged for requests that ended then or later."""
        query = select(func.sum(ledger.c.price)).where(ledger.c.tenant == tenant, ledger.c.ended >= begin)
        if key is not None:
            query = query.where(ledger.c.key == key)
        async with self._database.read() as connection:
            return int((await connection.execute(query)).scalar() or 0)
