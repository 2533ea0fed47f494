"""Which line of the user's own code is behind something: the first one outside torch and outside this package."""

from __future__ import annotations

import linecache
import os
from pathlib import Path
from types import FrameType, TracebackType
from typing import Final

import torch
from torch import nn

from policyquant import errors

_NOT_THE_USERS: Final = tuple(f"{Path(path).parent}{os.sep}" for path in (str(torch.__file__), errors.__file__))


def place_of_making(module: nn.Module, frame: FrameType | None) -> str:
    """`file:line` of the code that made `module`, seen from a frame inside its `__init__`.

    Frames of the module's own methods are passed over: the line that calls the class is what a reader looks for.
    """
    while frame is not None:
        if not _is_library(frame.f_code.co_filename) and not _is_method_of(module, frame):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return "an unknown place"


def line_that_raised(traceback: TracebackType | None) -> str:
    """`file:line: source` of the innermost frame of the user's code in a traceback."""
    found = "an unknown place"
    while traceback is not None:
        file, line = traceback.tb_frame.f_code.co_filename, traceback.tb_lineno
        if not _is_library(file):
            source = linecache.getline(file, line).strip()
            found = f"{file}:{line}" + (f": `{source}`" if source else "")
        traceback = traceback.tb_next
    return found


def _is_library(file: str) -> bool:
    return file.startswith(_NOT_THE_USERS)


def _is_method_of(module: nn.Module, frame: FrameType) -> bool:
    code = frame.f_code
    return code.co_argcount > 0 and frame.f_locals.get(code.co_varnames[0]) is module
