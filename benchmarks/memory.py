"""Peak memory of `policyquant inspect` on Kimi-K2 (139,583 tensors), from each form in which its names come."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from benchmarks.models import FORTY_RULES, index_text, model_path, read_model
from benchmarks.processes import peak_memory, policyquant, python
from benchmarks.report import Bar, Outcome, mebibytes, table
from policyquant import Inventory

MOST_MEBIBYTES: Final = 400


def run(*, tiny: bool = False) -> Outcome:
    """One process after the other."""
    name = "Mixtral-8x7B-v0.1" if tiny else "Kimi-K2-Instruct"
    with TemporaryDirectory() as folder:
        return _measure(name, Path(folder), tiny)


def _measure(name: str, folder: Path, tiny: bool) -> Outcome:
    index = folder / "model.safetensors.index.json"
    index.write_text(index_text(name), encoding="utf-8")
    (folder / "config.json").write_text(json.dumps(read_model(name)["config"]), encoding="utf-8")
    saved = folder / "saved.json"
    Inventory.open(str(model_path(name))).save(saved)
    policy = FORTY_RULES
    if tiny:
        policy = folder / "policy.yaml"
        policy.write_text('version: 1\nlayers: {"decoder.*.moe": fp8}\n', encoding="utf-8")
    forms = {"its index": index, "a plain list of its tensors, gzip": model_path(name), "a saved inventory": saved}
    peaks = {
        f"inspect{' --json' if words else ''}, {form}": peak_memory(
            policyquant("inspect", path, "--policy", policy, *words)
        )
        for form, path in forms.items()
        for words in ((), ("--json",))
    }
    floor = peak_memory(python("import json, sys; json.load(open(sys.argv[1]))", index))
    outcome = Outcome()
    rows = [(what, mebibytes(peak), f"{peak / floor:.3g}×") for what, peak in peaks.items()]
    rows.append(("floor: Python that parses the index", mebibytes(floor), "1×"))
    outcome.tables.append(table(f"{name}: peak resident memory", ("", "peak", "ratio"), rows))
    outcome.bars.extend(Bar(what, peak / 2**20, "at most", MOST_MEBIBYTES, "MiB") for what, peak in peaks.items())
    return outcome
