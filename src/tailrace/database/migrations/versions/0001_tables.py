"""All tables, as of the first version that has any."""

revision = "0001"
down_revision = None


def upgrade() -> None:
    pass


def downgrade() -> None:
    raise NotImplementedError("an older version of tailrace cannot use a newer one's database")
