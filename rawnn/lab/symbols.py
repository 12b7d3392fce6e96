"""A kernel's `__constant__` and `__device__` variables, which the host reads and writes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rawnn.common.dtypes import check_unmasked, first_lossy
from rawnn.common.errors import ConfigError, nearest
from rawnn.cuda.compiling.symbols import SymbolType, symbols
from rawnn.cuda.device import Device, Function
from rawnn.cuda.errors import CallFailed, check
from rawnn.lab.arguments import ELEMENTS
from rawnn.lab.arrays import RECORDING


class Symbol:
    """A variable of a loaded kernel: `symbol[:] = values` writes it, `numpy()` reads it.

    `shape` and `dtype` are those of the declaration. If an extent is no plain number, the variable
    is a vector of as many elements as fit its size. Both operations follow all launches so far, and
    wait.
    """

    def __init__(self, declared: SymbolType, address: int, nbytes: int, device: Device,
                 written: dict[str, Any]) -> None:
        self.name, self.address, self.nbytes, self.device = (declared.name, address, nbytes, device)
        self._written = written  # also given to kernels from the same recipe
        self.dtype = _dtype(declared)
        count, rest = divmod(nbytes, self.dtype.itemsize)
        self.shape = declared.shape if declared.shape is not None else (count,)
        if rest or int(np.prod(self.shape, dtype=int)) != count:
            raise ConfigError(f"the symbol '{self.name}' has {nbytes} bytes, which its declaration "
                              f"({self.dtype}{list(self.shape)}) does not explain")

    def __setitem__(self, key: Any, values: ArrayLike) -> None:
        """Write all of it, or a part as NumPy indexes it. Raises ConfigError for values of another
        shape or out of the dtype's range."""
        self._check_recorded()
        whole = isinstance(key, slice) and key == slice(None)
        host = np.empty(self.shape, self.dtype) if whole else self.numpy()
        check_unmasked(values, repr(self))
        given = np.asarray(values)
        whole_numbers = given.dtype.kind in "iub" and self.dtype.kind in "iub"
        fits = whole_numbers or np.can_cast(given.dtype, self.dtype, "same_kind")
        with np.errstate(over="ignore"):
            if fits and given.dtype.kind in "iubf":
                fits = first_lossy(given, given.astype(self.dtype)) is None
        if not fits:
            raise ConfigError(f"{self!r} cannot hold these values of {given.dtype}: convert them "
                              f"first")
        try:
            host[... if whole else key] = given
        except (ValueError, IndexError) as error:
            raise ConfigError(f"{self!r} does not take values of shape {given.shape}: {error}"
                              ) from None
        self.device.to_device(self.address, host, repr(self))
        self._written[self.name] = host

    def numpy(self) -> NDArray[Any]:
        """A copy on the host. Raises ConfigError while a graph with kernels is recorded."""
        self._check_recorded()
        host = np.empty(self.shape, self.dtype)
        self.device.to_host(host, self.address, repr(self))
        return host

    def _check_recorded(self) -> None:
        for graph in RECORDING:
            graph.check_symbol(self)

    def __repr__(self) -> str:
        return f"rawnn.lab.Symbol({self.name}: {self.dtype}{list(self.shape)})"


def symbol(name: str, text: str, function: Function, device: Device,
           written: dict[str, Any]) -> Symbol:
    """The variable `name` of the source `text` from which `function` was compiled. Raises
    ConfigError, with the nearest name, if it declares none, or the kernel does not use it."""
    known = {each.name: each for each in symbols(text)}
    if name not in known:
        declared = f"it declares {', '.join(known)}" if known else "it declares none"
        raise ConfigError(f"the source has no __constant__ or __device__ variable '{name}'; "
                          f"{declared}{nearest(name, known)}")
    result = device.driver.cuModuleGetGlobal(function.module, name.encode())
    try:
        address, nbytes = check(device.driver, "cuModuleGetGlobal", result, name)
    except CallFailed as error:
        raise ConfigError(f"the variable '{name}' is not in the compiled kernel ({error}): use it "
                          f"in the kernel, and declare it outside of namespaces and without static"
                          ) from None
    return Symbol(known[name], address, nbytes, device, written)


def _dtype(declared: SymbolType) -> np.dtype[Any]:
    if declared.ctype.endswith("*"):
        return np.dtype("uint64")
    if declared.ctype in ELEMENTS:
        found: np.dtype[Any] = np.dtype(ELEMENTS[declared.ctype])
        return found
    if declared.layout is None:
        raise ConfigError(f"the layout of '{declared.ctype}', the type of the variable "
                          f"'{declared.name}', is not known: declare it in the source as a struct "
                          f"of plain members")
    return declared.layout.dtype
