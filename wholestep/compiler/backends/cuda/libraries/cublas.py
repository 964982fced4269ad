"""cuBLASLt through ctypes, since NVIDIA's Python bindings leave it out.  float32 products use tf32 only on request."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_float, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from dataclasses import replace
from functools import cache
from typing import Any, ClassVar

from wholestep.compiler.backends.cuda.driver.driver import INSTALL
from wholestep.compiler.backends.gpu.grids.gemm_library import GemmOperand, Product
from wholestep.compiler.ir.types import DType, bfloat16, float16, float32
from wholestep.errors import DeviceError, OptionError

TYPES: dict[DType, int] = {float32: 0, float16: 2, bfloat16: 14}
COMPUTE_32F, COMPUTE_TF32, SCALE_32F = 68, 77, 0
TRANSPOSE_A, TRANSPOSE_B, EPILOGUE, BIAS_POINTER = 3, 4, 7, 8  # attributes of a matmul descriptor
BATCH_COUNT, BATCH_STEP = 5, 6  # attributes of a matrix layout
MOST_WORKSPACE, REDUCTIONS, ALIGNMENTS = 1, 3, (5, 6, 7, 8)  # attributes of a preference
ADD_BIAS = 4  # value of EPILOGUE: add a bias
ALIGNED = 1 << 16  # placeholder for addresses that are not known yet: algorithms are chosen by alignment
IN_ORDER = 2 | 4  # reduction schemes: split-K partial sums are added by a separate pass in order, not by atomics
ALIGNMENT = 16  # bytes; required of every operand


class GemmAlgorithm(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t: a proposed algorithm and its workspace size."""

    _fields_: ClassVar[Any] = [
        ("algorithm", c_uint64 * 8),
        ("workspace", c_size_t),
        ("state", c_int),
        ("waves", c_float),
        ("reserved", c_int * 4),
    ]


@cache
def library() -> ctypes.CDLL:
    """The loaded cuBLASLt library; OptionError if it is missing."""
    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib

        return ctypes.CDLL(load_nvidia_dynamic_lib("cublasLt").abs_path)
    except Exception as error:  # the pathfinder raises its own error types
        raise OptionError(
            f"large matrix products on a GPU need cuBLASLt, which cannot be loaded ({type(error).__name__}). Install "
            f"it: {INSTALL}."
        ) from None


def _call(name: str, *args: Any) -> None:
    status = getattr(library(), name)(*args)
    if status:
        raise DeviceError(f"cuBLASLt refused {name}: status {status}.")


@cache
def _handle() -> c_void_p:
    handle = c_void_p()
    _call("cublasLtCreate", byref(handle))
    return handle


def _set(kind: str, of: c_void_p, attribute: int, value: Any) -> None:
    _call(f"cublasLt{kind}SetAttribute", of, attribute, byref(value), c_size_t(ctypes.sizeof(value)))


def _layout(matrix: GemmOperand, rows: int, columns: int, step: int, batch: int) -> c_void_p:
    """A column-major matrix layout, as the library requires."""
    layout = c_void_p()
    kind = TYPES[matrix.dtype]
    _call("cublasLtMatrixLayoutCreate", byref(layout), kind, c_uint64(rows), c_uint64(columns), c_int64(step))
    if batch > 1:
        _set("MatrixLayout", layout, BATCH_COUNT, c_int32(batch))
        _set("MatrixLayout", layout, BATCH_STEP, c_int64(matrix.batch))
    return layout


class PreparedGemm:
    """A GEMM with the library's first proposed algorithm that adds in a fixed order.

    The library is column-major: our row-major matrices are transposed there, so b is the first operand.
    """

    def __init__(self, product: Product) -> None:
        p = self.product = product
        self._desc = c_void_p()
        _call("cublasLtMatmulDescCreate", byref(self._desc), COMPUTE_TF32 if p.tf32 else COMPUTE_32F, SCALE_32F)
        b_row_major, a_row_major = p.b.column == 1, p.a.column == 1
        _set("MatmulDesc", self._desc, TRANSPOSE_A, c_int32(not b_row_major))
        _set("MatmulDesc", self._desc, TRANSPOSE_B, c_int32(not a_row_major))
        first = (p.n, p.k, max(p.b.row, p.n)) if b_row_major else (p.k, p.n, max(p.b.column, p.k))
        second = (p.k, p.m, max(p.a.row, p.k)) if a_row_major else (p.m, p.k, max(p.a.column, p.m))
        self._layouts = [
            _layout(p.b, *first, p.batch),
            _layout(p.a, *second, p.batch),
            _layout(p.c, p.n, p.m, max(p.c.row, p.n), p.batch),
        ]
        if p.bias is not None:
            _set("MatmulDesc", self._desc, EPILOGUE, c_int32(ADD_BIAS))
            _set("MatmulDesc", self._desc, BIAS_POINTER, c_void_p(ALIGNED))  # a placeholder, replaced in each call
        self._algorithm = self._choose_algorithm()

    def _choose_algorithm(self) -> GemmAlgorithm:
        preference, count, proposal = c_void_p(), c_int(), GemmAlgorithm()
        _call("cublasLtMatmulPreferenceCreate", byref(preference))
        _set("MatmulPreference", preference, MOST_WORKSPACE, c_uint64(self.product.workspace))
        _set("MatmulPreference", preference, REDUCTIONS, c_uint32(IN_ORDER))
        for attribute in ALIGNMENTS:
            _set("MatmulPreference", preference, attribute, c_uint32(ALIGNMENT))
        first, second, result = self._layouts
        arguments = (_handle(), self._desc, first, second, result, result, preference, 1, byref(proposal), byref(count))
        _call("cublasLtMatmulAlgoGetHeuristic", *arguments)
        if count.value == 0:
            raise DeviceError(f"cuBLASLt has no algorithm for {self.product}.")
        return proposal

    def run(self, a: int, b: int, c: int, workspace: int, stream: int, bias: int = 0) -> None:
        """Enqueues the product into a stream; a, b, c and bias are device addresses."""
        if bias:
            _set("MatmulDesc", self._desc, BIAS_POINTER, c_void_p(bias))
        first, second, result = self._layouts
        alpha, beta = c_float(1.0), c_float(1.0 if self.product.adds else 0.0)
        _call(
            "cublasLtMatmul", _handle(), self._desc, byref(alpha), c_void_p(b), first, c_void_p(a), second, byref(beta),
            c_void_p(c), result, c_void_p(c), result, byref(self._algorithm.algorithm), c_void_p(workspace),
            c_size_t(self._algorithm.workspace), c_void_p(stream),
        )  # fmt: skip


@cache
def _prepare_anywhere(product: Product) -> PreparedGemm:
    return PreparedGemm(product)


def prepare_gemm(product: Product) -> PreparedGemm:
    """The algorithm is chosen once per process for all products of the same form, wherever their operands are."""
    a, b, c = (replace(x, buffer=0, offset=0) for x in (product.a, product.b, product.c))
    bias = None if product.bias is None else replace(product.bias, buffer=0, offset=0)
    return _prepare_anywhere(replace(product, a=a, b=b, c=c, bias=bias))


def run_product(product: Product, a: int, b: int, c: int, workspace: int, stream: int, bias: int = 0) -> None:
    """Enqueues a product into a stream that is being captured."""
    gemm = prepare_gemm(product)
    for i in range(product.outer):
        a_at, b_at, c_at = (i * x.outer * x.dtype.size for x in (product.a, product.b, product.c))
        gemm.run(a + a_at, b + b_at, c + c_at, workspace, stream, bias)
