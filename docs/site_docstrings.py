"""What the reference shows: examples in docstrings, which the tests run, as code; defaults of shared options."""

from __future__ import annotations

import importlib
import inspect
import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^(>>> .*(?:\n(?!\s*$).*)*)", re.MULTILINE)


class FencedExamples(griffe.Extension):
    """Put a fence around every block of lines that begins with a Python prompt."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring:
            obj.docstring.value = EXAMPLE.sub(r"```pycon\n\1\n```", obj.docstring.value)


class SharedDefaults(griffe.Extension):
    """Show the defaults of options that a constructor takes as `**options`: in its source there are none."""

    def on_function(self, *, func: griffe.Function, **kwargs: Any) -> None:
        unknown = [parameter for parameter in func.parameters if parameter.default == "..."]
        if unknown and func.parent is not None:
            owner: Any = importlib.import_module(func.module.path)
            if func.parent.is_class:
                owner = getattr(owner, func.parent.name)
            known = inspect.signature(getattr(owner, func.name)).parameters
            for parameter in unknown:
                if parameter.name in known:
                    parameter.default = repr(known[parameter.name].default)
                else:  # a family that lacks this option
                    del func.parameters[parameter.name]
