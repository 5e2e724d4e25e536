"""What the files of a model are called. Names only: nothing here opens a file."""

from __future__ import annotations

import re
from pathlib import Path

# A model folder, as on the Hugging Face hub.
CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = f"{WEIGHTS}.index.json"
TEMPLATE = "chat_template.jinja"
TEMPLATE_JSON = "chat_template.json"  # of older folders
MORE_TEMPLATES = "additional_chat_templates"  # a folder of NAME.jinja
POOLING = "1_Pooling/config.json"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")

# One of several GGUF files of a model.
PART_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


def is_model_folder(path: Path) -> bool:
    return (path / CONFIG).is_file()


def part_paths(path: Path) -> list[Path]:
    """All parts that the name of one of them tells of, in order; `path` alone if its name is not a part's."""
    match = PART_NAME.fullmatch(path.name)
    if match is None:
        return [path]
    return [path.with_name(f"{match['stem']}-{k + 1:05}-of-{match['count']}.gguf") for k in range(int(match["count"]))]
