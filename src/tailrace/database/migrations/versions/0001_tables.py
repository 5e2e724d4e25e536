"""All tables, as of the first version that has any."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    _responses()
    _webhooks()
    _ledger()
    _jobs()
    _files()
    _feedback()
    _accounts()


def _feedback() -> None:
    op.create_table(
        "feedback",
        sa.Column("entry_id", sa.Text, nullable=False),
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("success", sa.Boolean),
        sa.Column("score", sa.Float, nullable=False),
        sa.Column("task", sa.Text, nullable=False),
        sa.Column("comment", sa.Text, nullable=False),
        sa.Column("at", sa.Float, nullable=False),
        sa.PrimaryKeyConstraint("entry_id", name="pk_feedback"),
    )


def _ledger() -> None:
    op.create_table(
        "ledger",
        sa.Column("entry_id", sa.Text, nullable=False),
        sa.Column("request_id", sa.Text, nullable=False),
        sa.Column("answer_id", sa.Text, nullable=False),
        sa.Column("server", sa.Text, nullable=False),
        sa.Column("opened", sa.Float, nullable=False),
        sa.Column("ended", sa.Float, nullable=False),
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("task", sa.Text, nullable=False),
        sa.Column("route", sa.Text, nullable=False),
        sa.Column("origin", sa.Text, nullable=False),
        sa.Column("job_id", sa.Text, nullable=False),
        sa.Column("request_class", sa.Text, nullable=False),
        sa.Column("class_reason", sa.Text, nullable=False),
        sa.Column("bucket", sa.Text, nullable=False),
        sa.Column("attachments", sa.Integer, nullable=False),
        sa.Column("tools", sa.Boolean, nullable=False),
        sa.Column("streamed", sa.Boolean, nullable=False),
        sa.Column("model_asked", sa.Text, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("adapter", sa.Text, nullable=False),
        sa.Column("weights_format", sa.Text, nullable=False),
        sa.Column("kv_format", sa.Text, nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger, nullable=False),
        sa.Column("cached_tokens", sa.BigInteger, nullable=False),
        sa.Column("completion_tokens", sa.BigInteger, nullable=False),
        sa.Column("drafted_tokens", sa.BigInteger, nullable=False),
        sa.Column("accepted_tokens", sa.BigInteger, nullable=False),
        sa.Column("recomputed_tokens", sa.BigInteger, nullable=False),
        sa.Column("preemptions", sa.BigInteger, nullable=False),
        sa.Column("kv_blocks", sa.BigInteger, nullable=False),
        sa.Column("phases", sa.Text, nullable=False),
        sa.Column("queue_us", sa.BigInteger, nullable=False),
        sa.Column("ttft_us", sa.BigInteger),
        sa.Column("tpot_us", sa.Float),
        sa.Column("total_us", sa.BigInteger, nullable=False),
        sa.Column("device_us", sa.BigInteger, nullable=False),
        sa.Column("measured_us", sa.BigInteger, nullable=False),
        sa.Column("outcome", sa.Text, nullable=False),
        sa.Column("status", sa.Integer, nullable=False),
        sa.Column("error_code", sa.Text, nullable=False),
        sa.Column("error_domain", sa.Text, nullable=False),
        sa.Column("predicted_ttft", sa.Float),
        sa.Column("deadline_met", sa.Boolean),
        sa.Column("decisions", sa.Text, nullable=False),
        sa.Column("price", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("entry_id", name="pk_ledger"),
    )
    op.create_index("ix_ledger_tenant_entry_id", "ledger", ["tenant", "entry_id"])
    op.create_index("ix_ledger_tenant_ended", "ledger", ["tenant", "ended"])
    op.create_index("ix_ledger_request_id", "ledger", ["request_id"])
    op.create_index("ix_ledger_answer_id", "ledger", ["answer_id"])


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


def _webhooks() -> None:
    op.create_table(
        "webhooks",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("url", sa.Text, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("due", sa.Float),
        sa.Column("status", sa.Integer),
        sa.Column("error", sa.Text),
        sa.Column("created", sa.Float, nullable=False),
    )
    op.create_index("ix_webhooks_subject", "webhooks", ["subject"])
    op.create_index("ix_webhooks_due", "webhooks", ["due"])


def _jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("endpoint", sa.Text, nullable=False),
        sa.Column("created", sa.Float, nullable=False),
        sa.Column("expires", sa.Float, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("ends_as", sa.Text, nullable=False),
        sa.Column("window", sa.Text, nullable=False),
        sa.Column("input_file", sa.Text, nullable=False),
        sa.Column("output_file", sa.Text, nullable=False),
        sa.Column("error_file", sa.Text, nullable=False),
        sa.Column("metadata", sa.Text, nullable=False),
        sa.Column("errors", sa.Text, nullable=False),
        sa.Column("started", sa.Float),
        sa.Column("finalizing", sa.Float),
        sa.Column("cancelling", sa.Float),
        sa.Column("ended", sa.Float),
        sa.Column("total", sa.BigInteger, nullable=False),
        sa.Column("counts", sa.Text, nullable=False),
        sa.Column("owner", sa.Text),
        sa.Column("lease", sa.Float),
    )
    op.create_index("ix_jobs_state", "jobs", ["state"])
    op.create_index("ix_jobs_tenant_kind_created", "jobs", ["tenant", "kind", "created"])
    op.create_table(
        "job_lines",
        sa.Column("job", sa.Text, nullable=False),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("custom_id", sa.Text, nullable=False),
        sa.Column("url", sa.Text, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("faults", sa.Integer, nullable=False),
        sa.Column("owner", sa.Text),
        sa.Column("lease", sa.Float),
        sa.Column("status", sa.Integer, nullable=False),
        sa.Column("response", sa.Text, nullable=False),
        sa.Column("entry_id", sa.Text, nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger, nullable=False),
        sa.Column("cached_tokens", sa.BigInteger, nullable=False),
        sa.Column("completion_tokens", sa.BigInteger, nullable=False),
        sa.Column("finished", sa.Float),
        sa.PrimaryKeyConstraint("job", "number", name="pk_job_lines"),
    )
    op.create_index("ix_job_lines_job_state_number", "job_lines", ["job", "state", "number"])
    op.create_index("ix_job_lines_state_owner", "job_lines", ["state", "owner"])


def _files() -> None:
    op.create_table(
        "files",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("purpose", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("size", sa.BigInteger, nullable=False),
        sa.Column("created", sa.Float, nullable=False),
    )
    op.create_index("ix_files_tenant_created", "files", ["tenant", "created"])
    op.create_table(
        "file_chunks",
        sa.Column("file", sa.Text, nullable=False),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("data", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("file", "number", name="pk_file_chunks"),
    )


def _accounts() -> None:
    op.create_table(
        "account_version",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("version", sa.Integer, nullable=False),
    )
    op.create_table(
        "account_tenants",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("fields", sa.Text, nullable=False),
        sa.Column("deleted", sa.Boolean, nullable=False),
    )
    op.create_table(
        "account_keys",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("hash", sa.Text, nullable=False),
        sa.Column("scopes", sa.Text, nullable=False),
        sa.Column("limits", sa.Text, nullable=False),
        sa.Column("created", sa.Float, nullable=False),
        sa.Column("expires", sa.Float, nullable=False),
        sa.Column("revoked", sa.Float, nullable=False),
    )
    op.create_table(
        "audit",
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("action", sa.Text, nullable=False),
        sa.Column("target", sa.Text, nullable=False),
        sa.Column("status", sa.Integer, nullable=False),
        sa.Column("error", sa.Text, nullable=False),
        sa.Column("before", sa.Text),
        sa.Column("after", sa.Text),
        sa.Column("request_id", sa.Text, nullable=False),
        sa.Column("server", sa.Text, nullable=False),
    )
    op.create_index("ix_audit_at", "audit", ["at"])
