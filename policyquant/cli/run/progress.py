"""A bar on standard error while a model is loaded, for those who watch."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

from policyquant.cli import output
from policyquant.cli.output import one_line
from policyquant.cli.terminal import has_colours, is_terminal

Progress = Callable[[int, int, str], None]
"""Called with layers done, layers in all, and the name of the layer that comes next."""


@contextlib.contextmanager
def loading_bar() -> Iterator[Progress | None]:
    """What is to be called for each layer; None where nobody watches. The bar is gone afterwards."""
    if output.settings.quiet or not is_terminal(sys.stderr):
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Bar
    from rich.table import Column

    output.flush()
    columns = (
        TextColumn("loading"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis")),
    )
    console = Console(file=sys.stderr, no_color=not has_colours(sys.stderr))
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None)

        def show(done: int, total: int, name: str) -> None:
            bar.update(task, completed=done, total=total, description=one_line(name))

        yield show
