"""Poseidon's encoder, its weights, and features of fields, for the Fréchet Poseidon Distance.

encoder = sapc.poseidon.load_encoder("Poseidon-B")     # a folder, a file or a Hugging Face cache
sapc.poseidon.features(encoder, fields)                # (n, 768)
"""

from ..._old_names import find_renamed
from .encoder import SIZES, Encoder
from .features import features, images
from .random import SEEDS, random_encoder
from .weights import DOWNLOAD_HINT, REPOSITORY, find_weights, load_encoder

__all__ = [
    "DOWNLOAD_HINT",
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

__getattr__ = find_renamed(__name__)
