"""Loading Poseidon's weights: from every layout they come in, and no others."""

import hashlib
import json
import os
import pickle
import shutil

import pytest
import torch
from safetensors.torch import save_file

from sapc.errors import SapcError
from sapc.evaluation.frechet import Encoder, features, find_weights, load_encoder, random_encoder
from sapc.evaluation.frechet.encoder import Embeddings, Stages

SAFE, BIN = "model.safetensors", "pytorch_model.bin"
FIRST = "embeddings.patch_embeddings.projection.weight"
QUERY = "encoder.layers.1.blocks.2.attention.self.query.weight"
MERGE = "encoder.layers.0.downsample.reduction.weight"
REPOSITORY = "models--camlab-ethz--Poseidon-B"
DECODER = {
    "decoder.layers.0.blocks.0.attention.self.query.weight": torch.ones(5, 5),
    "residual_blocks.0.0.weight": torch.full((3,), torch.nan),
    "patch_recovery.projection.bias": torch.zeros(4, dtype=torch.int64),
}


@pytest.fixture(scope="module")
def weights():
    """As a trained model's: the encoder's and, to be left out, the decoder's."""
    return random_encoder(0).state_dict() | DECODER


@pytest.fixture(scope="module")
def expected():
    return features(random_encoder(0), picture())


@pytest.fixture
def place(tmp_path):
    """A folder that is emptied afterwards: weights of size T are 40 MB."""
    yield tmp_path
    shutil.rmtree(tmp_path)


def picture():
    return torch.randn(1, 64, 64, generator=torch.Generator().manual_seed(7))


def digest(file):
    return hashlib.sha256(file.read_bytes()).hexdigest()


def save(content, file, **options):
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix == ".safetensors":
        save_file(content, file)
    else:
        torch.save(content, file, **options)
    return file


def refused(path, *parts):
    """Loading raises one sentence that contains all of these."""
    with pytest.raises(SapcError) as error:
        load_encoder(path)
    message = str(error.value)
    assert "\n" not in message
    assert [part for part in map(str, parts) if part not in message] == [], message


# what loads


@pytest.mark.parametrize("name", [SAFE, BIN])
def test_a_folder_loads(place, weights, expected, name):
    file = save(weights, place / name)
    for path in (place, str(place), file):
        encoder = load_encoder(path)
        assert encoder.provenance == {"size": "T", "file": name, "sha256": digest(file)}
        assert encoder.size == "T"
        assert torch.equal(features(encoder, picture()), expected)
        assert not any(p.requires_grad for p in encoder.parameters())
        assert not encoder.training
        assert {p.dtype for p in encoder.parameters()} == {torch.float32}
        assert not any(p.is_meta for p in encoder.parameters())
    loaded = encoder.state_dict()
    assert loaded.keys() == weights.keys() - DECODER.keys()
    assert all(torch.equal(value, weights[key]) for key, value in loaded.items())


def test_size_b_loads_as_b(place):
    """In half precision, to halve the file."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        weights = Encoder("B").half().state_dict()
    encoder = load_encoder(save(weights, place / SAFE))
    assert encoder.provenance["size"] == "B"
    assert encoder.dim == 768
    assert sum(p.numel() for p in encoder.parameters()) == 77_181_000
    assert torch.equal(encoder.state_dict()[QUERY], weights[QUERY].float())


def test_safetensors_are_preferred(place, weights):
    file = save(weights, place / SAFE)
    save([1, 2], place / BIN)
    assert find_weights(place) == file
    assert load_encoder(place).provenance["file"] == SAFE


def test_a_file_may_have_another_name(place, weights, expected):
    for name in ("poseidon.safetensors", "poseidon.pt"):
        encoder = load_encoder(save(weights, place / name))
        assert encoder.provenance["file"] == name
        assert torch.equal(features(encoder, picture()), expected)


def test_the_older_format_of_torch_loads(place, weights, expected):
    file = save(weights, place / BIN, _use_new_zipfile_serialization=False)
    assert torch.equal(features(load_encoder(file), picture()), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", [SAFE, BIN])
def test_other_precisions_load_as_float32(place, weights, expected, dtype, name):
    other = {key: w.to(dtype) for key, w in weights.items() if key not in DECODER}
    encoder = load_encoder(save(other, place / name).parent)
    assert {p.dtype for p in encoder.parameters()} == {torch.float32}
    assert all(torch.equal(value, other[key].float()) for key, value in encoder.state_dict().items())
    error = float((features(encoder, picture()) - expected).abs().max())
    assert error < (0.1 if dtype == torch.bfloat16 else 0.02 if dtype == torch.float16 else 1e-9)


@pytest.mark.parametrize(
    "config",
    [
        {"image_size": 128, "patch_size": 4, "window_size": 16, "num_heads": [3, 6, 12, 24], "embed_dim": 48},
        {"architectures": ["ScOT"]},
    ],
)
def test_a_config_that_agrees_is_no_hindrance(place, weights, config):
    save(weights, place / SAFE)
    (place / "config.json").write_text(json.dumps(config))
    assert load_encoder(place).size == "T"


# the cache of Hugging Face


def snapshot(cache, revision, content=b"x", name=SAFE, repository=REPOSITORY):
    """One snapshot in `cache/hub`, a link to a blob as the hub's client makes it; no weights by default."""
    folder = cache / "hub" / repository
    blob = folder / "blobs" / hashlib.sha256(content).hexdigest()
    blob.parent.mkdir(parents=True, exist_ok=True)
    blob.write_bytes(content)
    link = folder / "snapshots" / revision / name
    link.parent.mkdir(parents=True)
    link.symlink_to(os.path.relpath(blob, link.parent))
    return link


def name_main(cache, revision):
    refs = cache / "hub" / REPOSITORY / "refs"
    refs.mkdir()
    (refs / "main").write_text(revision)


def test_weights_load_from_a_cache(place, weights, expected):
    save(weights, place / "saved.safetensors")
    link = snapshot(place, "abc", (place / "saved.safetensors").read_bytes())
    encoder = load_encoder(place)
    assert encoder.provenance == {"size": "T", "file": SAFE, "sha256": digest(link)}
    assert encoder.provenance["sha256"] == link.resolve().name
    assert torch.equal(features(encoder, picture()), expected)


def test_every_level_of_a_cache_is_understood(place):
    """The whole cache, its hub, the repository, and the snapshot; another model beside it is left alone."""
    snapshot(place, "fff", b"another", repository="models--camlab-ethz--Poseidon-T")
    link = snapshot(place, "abc")
    levels = [place, place / "hub", place / "hub" / REPOSITORY, link.parent, link]
    assert [find_weights(path) for path in levels] == [link] * 5
    name_main(place, "abc\n")
    assert [find_weights(path) for path in levels] == [link] * 5


def test_a_path_may_begin_at_home(place, monkeypatch):
    monkeypatch.setenv("HOME", str(place))
    link = snapshot(place / "cache", "abc")
    assert find_weights("~/cache") == link


@pytest.mark.parametrize("main", ["abc", "def"])
def test_of_several_snapshots_the_main_one_is_taken(place, main):
    links = {revision: snapshot(place, revision, revision.encode()) for revision in ("abc", "def")}
    name_main(place, main)
    assert find_weights(place) == links[main]


def test_snapshots_without_a_main_one_are_refused(place):
    for revision in ("abc", "def"):
        snapshot(place, revision)
    repository = place / "hub" / REPOSITORY
    refused(place, repository, "2 snapshots and no main one")
    name_main(place, "a snapshot that is gone")
    refused(place, repository, "2 snapshots and no main one")


def test_a_cache_without_weights_is_refused(place):
    (place / "hub" / REPOSITORY / "snapshots").mkdir(parents=True)
    refused(place, REPOSITORY, "no snapshot")
    (place / "hub" / REPOSITORY / "snapshots" / "abc").mkdir()
    refused(place, "abc", "neither model.safetensors nor pytorch_model.bin", "hf download")


@pytest.mark.parametrize("name", [SAFE, BIN])
def test_a_link_to_nothing_is_an_incomplete_download(place, name):
    link = snapshot(place, "abc", name=name)
    link.resolve().unlink()
    refused(place, link.parent, "the download is not complete", "hf download camlab-ethz/Poseidon-B")


# paths without weights


def test_a_missing_path_says_where_to_get_the_weights(tmp_path):
    missing = tmp_path / "Poseidon-B"
    refused(
        missing, missing, "no such file or folder", "hf download camlab-ethz/Poseidon-B", "non-commercial"
    )


def test_an_empty_folder_says_what_was_looked_for(tmp_path):
    refused(tmp_path, tmp_path, SAFE, BIN, "hf download camlab-ethz/Poseidon-B", "non-commercial")


@pytest.mark.parametrize("name", [SAFE, BIN])
def test_weights_in_several_files_are_refused(tmp_path, name):
    (tmp_path / f"{name}.index.json").write_text("{}")
    refused(tmp_path, tmp_path, "split over several files", name)


# damaged files


@pytest.mark.parametrize("name", [SAFE, BIN])
@pytest.mark.parametrize("kept", [0, 4, 100, 1000, 0.5, 0.999])
def test_a_truncated_file_is_refused(place, weights, name, kept):
    """Cut within the head, and within the numbers."""
    file = save(
        {key: w for key, w in weights.items() if key.startswith(("emb", "encoder.layers.0"))}, place / name
    )
    content = file.read_bytes()
    file.write_bytes(content[: kept if isinstance(kept, int) else int(kept * len(content))])
    refused(place, file, "damaged")


@pytest.mark.parametrize("name", [SAFE, BIN, "poseidon.pt"])
@pytest.mark.parametrize("text", ["a note on where the weights are\n", "<html>\n" * 99])
def test_a_text_in_place_of_weights_is_refused(tmp_path, name, text):
    """Such as the pointer that git leaves, or a page that says no."""
    (tmp_path / name).write_text(text)
    refused(tmp_path / name, tmp_path / name, "damaged")


def test_a_safetensors_file_of_other_bytes_is_refused(place, weights):
    file = save(weights, place / SAFE)
    with file.open("r+b") as content:
        content.seek(20)
        content.write(b"\xff\xff\xff\xff")
    refused(place, file, "damaged")


# other weights


@pytest.mark.parametrize("name", [SAFE, BIN])
def test_a_renamed_tensor_is_named(place, weights, name):
    weights = dict(weights)
    weights[f"{QUERY}s"] = weights.pop(QUERY)
    file = save(weights, place / name)
    refused(place, file, "Poseidon-T", f"lacks {QUERY};")


def test_an_additional_tensor_is_named(place, weights):
    file = save(
        weights | {"encoder.layers.0.extra": torch.ones(2), "encoder.more": torch.ones(2)}, place / SAFE
    )
    refused(place, file, "Poseidon-T", "also has encoder.layers.0.extra and 1 more;")


def test_several_missing_tensors_are_counted(place, weights):
    file = save(
        {key: w for key, w in weights.items() if not key.startswith("encoder.layers.3")}, place / SAFE
    )
    lost = sorted(key for key in weights if key.startswith("encoder.layers.3"))
    refused(place, file, f"lacks {lost[0]} and {len(lost) - 1} more;")


def test_weights_of_something_else_are_refused(place):
    file = save({"conv.weight": torch.ones(3, 3)}, place / SAFE)
    refused(place, file, f"has no {FIRST}", "not weights of Poseidon")


@pytest.mark.parametrize("name", [SAFE, BIN])
def test_a_wrong_shape_is_named(place, weights, name):
    file = save(weights | {MERGE: weights[MERGE].T.contiguous()}, place / name)
    refused(place, file, MERGE, "(192, 96)", "(96, 192)")


def test_a_wrong_width_is_refused(place, weights):
    wide = {f"embeddings.{key}": w for key, w in Embeddings(64).state_dict().items()}
    file = save(weights | wide, place / SAFE)
    refused(place, file, FIRST, "(64, 4, 4, 4)", "no size of Poseidon", "B (96, 4, 4, 4)")


def test_the_width_of_t_with_the_depth_of_b_is_refused(place, weights):
    with torch.device("meta"):
        names = {f"encoder.{key}": w.shape for key, w in Stages(48, (8, 8, 8, 8)).state_dict().items()}
    deep = {key: torch.ones(shape) for key, shape in names.items()}
    extra = sorted(deep.keys() - weights.keys())
    file = save(deep | weights, place / SAFE)
    assert extra[0].startswith("encoder.layers.0.blocks.4.")
    refused(place, file, "Poseidon-T", f"also has {extra[0]} and {len(extra) - 1} more")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_broken_weight_is_named(place, weights, value):
    broken = weights[QUERY].clone()
    broken[3, 5] = value
    file = save(weights | {QUERY: broken}, place / SAFE)
    refused(place, file, QUERY, "NaN or infinity")


def test_weights_that_were_never_trained_are_refused(place, weights):
    """All gains zero; a single one that is not suffices."""
    fresh = {key: torch.zeros_like(w) if key.endswith(".weight.bias") else w for key, w in weights.items()}
    file = save(fresh, place / SAFE)
    refused(place, file, "all gains are zero", "never trained")
    fresh["embeddings.norm.weight.bias"][3] = 1
    save(fresh, place / SAFE)
    assert load_encoder(place).embeddings.norm.weight.bias[3] == 1


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ('{"window_size": 7}', "window_size = 7, Poseidon 16"),
        ('{"num_heads": [4, 8, 16, 32]}', "num_heads = [4, 8, 16, 32], Poseidon [3, 6, 12, 24]"),
        ('{"window_size": 16', "cannot be read"),
        ("", "cannot be read"),
        (b"\xff\xfe\x00", "cannot be read"),
        pytest.param("[" * 100_000, "cannot be read", id="nested"),
    ],
)
def test_a_config_that_contradicts_is_refused(place, weights, text, part):
    save(weights, place / SAFE)
    (place / "config.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    refused(place, place / "config.json", part)


# pickles


@pytest.mark.parametrize(("content", "part"), [([1, 2], "a list"), (torch.ones(3), "a Tensor")])
def test_a_pickle_of_something_else_is_refused(place, content, part):
    file = save(content, place / BIN)
    refused(place, file, f"holds {part}, not weights by name")


@pytest.mark.parametrize(
    ("extra", "name"),
    [
        ({"epoch": 3}, "'epoch'"),
        ({"encoder.steps": torch.tensor(3)}, "'encoder.steps'"),
        ({5: torch.ones(2)}, "5"),
        ({QUERY: "text"}, f"'{QUERY}'"),
    ],
)
def test_something_other_than_weights_under_a_name_is_refused(place, weights, extra, name):
    file = save(weights | extra, place / BIN)
    refused(place, file, f"other than weights under the name {name}")


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(96, 96).to(torch.float8_e4m3fn),
        torch.zeros(96, 96).to_sparse(),
        torch.zeros(96, 96, device="meta"),
    ],
    ids=["float8", "sparse", "meta"],
)
def test_tensors_of_other_kinds_are_named(place, weights, tensor):
    refused(save(weights | {QUERY: tensor}, place / BIN), BIN, QUERY)


def test_numbers_beyond_float32_are_named(place, weights):
    large = weights[QUERY].double()
    large[0, 0] = 1e300
    refused(save(weights | {QUERY: large}, place / SAFE), SAFE, QUERY, "NaN or infinity")


def test_a_file_that_changes_later_changes_nothing(place, weights, expected):
    file = save(weights, place / SAFE)
    encoder = load_encoder(file)
    with open(file, "r+b") as content:
        content.truncate(1000)
    assert torch.equal(features(encoder, picture()), expected)


def test_a_reference_that_is_no_text_is_no_main_one(place):
    link = snapshot(place, "a")
    name_main(place, "a")
    (place / "hub" / REPOSITORY / "refs" / "main").write_bytes(b"\xff\xfe")
    assert find_weights(place) == link


def test_a_pointer_of_git_lfs_is_told(place):
    (place / SAFE).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 630000000\n")
    refused(place, SAFE, "git lfs pull")


def test_the_folder_of_snapshots_is_understood(place):
    link = snapshot(place, "a")
    assert find_weights(link.parent.parent) == link


def test_an_index_beside_a_whole_file_is_no_hindrance(place, weights):
    file = save(weights, place / BIN)
    (place / f"{SAFE}.index.json").write_text("{}")
    assert find_weights(place) == file


class Trap:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder):
        self.folder = str(folder)

    def __reduce__(self):
        return os.mkdir, (self.folder,)


def plain_pickle(content, file):
    file.write_bytes(pickle.dumps(content))


def old_format(content, file):
    torch.save(content, file, _use_new_zipfile_serialization=False)


@pytest.mark.parametrize("write", [torch.save, old_format, plain_pickle])
@pytest.mark.parametrize("name", [BIN, "poseidon.pt"])
def test_no_code_in_a_file_is_run(place, weights, write, name):
    """Whether alone or among good weights; the last line shows that the trap does close."""
    folder = place / "sprung"
    few = {key: w for key, w in weights.items() if key.startswith("embeddings")}
    for content in (Trap(folder), few | {"encoder.trap": Trap(folder)}, few | {"decoder.trap": Trap(folder)}):
        write(content, place / name)
        refused(place / name, place / name, "no code in it was run")
        assert not folder.exists()
    if write is plain_pickle:
        pickle.loads((place / name).read_bytes())
    else:
        torch.load(place / name, weights_only=False)
    assert folder.is_dir()
