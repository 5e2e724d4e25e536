"""The half of `transformers_check` that runs where transformers and torch are: weights in, logits out.

    python transformers_side.py FOLDER SEED FOLDER SEED ...

Each folder has a config.json as published models have it and `ids.npy`. Random weights that bf16 holds exactly are
written to it, and again to FOLDER/saved with the configuration as this version of transformers writes it; and
`logits.npy`, float32 [T, vocab]. Imports nothing of this repository.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
import transformers


def fill(model: torch.nn.Module, seed: int) -> None:
    """Matrices that keep the size of what goes through them; norms and biases that would be missed if left out."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, values in model.named_parameters():
            drawn = torch.randn(values.shape, generator=generator)
            if values.dim() > 1:
                drawn *= 1.5 / values.shape[-1] ** 0.5
            else:
                drawn = 0.3 * drawn + values.mean() if "norm" in name else 0.5 * drawn
            values.copy_(drawn.bfloat16().float())


def run(folder: Path, seed: int) -> None:
    config = transformers.AutoConfig.from_pretrained(folder)
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    fill(model, seed)
    ids = torch.from_numpy(np.load(folder / "ids.npy").astype(np.int64))[None]
    with torch.no_grad():
        np.save(folder / "logits.npy", model(ids, use_cache=False).logits[0].float().numpy())
    published = (folder / "config.json").read_text()
    model.save_pretrained(folder / "saved")
    model.save_pretrained(folder)
    (folder / "config.json").write_text(published)


if __name__ == "__main__":
    torch.set_num_threads(1)
    transformers.logging.disable_progress_bar()
    transformers.logging.set_verbosity_error()
    for place, seed in zip(sys.argv[1::2], sys.argv[2::2], strict=True):
        run(Path(place), int(seed))
    print(f"transformers {transformers.__version__}, torch {torch.__version__}")
