"""`policyquant kernels`: which implementation of each operator runs, here or on another GPU, and why not the others."""

from __future__ import annotations

import argparse
import json
import re
from typing import TYPE_CHECKING, Any, Final

from policyquant.cli import kernels_tune, output
from policyquant.cli.arguments import add_json, example
from policyquant.cli.status import Status
from policyquant.cli.tables import Column, Table, print_table
from policyquant.errors import PolicyQuantError, did_you_mean

if TYPE_CHECKING:
    from policyquant.kernels.machine import Machine

_ACTIONS: Final = ("build", "tune")

_MULTIPROCESSORS: Final = {(8, 0): 108, (8, 9): 142, (9, 0): 132, (10, 0): 148}
"""Of A100, L40S, H100 and H200, B200: what a GPU that is not here is taken to have."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.description = (
        "Say which implementation of each operator runs here, or on a GPU of another compute capability, and why the"
        " others do not. With `build`, compile the CUDA library; with `tune`, measure tile configurations on the GPU"
        " here, and use those that are faster from then on."
    )
    parser.epilog = example(
        "kernels",
        "kernels --explain 'scaled_mm m=1 n=4096 k=4096 block' --capability 9.0",
        "kernels build",
        "kernels tune scaled_mm --seconds 600",
    )
    parser.add_argument(
        "action",
        metavar="ACTION",
        nargs="?",
        type=_action,
        help="build: compile the CUDA library, with nvcc; tune: measure tile configurations",
    )
    parser.add_argument(
        "--explain",
        metavar="CALL",
        help="what would run one call: an operator, sizes (m=1 n=4096 k=4096) and words (tensor, channel, block, bf16,"
        " out=fp8, bias, unaligned)",
    )
    parser.add_argument(
        "--capability", metavar="X.Y", type=_capability, help="of a GPU of this compute capability, here or not"
    )
    add_json(parser)
    kernels_tune.add_arguments(parser)


def _action(word: str) -> str:
    if word not in _ACTIONS:
        raise argparse.ArgumentTypeError(
            f"expected build, tune or nothing, found {word!r}{did_you_mean(word, _ACTIONS)}"
        )
    return word


def _capability(word: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d{1,2})\.(\d)", word)
    if found is None:
        raise argparse.ArgumentTypeError(f"expected a compute capability such as 9.0, found {word!r}")
    return int(found[1]), int(found[2])


def run(arguments: argparse.Namespace) -> int:
    """Print the table or one call's verdicts, or build."""
    if arguments.action is not None and (arguments.explain is not None or arguments.capability is not None):
        raise PolicyQuantError(f"`kernels {arguments.action}` goes without --explain and --capability")
    if arguments.action != "tune":
        kernels_tune.check_given(arguments)
    from policyquant.extras import require

    require("torch", extra="torch", by="policyquant kernels")
    if arguments.action == "tune":
        return kernels_tune.run(arguments)
    if arguments.action == "build":
        return _build()
    on = _machine(arguments.capability)
    if arguments.explain is not None:
        _explain(arguments.explain, on, arguments.json)
    else:
        _overview(on, here=arguments.capability is None, as_json=arguments.json)
    return Status.FINE


def _build() -> int:
    from policyquant.kernels.cuda import library
    from policyquant.kernels.cuda.build import BuildError, build

    path = library.path()
    if path.exists():
        output.write(f"{path} is built already\n")
        return Status.FINE
    try:
        build()
    except (OSError, BuildError) as failure:
        raise PolicyQuantError(f"the CUDA library cannot be built: {failure}") from failure
    output.write(f"built {path}\n")
    return Status.FINE


def _machine(capability: tuple[int, int] | None) -> Machine:
    """The GPU that is asked for, or what is here: a GPU if there is one."""
    import torch

    from policyquant.kernels.cuda import library
    from policyquant.kernels.machine import CUDA_LIBRARY, Machine, installed, machine

    if capability is None:
        return machine("cuda" if torch.cuda.is_available() else "cpu")
    known = max((each for each in _MULTIPROCESSORS if each <= capability), default=(8, 0))
    # What runs on this CPU in a GPU's place says nothing of another machine.
    packages = installed() - {CUDA_LIBRARY} if library.runs_on_cpu() else installed()
    return Machine("cuda", capability, _MULTIPROCESSORS[known], packages)


def _overview(on: Machine, *, here: bool, as_json: bool) -> None:
    from policyquant.kernels import ops as _ops  # noqa: F401 (importing it defines the operators)
    from policyquant.kernels.dispatch import PLAIN, available, forced, operators

    rows: list[dict[str, Any]] = []
    for operator in sorted(operators()):
        verdicts: dict[str, str | None] = {}
        for each, reason in available(operator, on):
            verdicts[each.name] = None if verdicts.get(each.name, "") is None else reason
        runs = [name for name, reason in verdicts.items() if reason is None]
        if on.device == "cpu":
            runs = [PLAIN]
        others = {name: reason or "it runs in Triton's interpreter, if asked for" for name, reason in verdicts.items()}
        rows.append({"operator": operator, "runs": runs, "not": {k: v for k, v in others.items() if k not in runs}})
    about = _about(on, here=here)
    if as_json:
        output.write_json([json.dumps({**about, "forced": dict(forced()), "operators": rows}, indent=1), "\n"])
        return
    width = max(map(len, about))
    for title, value in about.items():
        output.write(f"{title.ljust(width)}  {value or 'none'}\n")
    if forced():
        output.write(f"{'forced'.ljust(width)}  {', '.join(f'{k}={v}' for k, v in forced().items())}\n")
    output.write("\n")
    columns = (Column("operator", style="cyan"), Column("runs", fold=True), Column("does not", fold=True))
    print_table(Table(columns, [(row["operator"], ", ".join(row["runs"]), _reasons(row["not"])) for row in rows]))
    output.note("\nThe first that takes a call's shapes runs it; --explain says which.")


def _about(on: Machine, *, here: bool) -> dict[str, str | None]:
    """What a reader compares two machines by."""
    import torch

    from policyquant.kernels.machine import CUDA_LIBRARY, OPTIONAL_PACKAGES, dotted
    from policyquant.kernels.tuning.measured import tiles_in_use

    gpu = None
    if on.device == "cuda":
        name = torch.cuda.get_device_name() if here else "not here, as asked for"
        gpu = f"{name}, compute capability {dotted(on.capability or (0, 0))}, {on.multiprocessors} multiprocessors"
    versions = {package: _version(package) for package in OPTIONAL_PACKAGES if package in on.packages}
    return {
        "GPU": gpu,
        "torch": torch.__version__,
        **{package: versions.get(package) for package in OPTIONAL_PACKAGES},
        "CUDA library": "built" if CUDA_LIBRARY in on.packages else None,
        "tiles": tiles_in_use(on.capability),
    }


def _version(package: str) -> str:
    """Of what is imported by this name."""
    from importlib.metadata import packages_distributions, version

    distributions = packages_distributions().get(package)
    return version(distributions[0]) if distributions else "installed"


def _reasons(reasons: dict[str, str]) -> str:
    """One reason for all that share it."""
    shared: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        shared.setdefault(reason, []).append(name)
    return "; ".join(f"{', '.join(names)}: {reason}" for reason, names in shared.items())


def _explain(text: str, on: Machine, as_json: bool) -> None:
    from policyquant.kernels.calls import described

    try:
        call = described(text)
        verdicts, chosen = call.verdicts(on), call.chosen(on)
    except ValueError as error:  # An unknown word, or sizes that do not go together.
        raise PolicyQuantError(f"--explain: {error}") from None
    if as_json:
        implementations = [{"name": each.name, "reason": reason} for each, reason in verdicts]
        report = {"operator": call.operator, "runs": chosen.name, "implementations": implementations}
        output.write_json([json.dumps(report, indent=1), "\n"])
        return
    output.write(f"{call.operator}: {chosen.name} runs it\n\n")
    rows = [(each.name, "runs" if each is chosen else reason or "could run it") for each, reason in verdicts]
    print_table(Table((Column("implementation", style="cyan"), Column("verdict", fold=True)), rows))
