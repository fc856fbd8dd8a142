"""The types of ik_llama.cpp, held against its own rows and values (`ik_rows.py`)."""

import base64
import json
from pathlib import Path

import numpy as np
import pytest
from ik_rows import COLUMNS, IDS, checksum, random_rows

from weft import quants
from weft.dtype import DTYPES
from weft.frontends.gguf.row_forms import ROW_FORMS

RECORDS = json.loads((Path(__file__).parents[1] / "data/ik_rows.json").read_text())


def values(name: str, stored: np.ndarray) -> np.ndarray:
    """The values of rows of a file."""
    form = ROW_FORMS.get(IDS[name])
    if form is None:
        return quants.decode(stored, name, COLUMNS)
    rows = form.in_memory(stored.reshape(-1), COLUMNS).reshape(len(stored), -1)
    return quants.decode(rows, form.dtype, COLUMNS)


def test_every_type_has_a_record() -> None:
    assert set(RECORDS) == set(IDS)
    of_blocks = {d.name for d in DTYPES.values() if d.id in {f.id for f in ROW_FORMS.values()}}
    assert of_blocks == {d.name for d in DTYPES.values() if d.only_in_memory}


@pytest.mark.parametrize("name", IDS)
def test_values_are_those_of_ik_llama_cpp(name: str) -> None:
    """Rows that it quantized, and random bytes, to the bit."""
    record = RECORDS[name]
    form = ROW_FORMS.get(IDS[name])
    size = (
        form.nbytes((COLUMNS, form.rows)) // form.rows if form else DTYPES[name].row_bytes(COLUMNS)
    )
    with np.errstate(all="ignore"):
        if "values" in record:
            raw = np.frombuffer(base64.b85decode(record["rows"]), np.uint8)
            assert checksum(values(name, raw.reshape(-1, size))) == record["values"]
        if "random" in record:
            assert checksum(values(name, random_rows(name, size))) == record["random"]


def test_sixteen_rows_of_bf16_are_taken_apart() -> None:
    """Two neighbours of each row come in turn."""
    form = next(f for f in ROW_FORMS.values() if f.name == "bf16_r16")
    plain = np.random.default_rng(2).integers(0, 1 << 16, (32, 10), np.uint16)
    stored = plain.reshape(2, 16, 5, 2).swapaxes(1, 2).copy()
    got = form.in_memory(stored.view(np.uint8).reshape(-1), 10)
    np.testing.assert_array_equal(got.view("<u2").reshape(32, 10), plain)


def test_long_tensors_are_taken_apart_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    form = ROW_FORMS[IDS["iq4_ks_r4"]]
    stored = np.random.default_rng(1).integers(0, 256, form.nbytes((512, 24)), np.uint8)
    whole = form.in_memory(stored, 512)
    monkeypatch.setattr("weft.frontends.gguf.row_forms._CHUNK", 2500)
    np.testing.assert_array_equal(form.in_memory(stored, 512), whole)
