"""Functions stored in a model for ops without an ONNX operator; `ws.from_onnx` reads each of them as the one op."""

from __future__ import annotations

from collections.abc import Iterable

from onnx import FunctionProto, parser

DOMAIN = "wholestep"

_NORMAL = """
  mean = ReduceMean <keepdims = 1> (flat, axes)
  centred = Sub (flat, mean)
  squares = Mul (centred, centred)
  variance = ReduceMean <keepdims = 1> (squares, axes)
  least = Constant <value_float: float = @eps> ()
  least_like = CastLike (least, flat)
  above = Add (variance, least_like)
  spread = Sqrt (above)
  normal = Div (centred, spread)
"""
_ROOT_MEAN_SQUARE = """
  squares = Mul (x, x)
  axes = Constant <value_ints = [-1]> ()
  mean = ReduceMean <keepdims = 1> (squares, axes)
  least = Constant <value_float: float = @eps> ()
  least_like = CastLike (least, x)
  above = Add (mean, least_like)
  size = Sqrt (above)
"""
_PER_CHANNEL = """
  two = Constant <value_int = 2> ()
  rank = Size (whole)
  behind = Sub (rank, two)
  zeroth = Constant <value_ints = [0]> ()
  many = Unsqueeze (behind, zeroth)
  ones = ConstantOfShape <value = int64[1] {1}> (many)
  rest = Constant <value_ints = [-1]> ()
  beside = Concat <axis = 0> (rest, ones)
  tall_weight = Reshape (weight, beside)
  tall_bias = Reshape (bias, beside)
  scaled = Mul (shaped, tall_weight)
  y = Add (scaled, tall_bias)
"""
_IN_GROUPS = """
  whole = Shape (x)
  batch = Shape <start = 0, end = 1> (x)
  number = Constant <value_int: int = @groups> ()
  first_axis = Constant <value_ints = [0]> ()
  parts = Unsqueeze (number, first_axis)
  other = Constant <value_ints = [-1]> ()
  apart = Concat <axis = 0> (batch, parts, other)
  flat = Reshape (x, apart)
  axes = Constant <value_ints = [2]> ()
"""
_IN_CHANNELS = """
  whole = Shape (x)
  first = Shape <start = 0, end = 2> (x)
  other = Constant <value_ints = [-1]> ()
  apart = Concat <axis = 0> (first, other)
  flat = Reshape (x, apart)
  axes = Constant <value_ints = [0, 2]> ()
"""

BODIES = {
    "exp2": "exp2 (x) => (y) { b = Constant <value_float = 2.0> () base = CastLike (b, x) y = Pow (base, x) }",
    # e^x - 1 = tanh(x / 2)·(e^x + 1), which keeps the digits near 0
    "expm1": """expm1 (x) => (y) {
  h = Constant <value_float = 0.5> () half = CastLike (h, x) o = Constant <value_float = 1.0> () one = CastLike (o, x)
  halved = Mul (x, half) bend = Tanh (halved) e = Exp (x) more = Add (e, one) y = Mul (bend, more) }""",
    # log x / log 2, not log x · (1 / log 2): constants are float32, and 1 / log 2 would be rounded
    "log2": """log2 (x) => (y) {
  c = Constant <value_float = 2.0> () two = CastLike (c, x) unit = Log (two) natural = Log (x)
  y = Div (natural, unit) }""",
    # log(u)·x / (u - 1) with u = fl(1 + x), which is accurate near 0
    "log1p": """log1p (x) => (y) {
  o = Constant <value_float = 1.0> () one = CastLike (o, x) u = Add (one, x) logarithm = Log (u)
  same = Equal (u, one) infinite = IsInf (u) plain = Or (same, infinite) gone = Sub (u, one)
  divisor = Where (plain, one, gone) part = Div (x, divisor) product = Mul (logarithm, part)
  ends = Where (same, x, logarithm) y = Where (plain, ends, product) }""",
    "silu": "silu (x) => (y) { s = Sigmoid (x) y = Mul (x, s) }",
    "mod": "mod (x, z) => (y) { q = Div (x, z) n = Floor (q) w = Mul (n, z) y = Sub (x, w) }",
    "bce_with_logits": """bce_with_logits (x, z) => (y) {
  positive = Relu (x) product = Mul (x, z) first = Sub (positive, product)
  size = Abs (x) below = Neg (size) rest = Softplus (below) y = Add (first, rest) }""",
    "cross_entropy": """cross_entropy (x, labels) => (y) {
  logs = LogSoftmax <axis = -1> (x) whole = Cast <to = 7> (labels) axes = Constant <value_ints = [-1]> ()
  index = Unsqueeze (whole, axes) picked = GatherElements <axis = -1> (logs, index) flat = Squeeze (picked, axes)
  y = Neg (flat) }""",
    # The index of each position along an axis of a shape.
    "iota": """iota <axis, dtype> (shape) => (y) {
  a = Constant <value_int: int = @axis> () zeroth = Constant <value_ints = [0]> () place = Unsqueeze (a, zeroth)
  many = Gather <axis = 0> (shape, place) rank = Shape (shape) ones = ConstantOfShape <value = int64[1] {1}> (rank)
  along = ScatterElements <axis = 0> (ones, place, many) end = Squeeze (many, zeroth)
  start = Constant <value_int = 0> () step = Constant <value_int = 1> () row = Range (start, end, step)
  placed = Reshape (row, along) wide = Expand (placed, shape) y = Cast <to: int = @dtype> (wide) }""",
    "argmax": """argmax <axis> (x) => (y) {
  whole = ArgMax <axis: int = @axis, keepdims = 0> (x) y = Cast <to = 6> (whole) }""",
    # A scatter-add: zeros of a shape, with updates added at the indexed rows.
    "scatter_add": """scatter_add (updates, index, shape) => (y) {
  blank = ConstantOfShape (shape) zeros = CastLike (blank, updates) whole = Cast <to = 7> (index)
  axes = Constant <value_ints = [-1]> () place = Unsqueeze (whole, axes)
  y = ScatterND <reduction = "add"> (zeros, place, updates) }""",
    "layer_norm": f"""layer_norm <eps> (x) => (y) {{
  flat = Identity (x) axes = Constant <value_ints = [-1]> () {_NORMAL} y = Identity (normal) }}""",
    "rms_norm": f"rms_norm <eps> (x) => (y) {{ {_ROOT_MEAN_SQUARE} y = Div (x, size) }}",
    "rms_norm1": f"rms_norm1 <eps> (x, weight) => (y) {{ {_ROOT_MEAN_SQUARE} n = Div (x, size) y = Mul (n, weight) }}",
    "group_norm": f"group_norm <eps, groups> (x) => (y) {{ {_IN_GROUPS} {_NORMAL} y = Reshape (normal, whole) }}",
    "group_norm2": f"""group_norm2 <eps, groups> (x, weight, bias) => (y) {{
  {_IN_GROUPS} {_NORMAL} shaped = Reshape (normal, whole) {_PER_CHANNEL} }}""",
    "batch_norm": f"batch_norm <eps> (x) => (y) {{ {_IN_CHANNELS} {_NORMAL} y = Reshape (normal, whole) }}",
    "batch_norm2": f"""batch_norm2 <eps> (x, weight, bias) => (y) {{
  {_IN_CHANNELS} {_NORMAL} shaped = Reshape (normal, whole) {_PER_CHANNEL} }}""",
}
# softmax(scale·q·kᵀ + mask)·v
_SCALED = """
  factor = Constant <value_float: float = @scale> ()
  factor_like = CastLike (factor, q)
  larger = Mul (q, factor_like)
"""
_CAUSAL = """
  zero = Constant <value_int = 0> ()
  one = Constant <value_int = 1> ()
  last = Constant <value_ints = [-1]> ()
  before = Constant <value_ints = [-2]> ()
  sizes = Shape (scores)
  queries = Gather <axis = 0> (sizes, before)
  keys = Gather <axis = 0> (sizes, last)
  nothing = Constant <value_ints = [0]> ()
  rows_end = Squeeze (queries, nothing)
  columns_end = Squeeze (keys, nothing)
  row = Range (zero, rows_end, one)
  rows = Unsqueeze (row, last)
  columns = Range (zero, columns_end, one)
  seen = LessOrEqual (columns, rows)
  minus = Constant <value_float = -inf> ()
  minus_like = CastLike (minus, scores)
  visible = Where (seen, scores, minus_like)
"""
_PLAIN = "  weights = Softmax <axis = -1> (visible)\n"
# A query that may attend to nothing gets the output 0.
_SAFE = """
  by_row = Constant <value_ints = [-1]> ()
  most = ReduceMax <keepdims = 1> (visible, by_row)
  lowest = Constant <value_float = -inf> ()
  lowest_like = CastLike (lowest, most)
  sees = Greater (most, lowest_like)
  nil = Constant <value_float = 0.0> ()
  nil_like = CastLike (nil, most)
  some = Where (sees, visible, nil_like)
  shares = Softmax <axis = -1> (some)
  weights = Where (sees, shares, nil_like)
"""
_GROUPED = """
  q_sizes = Shape (larger)
  q_batch = Shape <start = 0, end = 1> (larger)
  q_rest = Shape <start = 2> (larger)
  k_heads = Shape <start = 1, end = 2> (k)
  free = Constant <value_ints = [-1]> ()
  q_apart = Concat <axis = 0> (q_batch, k_heads, free, q_rest)
  queries5 = Reshape (larger, q_apart)
  second = Constant <value_ints = [2]> ()
  k5 = Unsqueeze (k, second)
  v5 = Unsqueeze (v, second)
  transposed = Transpose <perm = [0, 1, 2, 4, 3]> (k5)
  raw5 = MatMul (queries5, transposed)
  raw_sizes = Shape <start = -2> (raw5)
  q_heads = Shape <start = 1, end = 2> (larger)
  together = Concat <axis = 0> (q_batch, q_heads, raw_sizes)
  raw = Reshape (raw5, together)
"""
_GROUPED_OUT = """
  weights_rest = Shape <start = 2> (weights)
  weights_apart = Concat <axis = 0> (q_batch, k_heads, free, weights_rest)
  weights5 = Reshape (weights, weights_apart)
  mixed = MatMul (weights5, v5)
  mixed_rest = Shape <start = -2> (mixed)
  whole = Concat <axis = 0> (q_batch, q_heads, mixed_rest)
  y = Reshape (mixed, whole)
"""


def _attention(name: str) -> str:
    """The body of an attention function, whose name tells if it is grouped, causal, masked, and its rank unless 4."""
    rank = int(name.rpartition("attention")[2] or 4)
    masked = "masked_" in name
    order = ", ".join(map(str, [*range(rank - 2), rank - 1, rank - 2]))
    raw = (
        _GROUPED
        if "grouped_" in name
        else f" transposed = Transpose <perm = [{order}]> (k) raw = MatMul (larger, transposed)\n"
    )
    scores = " scores = Add (raw, mask)\n" if masked else " scores = Identity (raw)\n"
    visible = _CAUSAL if "causal_" in name else " visible = Identity (scores)\n"
    out = _GROUPED_OUT if "grouped_" in name else " y = MatMul (weights, v)\n"
    body = _SCALED + raw + scores + visible + (_SAFE if masked else _PLAIN) + out
    return f"{name} <scale> (q, k, v{', mask' if masked else ''}) => (y) {{ {body} }}"


def function_protos(names: Iterable[str], opset: int) -> list[FunctionProto]:
    """The functions with these names as FunctionProtos."""
    head = f'<opset_import: ["" : {opset}], domain: "{DOMAIN}">'
    return [parser.parse_function(f"{head} {BODIES.get(name) or _attention(name)}") for name in sorted(names)]
