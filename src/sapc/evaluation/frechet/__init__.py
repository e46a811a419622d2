"""Poseidon's encoder, its weights, and features of fields: what the Fréchet Poseidon Distance is made of.

encoder = sapc.poseidon.load_encoder("Poseidon-B")     # a folder, a file or a Hugging Face cache
sapc.poseidon.features(encoder, fields)                # (n, 768)
"""

from .encoder import SIZES, Encoder
from .features import features, images
from .random import SEEDS, random_encoder
from .weights import GET, REPOSITORY, find_weights, load_encoder

__all__ = [
    "GET",
    "REPOSITORY",
    "SEEDS",
    "SIZES",
    "Encoder",
    "features",
    "find_weights",
    "images",
    "load_encoder",
    "random_encoder",
]
