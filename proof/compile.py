"""Launches of a case, what Triton would compile for them, and the machine code that comes of it.

Run where TRITON_INTERPRET is not set: it is read when a kernel is defined.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.runtime.jit import create_function_from_signature

import policyquant.kernels.ops  # noqa: F401 - defines the operators
from policyquant.kernels import dispatch
from policyquant.kernels.triton.launch import Launch, Target, recording
from proof.bound import rates
from proof.case import Case

CACHE = Path(__file__).parents[1] / "build" / "proof"


@dataclass(frozen=True, slots=True)
class Specialization:
    """A kernel as Triton compiles it for one launch.

    Args:
        signature: argument → its type, or "constexpr".
        constexprs: position of an argument → what it is compiled for; 1 and None are among them.
        attrs: position of an argument → what is known of it, such as that 16 divides it.
    """

    kernel: Any
    target: Any
    signature: Mapping[str, str]
    constexprs: Mapping[tuple[int, ...], Any]
    attrs: Mapping[tuple[int, ...], list[list[Any]]]
    options: Mapping[str, Any]

    @property
    def divisible(self) -> frozenset[str]:
        """The arguments that are known to be divisible by 16: pointers in bytes, integers in elements."""
        names = self.kernel.arg_names
        return frozenset(names[at[0]] for at, known in self.attrs.items() if ["tt.divisibility", 16] in known)

    @property
    def aligned(self) -> bool:
        """Whether every pointer is known to be divisible by 16."""
        pointers = {name for name, kind in self.signature.items() if kind.startswith("*")}
        return pointers <= self.divisible


@dataclass(frozen=True, slots=True)
class Binary:
    """A compiled kernel.

    Args:
        sass: what nvdisasm prints of it.
        registers: of a thread.
        stack: bytes of a thread, spilled registers included.
        shared: bytes of a program.
        seconds: that compiling took when it was done.
        ptxas: the version of the assembler.
    """

    sass: str
    registers: int
    stack: int
    shared: int
    seconds: float
    ptxas: str


class _Address:
    """A pointer argument: what Triton reads of a tensor. Storage begins at a multiple of 16 bytes."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.dtype = tensor.dtype
        self._offset = tensor.storage_offset() * tensor.element_size()

    def data_ptr(self) -> int:
        return 1 << 20 | self._offset


def launches(case: Case, architecture: int) -> list[Launch]:
    """What the operator's Triton function launches on a GPU of this architecture.

    Raises:
        ValueError: the operator has no Triton function, or that refuses these inputs.
    """
    capability = divmod(architecture, 10)
    multiprocessors = int(rates(architecture)["multiprocessors"])
    inputs = case.inputs()
    kept, targets = _split(getattr(torch.ops.policyquant, case.operator), inputs)
    machine = dispatch.Machine("cuda", capability, multiprocessors, frozenset({"triton"}))
    refused = "it has no Triton function"
    for each, reason in dispatch.verdicts(case.operator, machine, kept, targets):
        if each.name == "triton" and reason is None:
            with recording(Target(capability, multiprocessors)) as recorded:
                each.load()(*kept, **targets)
            return recorded
        if each.name == "triton":
            refused = f"triton refuses, {reason}"
    raise ValueError(f"{case.operator} ({case.name}) on {capability}: {refused}")


def _split(operator: Any, inputs: tuple[Any, ...]) -> tuple[tuple[Any, ...], dict[str, torch.Tensor]]:
    """What an operator's implementations are called with: inputs, and the results to write, by name."""
    values = operator.default(*inputs)
    if "out" not in operator.overloads():
        return inputs, {}
    arguments = operator.out._schema.arguments
    outs = [each.name for each in arguments if each.kwarg_only]
    targets = dict(zip(outs, values if isinstance(values, tuple) else (values,), strict=True))
    return inputs[: len(arguments) - len(outs)], targets


def specialize(launch: Launch, architecture: int) -> Specialization:
    """What Triton would compile, by Triton's own rules: its binder is called as a launch would call it."""
    kernel = launch.kernel
    target = GPUTarget("cuda", architecture, 32)
    backend = make_backend(target)
    arguments = {name: _Address(x) if isinstance(x, torch.Tensor) else x for name, x in launch.arguments.items()}
    options = {"num_warps": launch.num_warps, "num_stages": launch.num_stages, **launch.options}
    bind = create_function_from_signature(kernel.signature, kernel.params, backend)
    bound, found, rest = bind(**arguments, **options)
    _, signature, constexprs, attrs = kernel._pack_args(backend, {**arguments, **options}, bound, found, rest)
    return Specialization(kernel, target, signature, constexprs, attrs, options)


def compiled(what: Specialization) -> Binary:
    """The machine code, from the cache if it was compiled before from the same source by the same compiler."""
    source = ASTSource(what.kernel, what.signature, what.constexprs, what.attrs)
    backend = make_backend(what.target)
    options = backend.parse_options(dict(what.options))
    parts = (source.hash(), backend.hash(), options.hash(), triton.__version__)
    key = hashlib.sha256(" ".join(parts).encode()).hexdigest()[:32]
    file = CACHE / f"{key}.json"
    if file.exists():
        return Binary(**json.loads(file.read_text(encoding="utf-8")))
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        # Triton's own cache would be a second copy.
        os.environ["TRITON_CACHE_DIR"] = folder
        cubin = triton.compile(source, target=what.target, options=dict(what.options))
        seconds = time.perf_counter() - began
        path = Path(folder, "kernel.cubin")
        path.write_bytes(cubin.asm["cubin"])
        registers, stack = _resources(path)
        sass = _tool("nvdisasm", "-c", str(path))
        binary = Binary(sass, registers, stack, cubin.metadata.shared, seconds, _release(what.target.arch))
    CACHE.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(f".{os.getpid()}")
    partial.write_text(json.dumps(asdict(binary)), encoding="utf-8")
    partial.replace(file)
    return binary


def _resources(cubin: Path) -> tuple[int, int]:
    found = re.search(r"REG:(\d+) STACK:(\d+)", _tool("cuobjdump", "-res-usage", str(cubin)))
    assert found is not None
    return int(found[1]), int(found[2])


def _tool(name: str, *arguments: str) -> str:
    path = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / name
    return subprocess.run([path, *arguments], check=True, capture_output=True, text=True).stdout


@cache
def _release(architecture: int) -> str:
    from triton.backends.nvidia.compiler import get_ptxas

    return str(get_ptxas(architecture).version)
