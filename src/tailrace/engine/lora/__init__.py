"""LoRA adapters in PEFT's folders: what their settings mean, and their weights as the executor wants them."""
