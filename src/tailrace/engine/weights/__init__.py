"""From a model file to packed weights: read, calibrate, quantize, pack, keep on disk, hand to the executor."""
