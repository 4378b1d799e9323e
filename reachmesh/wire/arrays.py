"""numpy arrays and scalars on the wire; numpy is never imported to send, and to read only when an array came.

Big arrays leave as views of their own memory. A read array is writable: it takes over a `bytearray` it is given and
copies anything else, since what arrives in a message part is often shared or read-only.
Object, structured and void types are refused: the first would need pickle, the others lose their fields in `dtype.str`.
"""

from __future__ import annotations

import math
import re
import sys
from typing import Any

import msgpack
from msgpack import ExtType

from reachmesh.wire.extensions import Ext

_DTYPE = re.compile(r"[<>|](?:b1|[iufcSU]\d{1,9}|[mM]8(?:\[\d{0,9}(?:Y|M|W|D|h|m|s|ms|us|ns|ps|fs|as)\])?)")
_DIMENSIONS = 64


def is_array(value: Any) -> bool:
    """Whether `value` is exactly a numpy array. False without an import when numpy is not loaded."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and type(value) is getattr(numpy, "ndarray", None)


def is_scalar(value: Any) -> bool:
    """Whether `value` is one of numpy's own scalars."""
    numpy = sys.modules.get("numpy")
    generic = getattr(numpy, "generic", None)
    return generic is not None and isinstance(value, generic) and type(value).__module__ == "numpy"


def write_array(array: Any, inline: int) -> tuple[ExtType, memoryview | None]:
    """An array as an extension and, from `inline` bytes on, the view of its memory that travels out of band.

    An array that is neither C- nor Fortran-contiguous is copied once.

    Raises:
        ValueError: a dtype that cannot travel.
    """
    dtype = _dtype_text(array.dtype)
    numpy = sys.modules["numpy"]
    if not (array.flags.c_contiguous or array.flags.f_contiguous):
        array = numpy.ascontiguousarray(array)
    order = "C" if array.flags.c_contiguous else "F"
    view: memoryview | None = None
    if array.nbytes >= inline:
        flat = array if order == "C" else array.T
        view = memoryview(flat.reshape(-1).view(numpy.uint8))
    data = None if view is not None else array.tobytes(order="A")
    return ExtType(Ext.ARRAY, msgpack.packb([dtype, order, list(array.shape), data])), view


def write_scalar(value: Any) -> ExtType:
    """A numpy scalar as an extension. ValueError for a dtype that cannot travel."""
    return ExtType(Ext.SCALAR, msgpack.packb([_dtype_text(value.dtype), value.tobytes()[: value.dtype.itemsize]]))


def read_array(data: bytes) -> tuple[str, str, list[int], bytes | None]:
    """The description of an array: dtype, order, shape, and its bytes or None when they are out of band."""
    dtype, order, shape, inline = msgpack.unpackb(data)
    if type(dtype) is not str or not _DTYPE.fullmatch(dtype) or order not in ("C", "F"):
        raise ValueError("an array of a type that does not travel")
    if type(shape) is not list or len(shape) > _DIMENSIONS or any(type(each) is not int or each < 0 for each in shape):
        raise ValueError("an array without a proper shape")
    if inline is not None and type(inline) is not bytes:
        raise ValueError("an array without bytes")
    return dtype, order, shape, inline


def make_array(dtype: str, order: str, shape: list[int], data: Any) -> Any:
    """The array itself, around `data`, which must be writable."""
    numpy = _numpy()
    kind = numpy.dtype(dtype)
    size = memoryview(data).nbytes
    if math.prod(shape) * kind.itemsize != size:
        raise ValueError(f"an array of shape {shape} and type {dtype} cannot have {size} bytes")
    if not size:
        return numpy.empty(shape, kind, order=order)
    return numpy.ndarray(shape, kind, buffer=data, order=order)


def read_scalar(data: bytes) -> Any:
    """A numpy scalar from its extension's data."""
    dtype, raw = msgpack.unpackb(data)
    if type(dtype) is not str or not _DTYPE.fullmatch(dtype) or type(raw) is not bytes:
        raise ValueError("a numpy scalar of a type that does not travel")
    numpy = _numpy()
    kind = numpy.dtype(dtype)
    if kind.itemsize != len(raw):
        raise ValueError(f"a numpy scalar of type {dtype} cannot have {len(raw)} bytes")
    return numpy.ndarray((), kind, buffer=raw)[()] if raw else kind.type()


def _dtype_text(dtype: Any) -> str:
    text: str = dtype.str
    if dtype.hasobject or dtype.fields is not None or not _DTYPE.fullmatch(text):
        raise ValueError(f"numpy data of type {dtype} cannot travel")
    return text


def _numpy() -> Any:
    try:
        import numpy
    except ImportError:
        raise ValueError("a numpy array came, but numpy is not installed here (pip install 'reachmesh[numpy]')") from None
    return numpy
