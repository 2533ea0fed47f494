"""Runs a page's blocks in order, as a reader would: in one folder, with the models at hand.

What stands behind ``` tells what is done with a block:

- `yaml policy`: it is a valid policy, written to policy.yaml or to `file=NAME`. On `model=NAME` it has no errors,
  or just `error=CODE`.
- `yaml invalid`: it is refused. What is said about it stands in a later block.
- `json`, `json policy`, `json invalid`: it is JSON, written to a file if `file=NAME`; or as for YAML.
- `python`: it runs, as a doctest where it has prompts. Names live on to the end of the page. `file=NAME`: it is a
  module, written to that file, which later blocks may import.
- `toml`: the `pyproject.toml` of a package that consists of the modules above; it is installed for the commands below.
- `console`: each line that begins with `$ ` prints what follows it; a line `...` stands for any lines. `only=CODE`:
  refreshing keeps just the lines of one finding.
- `sh`: commands that are not run; targets of `make` and arguments of `policyquant` exist.
- `text`: it is no code.
"""

from __future__ import annotations

import contextlib
import doctest
import importlib
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from policyquant import Inventory, PolicyError, load_policy, resolve
from policyquant.cli.main import main
from policyquant.methods import registry
from policyquant.methods.base import QuantMethod
from policyquant.policy.methods import METHODS, MethodSpec
from tests.docs.generated import parser_of
from tests.docs.pages import ROOT, Block, blocks

MODELS = ROOT / "tests/data/models"
CHECKPOINTS = ROOT / "tests/data/checkpoints"
MODEL_SUFFIX = ".json.gz"


@cache
def inventory(model: str) -> Inventory:
    """A model of tests/data/models by its name without suffix."""
    return Inventory.open(MODELS / (model + MODEL_SUFFIX))


def furnish(folder: Path) -> None:
    """Put the models and checkpoints of the examples into a folder, and what else a reader sees from the root."""
    for path in (*MODELS.iterdir(), *CHECKPOINTS.iterdir(), ROOT / "tests", ROOT / "policies", ROOT / "demo"):
        (folder / path.name).symlink_to(path)


class PageRun:
    """The blocks of one page, run in order and each once."""

    def __init__(self, page: str, folder: Path) -> None:
        self.page = page
        self.folder = folder
        self.names: dict[str, object] = {"__name__": "__main__"}
        self.status = 0
        self._installed = False
        self._methods = _Registered()
        self._failures: list[BaseException | None] = []
        furnish(folder)

    def check(self, number: int) -> None:
        """Run up to block `number`, and fail if that one does not hold."""
        for block in blocks(self.page)[len(self._failures) : number + 1]:
            self._failures.append(self._failure(block))
        failure = self._failures[number]
        if failure is not None:
            raise failure

    def _failure(self, block: Block) -> BaseException | None:
        with working_in(self.folder):
            try:
                self.run(block)
            except (Exception, pytest.fail.Exception) as error:  # To be raised by the test of this block.
                return error
        return None

    def run(self, block: Block) -> None:
        """Do what a block says, in the current folder."""
        checks: dict[str, Callable[[Block], None]] = {
            "yaml": self._policy,
            "json": self._json,
            "python": self._python,
            "toml": self._install,
            "console": self._console,
            "sh": _commands,
            "text": lambda _: None,
        }
        if block.language not in checks:
            pytest.fail(f"{block}: no test knows {block.language!r} blocks; known: {', '.join(checks)}")
        with self._methods.known():
            checks[block.language](block)

    def _policy(self, block: Block) -> None:
        path = Path(block.option("file") or f"policy.{block.language}")
        _save(block, path)
        if "invalid" in block.flags:
            with pytest.raises(PolicyError):
                load_policy(path)
            return
        if "policy" not in block.flags:
            pytest.fail(f"{block}: say `{block.language} policy` or `{block.language} invalid`")
        policy = load_policy(path)
        model = block.option("model")
        if model is None:
            return
        errors = resolve(policy, inventory(model)).errors()
        said = [f"{finding.code} {finding.message}" for finding in errors]
        expected = block.option("error")
        codes = {finding.code for finding in errors}
        assert codes == ({expected} if expected else set()), f"{block}: on {model}:\n" + "\n".join(said)

    def _json(self, block: Block) -> None:
        if block.flags & {"policy", "invalid"}:
            self._policy(block)
        else:
            json.loads(block.text)
            file = block.option("file")
            if file is not None:
                _save(block, Path(file))

    def _install(self, block: Block) -> None:
        """Lay a package's metadata beside its modules, as pip does where it installs it."""
        table, points = _package(block)
        metadata = Path(f"{table['name'].replace('-', '_')}-{table['version']}.dist-info")
        metadata.mkdir()
        head = f"Metadata-Version: 2.1\nName: {table['name']}\nVersion: {table['version']}\n"
        (metadata / "METADATA").write_text(head, encoding="utf-8")
        (metadata / "entry_points.txt").write_text(points, encoding="utf-8")
        self._installed = True

    def _python(self, block: Block) -> None:
        file = block.option("file")
        if file is not None:
            _save(block, Path(file))
            importlib.invalidate_caches()
            importlib.import_module(file.removesuffix(".py"))
            return
        if ">>> " not in block.text:
            source = "\n" * (block.line - 1) + block.text  # So that a traceback gives the page's own lines.
            exec(compile(source, str(ROOT / self.page), "exec"), self.names)
            return
        test = doctest.DocTestParser().get_doctest(block.text, self.names, str(block), self.page, block.line - 1)
        report: list[str] = []
        doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS).run(
            test, out=report.append, clear_globs=False
        )
        self.names.update(test.globs)
        if report:
            pytest.fail("".join(report), pytrace=False)

    def _console(self, block: Block) -> None:
        for command, expected in commands(block.text):
            printed = self.execute(command)
            if not matches(expected, printed):
                pytest.fail(
                    f"{block}: $ {command}\nthe page says:\n{expected}\nbut it prints:\n{printed}"
                    "\n(python -m tests.docs.refresh puts what is printed into the pages)",
                    pytrace=False,
                )

    def execute(self, command: str) -> str:
        """What a command prints, results and messages in order."""
        with self._methods.known():
            return self._execute(command)

    def _execute(self, command: str) -> str:
        words = shlex.split(command)
        if words == ["echo", "$?"]:
            return f"{self.status}\n"
        if words[0] == "cat":
            return "".join(Path(word).read_text(encoding="utf-8") for word in words[1:])
        if words[0] == "mkdir":
            Path(words[1]).mkdir()
            return ""
        if words[0] == "cp":
            shutil.copy(*words[1:])
            return ""
        assert words[0] == "policyquant", f"no test can run {command!r}"
        if self._installed:  # What is installed is looked for once in a process.
            finished = subprocess.run(
                [sys.executable, "-m", *words],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                encoding="utf-8",
                env={**os.environ, "PYTHONPATH": str(self.folder)},
                check=False,
            )
            self.status = finished.returncode
            return finished.stdout
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            self.status = main(words[1:])
        return printed.getvalue()


class _Registered:
    """The methods that the blocks of one page register; on other pages they are not known."""

    def __init__(self) -> None:
        self._specs: dict[str, MethodSpec] = {}
        self._classes: dict[str, type[QuantMethod]] = {}

    @contextlib.contextmanager
    def known(self) -> Iterator[None]:
        """Make them known for a while, and note those that are registered meanwhile."""
        METHODS._brought.update(self._specs)
        registry._classes.update(self._classes)
        try:
            yield
        finally:
            for name in METHODS.names()[len(METHODS) :]:
                if name in registry._classes:
                    self._specs[name] = METHODS._brought.pop(name)
                    self._classes[name] = registry._classes.pop(name)


def _package(block: Block) -> tuple[dict[str, str], str]:
    """Name and version of the package that a `pyproject.toml` describes, and its entry points as pip writes them."""
    table = dict(re.findall(r'^(name|version) = "(.+)"$', block.text, re.MULTILINE))
    points = re.search(r'^\[project\.entry-points\."(.+)"\]\n((?:\w+ = ".+"\n)+)', block.text, re.MULTILINE)
    if points is None or len(table) != 2:
        pytest.fail(f"{block}: a toml block gives name, version and entry points of a package")
    return table, f"[{points[1]}]\n" + points[2].replace('"', "")


def _save(block: Block, path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(block.text, encoding="utf-8")


@contextlib.contextmanager
def working_in(folder: Path) -> Iterator[None]:
    """Make a folder the current one for a while, and modules in it importable."""
    before = Path.cwd()
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        os.chdir(before)


def commands(text: str) -> Iterator[tuple[str, str]]:
    """Each command of a console block and what it prints by the page. A command goes on after a backslash."""
    lines = text.splitlines()
    assert lines[0].startswith("$ "), f"a console block begins with a command, not with {lines[0]!r}"
    at = 0
    while at < len(lines):
        command = lines[at].removeprefix("$ ")
        at += 1
        while command.endswith("\\"):
            command = command[:-1] + lines[at].removeprefix("> ")
            at += 1
        start = at
        while at < len(lines) and not lines[at].startswith("$ "):
            at += 1
        yield command, "".join(f"{line}\n" for line in lines[start:at])


def matches(expected: str, printed: str) -> bool:
    """Whether a command prints what the page says. Blanks at the ends of lines and of the output do not count."""
    return _regex(_stripped(expected)).fullmatch(_stripped(printed)) is not None


def _stripped(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.rstrip().splitlines()) + "\n"


def _regex(expected: str) -> re.Pattern[str]:
    lines = expected.splitlines(keepends=True)
    return re.compile("".join("(?:.*\n)*?" if line.strip() == "..." else re.escape(line) for line in lines))


_INSTALLING = re.compile(r"(git clone|(?:\.venv/bin/)?pip install|cd|python3? -m venv|\.) .+")


def _commands(block: Block) -> None:
    """Commands that need the network or change the reader's machine: it is only checked that they can be meant."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    for line in block.text.splitlines():
        command = re.split(r" [#>] ", line)[0].strip()
        if command.startswith("make "):
            assert command.split()[1] in targets, f"{block}: the Makefile has no target for {command!r}"
        elif command.startswith("policyquant "):
            _, name, *words = shlex.split(command)
            parser_of(name).parse_args(words)
        else:
            assert not command or _INSTALLING.fullmatch(command), f"{block}: {command!r} is not known to the tests"
