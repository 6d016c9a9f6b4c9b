"""Manifests: any flip in weights without checksums of their own is found."""

import random

import jax
import numpy as np
import pytest
from helpers.runs import TINY

from wafer.cli import main
from wafer.models.checkpoint.writer import write_params
from wafer.models.convert.api import to_hf
from wafer.models.convert.manifest import manifest_of, verify_manifest, write_manifest
from wafer.models.errors import CheckpointError
from wafer.models.paths import named_leaves
from wafer.models.registry import build


@pytest.fixture(scope="module")
def model():
    model = build(TINY)
    return model, model.init(jax.random.key(0))


def flip(file, seed):
    """Change one bit of the second half, where the values are."""
    data, rng = bytearray(file.read_bytes()), random.Random(seed)
    data[rng.randrange(len(data) // 2, len(data))] ^= 1 << rng.randrange(8)
    file.write_bytes(data)


@pytest.mark.parametrize("shard", [10**9, 2000])
def test_an_export_has_a_manifest_and_every_flip_is_found(tmp_path, capsys, model, shard):
    to_hf(*model, tmp_path / "hf", max_shard_bytes=shard)
    assert main(["checkpoint", "verify", str(tmp_path / "hf")]) == 0
    assert "hf: sound, " in capsys.readouterr().out
    written = manifest_of(tmp_path / "hf").read_text()
    assert write_manifest(tmp_path / "hf").read_text() == written  # of what is on the disk
    file = max((tmp_path / "hf").glob("*.safetensors"))
    whole = file.read_bytes()
    for seed in range(8):
        flip(file, seed)
        assert main(["checkpoint", "verify", str(tmp_path / "hf")]) == 1
        assert "is not what its manifest was written of:" in capsys.readouterr().err
        file.write_bytes(whole)
    assert verify_manifest(tmp_path / "hf").checked


def test_a_vendor_file_and_a_checkpoint_of_ours(tmp_path, capsys, model):
    leaves = named_leaves(model[1])
    ours = write_params(tmp_path / "ours", TINY, [name for name, _ in leaves],
                        [(name, np.asarray(leaf)) for name, leaf in leaves])  # fmt: skip
    to = ["--src-fmt", "wafer", "--tgt-fmt", "cs-2.5", "--model", "gpt2"]
    assert main(["convert", "convert", *to, "-o", str(tmp_path), str(ours)]) == 0
    (file,) = tmp_path.glob("*.mdl")
    assert main(["checkpoint", "verify", str(file)]) == 0
    manifest = manifest_of(file)
    text = manifest.read_text()
    digits = text.partition('"checksum": "')[2][:8]
    manifest.write_text(text.replace(digits, "00000000"))
    assert main(["checkpoint", "verify", str(file)]) == 1
    assert "manifest.json has " in capsys.readouterr().err
    manifest.unlink()
    assert main(["checkpoint", "verify", str(file)]) == 1
    assert "has no checksums; write them while it is sound" in capsys.readouterr().err
    for path in (file, ours):
        assert main(["checkpoint", "manifest", str(path)]) == 0
        assert main(["checkpoint", "verify", str(path)]) == 0


def test_what_is_no_manifest_or_lacks_a_tensor_is_said(tmp_path, model):
    to_hf(*model, tmp_path / "hf")
    manifest = manifest_of(tmp_path / "hf")
    for text in ("[]", "{}", '{"tensors": 5}', '{"tensors": {"a": {}}}', "{"):
        manifest.write_text(text)
        with pytest.raises(CheckpointError, match="no manifest"):
            verify_manifest(tmp_path / "hf")
    one = '{"tensors": {"a": {"shape": [1], "dtype": "float32", "checksum": "00000000"}}}'
    manifest.write_text(one)
    with pytest.raises(CheckpointError, match=r"a: missing; .*\n(.*\n)*.*has no such tensor"):
        verify_manifest(tmp_path / "hf")
