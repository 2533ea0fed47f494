"""`python -m proof.worker`: compiles and checks by the Triton that this process imports, and prints JSON, a row a line.

Apart from `python -m proof`, which starts one for each Triton.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys

from proof.rows import Row, result, rows, tables

_todo: list[Row] = []


def _one(number: int) -> str:
    return json.dumps(result(_todo[number]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("families", nargs="*")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--architectures", type=int, nargs="+", default=[80, 89, 90, 100])
    arguments = parser.parse_args()
    for each in rows(arguments.families or tables(), arguments.quick, arguments.architectures):
        if isinstance(each, Row):
            _todo.append(each)
        else:
            print(json.dumps(each), flush=True)
    if arguments.jobs == 1:
        for number in range(len(_todo)):
            print(_one(number), flush=True)
        return
    # Forked, so that what was imported and recorded is there.
    with multiprocessing.get_context("fork").Pool(arguments.jobs) as pool:
        for line in pool.imap(_one, range(len(_todo)), chunksize=1):
            print(line, flush=True)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
