"""All tables, as of the first version that has any."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    _responses()


def downgrade() -> None:
    raise NotImplementedError("an older version of tailrace cannot use a newer one's database")


def _responses() -> None:
    op.create_table(
        "responses",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("previous", sa.Text),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("input", sa.Text, nullable=False),
        sa.Column("created", sa.Float, nullable=False),
    )
    op.create_index("ix_responses_created", "responses", ["created"])
