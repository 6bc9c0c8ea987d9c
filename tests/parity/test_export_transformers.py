"""What we export is what transformers loads: the same logits, to the bit, as from the original directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from conversion import load_model_directory
from conversion.checkpoint import convert
from conversion.export import export_hf

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

GOLDEN = Path(__file__).parents[1] / "golden"


def logits(directory: Path) -> torch.Tensor:
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype="auto", attn_implementation="eager")
    ids = torch.arange(2 * 17).reshape(2, 17) * 7 % 64
    with torch.no_grad():
        return model.eval()(ids).logits


@pytest.mark.parametrize("with_source", [True, False])
@pytest.mark.parametrize("limit", [5 * 10**9, 30_000], ids=["one file", "shards"])
@pytest.mark.parametrize("name", ["tiny_olmo2", "tiny_olmo2_gqa"])
def test_same_logits_after_a_round_trip(tmp_path: Path, name: str, limit: int, with_source: bool) -> None:
    convert(GOLDEN / name, tmp_path / "ours", "float32")
    source = GOLDEN / name if with_source else None
    export_hf(load_model_directory(tmp_path / "ours"), tmp_path / "hf", source=source, max_shard_bytes=limit)
    assert torch.equal(logits(tmp_path / "hf"), logits(GOLDEN / name))


def test_bfloat16_is_exported_as_bfloat16(tmp_path: Path) -> None:
    export_hf(load_model_directory(GOLDEN / "tiny_olmo2", "bfloat16"), tmp_path / "hf")
    model = transformers.AutoModelForCausalLM.from_pretrained(GOLDEN / "tiny_olmo2", dtype=torch.bfloat16)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype="auto")
    expected = model.state_dict()
    assert again.state_dict().keys() == expected.keys()
    for key, value in again.state_dict().items():
        assert value.dtype == torch.bfloat16 and torch.equal(value, expected[key]), key
