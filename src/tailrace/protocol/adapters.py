"""Bodies of the routes that load and unload adapters, as vLLM has them."""

from __future__ import annotations

from pydantic import Field

from tailrace.protocol.body import Shape


class UnloadAdapter(Shape):
    lora_name: str = Field(min_length=1)


class LoadAdapter(UnloadAdapter):
    """`base_model_name` is ours, for servers of several models; the first where there is none."""

    lora_path: str = Field(min_length=1)
    base_model_name: str | None = None
    load_inplace: bool | None = None
