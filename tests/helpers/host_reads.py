"""Guards that fail where the host would wait for a device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

READS = {"aten::_local_scalar_dense", "aten::item", "aten::nonzero", "aten::is_nonzero", "aten::equal"}


class NoHostReads(TorchDispatchMode):
    """Fails on whatever would make the host wait: reading a value back, or copying one over."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.name().split(".")[0]
        if name in READS:
            raise AssertionError(f"{name} waits for the device")
        out = func(*args, **kwargs)
        if name in ("aten::_to_copy", "aten::copy_"):
            source = args[0] if name == "aten::_to_copy" else args[1]
            if source.device != out.device and not kwargs.get("non_blocking"):
                raise AssertionError(f"{name} from {source.device} to {out.device} waits for the device")
        return out


class NoHostValues(TorchFunctionMode):
    """Fails where a number of the host is made into a tensor on another device, which copies it over."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func in (torch.tensor, torch.as_tensor, torch.asarray) and out.device.type != "cpu":
            assert isinstance(args[0], Tensor), f"{func.__name__} copies {args[0]} over"
        return out


@contextmanager
def no_host_reads() -> Iterator[None]:
    with NoHostReads(), NoHostValues():
        yield
