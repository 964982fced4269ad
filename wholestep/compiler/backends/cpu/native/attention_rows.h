/* Attention for one element type; attention.h explains the algorithm and includes this file once for each type. */

/* A view without `at` is an operand or a result that is absent.  Axes: (heads, rows, columns). */
typedef struct {
  ws_view q, k, v, mask;                              /* q (group, queries, width), k (keys, width), v (keys, values) */
  ws_view out, lse;                                   /* out (group, queries, values), lse (group, queries) */
  long group, queries, keys, width, values, causal, block;
  double scale;
  REAL *work;
  const ws_ahead *ahead; long aheads;                 /* operands of the next call, which this call prefetches */
} NAME(ws_attention);

typedef struct {
  ws_view q, k, v, mask, lse, gradient;               /* gradient of the result, (group, queries, values) */
  ws_view dq, dk, dv, dmask;
  long group, queries, keys, width, values, causal, block;
  double scale;
  REAL *work;
  const ws_ahead *ahead; long aheads;
} NAME(ws_attention_grad);

/* A matrix operand of a product: element (i, j) at `at` + i*row + (j/16)*panel + j%16. */
typedef struct { REAL *at; long row, panel; } NAME(ws_matrix);

WS_INLINE NAME(ws_matrix) NAME(ws_head)(const ws_view *v, long head, long row) {
  return (NAME(ws_matrix)){(REAL *)v->at + head * v->step[0] + row * v->step[1], v->step[1], v->panel};
}
WS_INLINE NAME(ws_matrix) NAME(ws_shared)(const ws_view *v) {
  return (NAME(ws_matrix)){(REAL *)v->at, v->step[0], v->panel};
}

/* c = a b */
WS_INLINE void NAME(ws_product)(const ws_api *api, NAME(ws_matrix) a, NAME(ws_matrix) b, NAME(ws_matrix) c, long m,
                                long n, long k, ws_ahead_share ahead) {
  const ws_gemm g = {m, n, k, a.at, a.row, 1, a.panel, b.at, b.row, b.panel, c.at, c.row, c.panel, 0,
                     ahead.from, ahead.count};
  NAME(api->gemm)(&g);
}
/* c (+)= aᵀ b, a dense: the sum runs over the rows of a */
WS_INLINE void NAME(ws_transposed_product)(const ws_api *api, NAME(ws_matrix) a, NAME(ws_matrix) b, NAME(ws_matrix) c,
                                       long m, long n, long k, long add) {
  const ws_gemm g = {m, n, k, a.at, 1, a.row, 16 * a.row, b.at, b.row, b.panel, c.at, c.row, c.panel, add};
  NAME(api->gemm)(&g);
}

/* Copy the transpose of x into panels, [rows/16][columns][16]. */
WS_INLINE NAME(ws_matrix) NAME(ws_transpose)(REAL *restrict to, NAME(ws_matrix) x, long rows, long columns) {
  for (long i = 0; i < rows; i += 16) {
    const long n = WS_LEAST(16, rows - i), whole = sizeof(REAL) == 4 && n == 16 ? columns / 16 * 16 : 0;
    for (long j = 0; j < whole; j += 16)              /* this branch is for floats only, hence the casts */
      ws_turn_16x16((float *)to + i * columns + j * 16, (const float *)(x.at + i * x.row + j / 16 * x.panel), x.row);
    for (long j = whole; j < columns; j++)
      for (long l = 0; l < n; l++) to[(i * columns) + j * 16 + l] = x.at[(i + l) * x.row + j / 16 * x.panel + j % 16];
  }
  return (NAME(ws_matrix)){to, 16, 16 * columns};
}

WS_INLINE NAME(ws_matrix) NAME(ws_mask_row)(const ws_view *mask, long head, long query) {
  return mask->at ? NAME(ws_head)(mask, head, query) : (NAME(ws_matrix)){0};
}

/* z = scale * z + mask for the n visible keys of a query; returns the factor that remains to be applied. */
WS_INLINE REAL NAME(ws_masked)(REAL *restrict z, long n, REAL scale, NAME(ws_matrix) mask) {
  if (!mask.at) return scale;
  for (long j = 0; j < n; j += 16)
    for (long l = 0; l < WS_LEAST(16, n - j); l++) z[j + l] = z[j + l] * scale + mask.at[j / 16 * mask.panel + l];
  return 1;
}

/* The maximum of 16 lanes.  NaN may be lost here, but the exponential of the NaN score restores it. */
#define WS_LARGER(a, b) (NAME(ws_half))(((NAME(ws_order))(a) & ((a) > (b))) | ((NAME(ws_order))(b) & ~((a) > (b))))
WS_INLINE REAL NAME(ws_largest)(const REAL *lanes) {
  const NAME(ws_half) low = *(const NAME(ws_half) *)lanes, high = *(const NAME(ws_half) *)(lanes + 8);
  NAME(ws_half) s = WS_LARGER(low, high), t = WS_SHUFFLE(NAME(ws_order), s, s, 4, 5, 6, 7, 4, 5, 6, 7);
  s = WS_LARGER(s, t), t = WS_SHUFFLE(NAME(ws_order), s, s, 2, 3, 2, 3, 2, 3, 2, 3);
  s = WS_LARGER(s, t);
  return s[0] > s[1] ? s[0] : s[1];
}
#undef WS_LARGER

/* z = scale * z, -inf from n to the end of its last 16 elements; returns the maximum. */
WS_INLINE REAL NAME(ws_scaled)(REAL *restrict z, long n, REAL scale) {
  REAL lanes[16];
  for (int l = 0; l < 16; l++) lanes[l] = (REAL)-__builtin_inf();
  for (long j = 0; j < n; j += 16) {
    const int left = (int)WS_LEAST(16, n - j);
#pragma omp simd simdlen(16)
    for (int l = 0; l < 16; l++) {
      const REAL x = l < left ? z[j + l] * scale : (REAL)-__builtin_inf();
      z[j + l] = x;
      lanes[l] = lanes[l] > x ? lanes[l] : x;
    }
  }
  return NAME(ws_largest)(lanes);
}

/* z = e^(z - most), 0 from n to `end`; returns the sum. */
WS_INLINE REAL NAME(ws_exponentials)(REAL *restrict z, long n, long end, REAL most) {
  REAL lanes[16];
  for (int l = 0; l < 16; l++) lanes[l] = 0;
  for (long j = 0; j < n; j += 16) {
    const int left = (int)WS_LEAST(16, n - j);
#pragma omp simd simdlen(16)
    for (int l = 0; l < 16; l++) {
      const REAL e = l < left ? NAME(ws_exp)(z[j + l] - most) : 0;
      z[j + l] = e;
      lanes[l] = lanes[l] + e;
    }
  }
  for (long j = ws_lanes(n); j < end; j += 16)
    for (long l = 0; l < 16; l++) z[j + l] = 0;
  return NAME(ws_lanes_sum)(lanes);
}

WS_INLINE void NAME(ws_call_attention)(const ws_api *api, const NAME(ws_attention) *a) {
  const long stride = ws_lanes(a->keys) + 16, step = a->causal ? WS_CAUSAL_ROWS : a->block;
  const NAME(ws_matrix) transposed = NAME(ws_transpose)(a->work, NAME(ws_shared)(&a->k), a->keys, a->width);
  const NAME(ws_matrix) p = {a->work + ws_lanes(a->keys) * a->width, stride, 16};
  REAL most[WS_MOST_QUERIES], total[WS_MOST_QUERIES];
  for (long g = 0; g < a->group; g++)
    for (long row = 0; row < a->queries; row += step) {
      const long rows = WS_LEAST(step, a->queries - row);
      const long seen = a->causal ? WS_LEAST(a->keys, row + rows) : a->keys, turn = g * a->queries + row;
      NAME(ws_product)(api, NAME(ws_head)(&a->q, g, row), transposed, p, rows, seen, a->width, WS_SHARE(a, turn, rows));
      /* Row by row within each pass, so that the latencies of neighbouring rows overlap. */
      for (long i = 0; i < rows; i++) {
        const long n = a->causal ? WS_LEAST(seen, row + i + 1) : seen;
        REAL *z = p.at + i * stride;
        const REAL scale = NAME(ws_masked)(z, n, (REAL)a->scale, NAME(ws_mask_row)(&a->mask, g, row + i));
        most[i] = NAME(ws_scaled)(z, n, scale);
      }
      /* A query without any visible key has weights of 0, not NaN; its lse of +inf makes them 0 in the gradient too. */
      for (long i = 0; i < rows; i++) most[i] = most[i] == (REAL)-__builtin_inf() ? 0 : most[i];
      for (long i = 0; i < rows; i++) {
        const long n = a->causal ? WS_LEAST(seen, row + i + 1) : seen;
        total[i] = NAME(ws_exponentials)(p.at + i * stride, n, ws_lanes(seen), most[i]);
      }
      if (a->lse.at) {
        REAL *lse = (REAL *)a->lse.at + g * a->lse.step[0] + row * a->lse.step[1];
        for (long i = 0; i < rows; i++)
          most[i] = total[i] == 0 ? (REAL)__builtin_inf() : most[i] + NAME(ws_log)(total[i]);
        for (long i = 0; i < rows; i++) lse[i * a->lse.step[1]] = most[i];
      }
      for (long i = 0; i < rows; i++) total[i] = total[i] == 0 ? 0 : 1 / total[i];
      for (long i = 0; i < rows; i++) {
        REAL *z = p.at + i * stride;
        const REAL inverse = total[i];
        for (long j = 0; j < ws_lanes(a->causal ? WS_LEAST(seen, row + i + 1) : seen); j += 16)
          for (long l = 0; l < 16; l++) z[j + l] = z[j + l] * inverse;
      }
      if (a->out.at)
        NAME(ws_product)(api, p, NAME(ws_shared)(&a->v), NAME(ws_head)(&a->out, g, row), rows, a->values, seen,
                         WS_NOTHING);
    }
}

/* z = e^(scale * z - lse), dp = outer * z * (dp - sum of z * dp); both 0 from n to `end`. */
WS_INLINE void NAME(ws_softmax_grad)(REAL *restrict z, REAL *restrict dp, long n, long end, REAL lse, REAL scale,
                                     REAL outer, NAME(ws_matrix) dmask, long keys) {
  REAL lanes[16];
  for (int l = 0; l < 16; l++) lanes[l] = 0;
  for (long j = 0; j < n; j += 16) {
    const int left = (int)WS_LEAST(16, n - j);
#pragma omp simd simdlen(16)
    for (int l = 0; l < 16; l++) {
      const REAL e = l < left ? NAME(ws_exp)(z[j + l] * scale - lse) : 0, d = l < left ? dp[j + l] : 0;
      z[j + l] = e;
      dp[j + l] = d;
      lanes[l] = lanes[l] + e * d;
    }
  }
  const REAL inner = NAME(ws_lanes_sum)(lanes);
  if (dmask.at)
    for (long j = 0; j < keys; j++) dmask.at[j / 16 * dmask.panel + j % 16] = j < n ? z[j] * (dp[j] - inner) : 0;
  for (long j = 0; j < n; j += 16)
    for (long l = 0; l < 16; l++) dp[j + l] = z[j + l] * (dp[j + l] - inner) * outer;
  for (long j = ws_lanes(n); j < end; j += 16)
    for (long l = 0; l < 16; l++) z[j + l] = 0, dp[j + l] = 0;
}

/* Probabilities and score gradients of the queries [row, row + rows), stored at their place in the block. */
WS_INLINE long NAME(ws_score_block)(const ws_api *api, const NAME(ws_attention_grad) *a, NAME(ws_matrix) k_transposed,
                                    NAME(ws_matrix) v_transposed, NAME(ws_matrix) p, NAME(ws_matrix) ds, long g,
                                    long row, long rows) {
  const long seen = a->causal ? WS_LEAST(a->keys, row + rows) : a->keys, turn = g * a->queries + row;
  NAME(ws_product)(api, NAME(ws_head)(&a->q, g, row), k_transposed, p, rows, seen, a->width, WS_SHARE(a, turn, rows));
  NAME(ws_product)(api, NAME(ws_head)(&a->gradient, g, row), v_transposed, ds, rows, seen, a->values, WS_NOTHING);
  for (long i = 0; i < rows; i++) {
    const long n = a->causal ? WS_LEAST(seen, row + i + 1) : seen, query = row + i;
    REAL *z = p.at + i * p.row, *d = ds.at + i * ds.row;
    const REAL scale = NAME(ws_masked)(z, n, (REAL)a->scale, NAME(ws_mask_row)(&a->mask, g, query));
    NAME(ws_softmax_grad)(z, d, n, ws_lanes(seen), ((REAL *)a->lse.at)[g * a->lse.step[0] + query * a->lse.step[1]],
                          scale, (REAL)a->scale, NAME(ws_mask_row)(&a->dmask, g, query), a->keys);
  }
  if (a->dq.at)
    NAME(ws_product)(api, ds, NAME(ws_shared)(&a->k), NAME(ws_head)(&a->dq, g, row), rows, a->width, seen, WS_NOTHING);
  return seen;
}

/* Add the contribution of queries [row, row + rows) to the gradient of keys or values: xᵀ y over the queries that see
   each key. */
WS_INLINE void NAME(ws_add_keys)(const ws_api *api, const NAME(ws_attention_grad) *a, NAME(ws_matrix) x,
                                 NAME(ws_matrix) y, const ws_view *to, long columns, long g, long row, long rows) {
  const long before = a->causal ? WS_LEAST(row, a->keys) : 0;  /* keys that all queries of the block see */
  NAME(ws_matrix) c = NAME(ws_shared)(to);
  if (!a->causal) NAME(ws_transposed_product)(api, x, y, c, a->keys, columns, rows, g > 0 || row > 0);
  else if (before) NAME(ws_transposed_product)(api, x, y, c, before, columns, rows, 1);
  for (long i = 0; a->causal && i < rows && row + i < a->keys; i += WS_CAUSAL_ROWS) {
    const long key = row + i, keys = WS_LEAST(WS_CAUSAL_ROWS, WS_LEAST(a->keys - key, rows - i));
    const NAME(ws_matrix) from = {x.at + i * x.row + key, x.row, 16}, down = {y.at + i * y.row, y.row, y.panel};
    NAME(ws_transposed_product)(api, from, down, (NAME(ws_matrix)){c.at + key * c.row, c.row, c.panel}, keys, columns,
                            rows - i, g > 0);
  }
}

/* Zero the gradients of keys that no query sees. */
WS_INLINE void NAME(ws_clear_keys)(const ws_view *to, long first, long keys, long columns) {
  const NAME(ws_matrix) c = NAME(ws_shared)(to);
  for (long i = first; i < keys; i++)
    for (long j = 0; j < columns; j++) c.at[i * c.row + j / 16 * c.panel + j % 16] = 0;
}

WS_INLINE void NAME(ws_call_attention_grad)(const ws_api *api, const NAME(ws_attention_grad) *a) {
  const long stride = ws_lanes(a->keys) + 16, step = a->causal ? WS_CAUSAL_ROWS : a->block;
  const NAME(ws_matrix) k_transposed = NAME(ws_transpose)(a->work, NAME(ws_shared)(&a->k), a->keys, a->width);
  REAL *work = a->work + ws_lanes(a->keys) * a->width;
  const NAME(ws_matrix) v_transposed = NAME(ws_transpose)(work, NAME(ws_shared)(&a->v), a->keys, a->values);
  work += ws_lanes(a->keys) * a->values;
  const NAME(ws_matrix) p = {work, stride, 16}, ds = {work + a->block * stride, stride, 16};
  for (long g = 0; g < a->group; g++)
    for (long row = 0; row < a->queries; row += a->block) {
      const long rows = WS_LEAST(a->block, a->queries - row);
      for (long i = 0; i < rows; i += step) {
        const NAME(ws_matrix) p_i = {p.at + i * stride, stride, 16}, ds_i = {ds.at + i * stride, stride, 16};
        NAME(ws_score_block)(api, a, k_transposed, v_transposed, p_i, ds_i, g, row + i, WS_LEAST(step, rows - i));
      }
      if (a->dk.at) NAME(ws_add_keys)(api, a, ds, NAME(ws_head)(&a->q, g, row), &a->dk, a->width, g, row, rows);
      if (a->dv.at) NAME(ws_add_keys)(api, a, p, NAME(ws_head)(&a->gradient, g, row), &a->dv, a->values, g, row, rows);
    }
  const long seen = a->causal ? WS_LEAST(a->keys, a->queries) : a->queries > 0 ? a->keys : 0;
  if (a->dk.at) NAME(ws_clear_keys)(&a->dk, seen, a->keys, a->width);
  if (a->dv.at) NAME(ws_clear_keys)(&a->dv, seen, a->keys, a->values);
}
