/* Flash attention, forward and backward.  A block owns a tile of TILE queries, or of keys, and iterates over tiles of
   the others with an online softmax; scores are never stored in global memory.  Groups of 8 threads have OWN rows of
   the tile each; no bit depends on OWN.  The order of the sums depends on the lengths alone; there are no atomics.

   q(h, i), k(j) and so on return rows in memory; h is the query head among the heads that share keys (grouped-query
   attention). IN is the storage type of operands, OUT of results; ALIGNED: addresses and lengths of all rows are
   multiples of 16 bytes. */
struct ws_plain {
  template <class T> static __device__ __forceinline__ T wide(T x) { return x; }
  template <class T> static __device__ __forceinline__ T narrow(T x) { return x; }
};
struct ws_bf16 {
  static __device__ __forceinline__ float wide(ws_half x) { return ws_from_bf16(x); }
  static __device__ __forceinline__ ws_half narrow(float x) { return ws_to_bf16(x); }
};
struct ws_f16 {
  static __device__ __forceinline__ float wide(ws_half x) { return ws_from_f16(x); }
  static __device__ __forceinline__ ws_half narrow(float x) { return ws_to_f16(x); }
};
template <class P> struct ws_pointed;
template <class S> struct ws_pointed<S *> { using type = S; };
template <class S> struct ws_pointed<const S *> { using type = S; };
template <class P> using ws_element = typename ws_pointed<P>::type; /* element type of a row */
template <class S, int COUNT> struct alignas(sizeof(S) * COUNT) ws_piece {
  S x[COUNT];
};

template <class T, int ROWS, int TILE, int W, int E> struct ws_heads {
  static constexpr int OWN = ROWS, THREADS = TILE / OWN * 8, PAD = 16 / sizeof(T), ACROSS = TILE / 8;
  static constexpr int WIDE = (W + 3) / 4 * 4 + PAD, TALL = (E + 3) / 4 * 4 + PAD, SQUARE = TILE + PAD;
  static constexpr int PIECES_W = (W + 31) / 32, PIECES_E = (E + 31) / 32; /* number of vectors of 4 columns per thread */
  static constexpr int FORWARD = TILE * (2 * WIDE + TALL + SQUARE);
  static constexpr int BACKWARD = TILE * (2 * WIDE + 2 * TALL + 2 * SQUARE + 2);
};

/* Loads TILE rows of COLUMNS elements into shared memory with row stride STEP; zeros past the last row and column. */
template <class KIND, bool ALIGNED, class T, int THREADS, int TILE, int COLUMNS, int STEP, class F>
WS_INLINE void ws_fill(T *to, int first, int rows, F row) {
  using S = ws_element<decltype(row(0))>;
  if constexpr (ALIGNED) {
    constexpr int EACH = 16 / sizeof(S), ACROSS = COLUMNS / EACH, FOUR = 16 / sizeof(T);
#pragma unroll
    for (int at = threadIdx.x; at < TILE * ACROSS; at += THREADS) {
      const int i = at / ACROSS, c = at % ACROSS * EACH;
      ws_piece<S, EACH> piece = {};
      if (first + i < rows) piece = *ws_begin((const ws_piece<S, EACH> *)(row(first + i) + c), 16);
#pragma unroll
      for (int f = 0; f < EACH / FOUR; f++) {
        ws_piece<T, FOUR> wide;
#pragma unroll
        for (int l = 0; l < FOUR; l++) wide.x[l] = KIND::wide(piece.x[f * FOUR + l]);
        *ws_begin((ws_piece<T, FOUR> *)(to + i * STEP + c + f * FOUR), 16) = wide;
      }
    }
  } else {
    constexpr int EACH = (COLUMNS + 3) / 4 * 4;
#pragma unroll 4
    for (int at = threadIdx.x; at < TILE * EACH; at += THREADS) {
      const int i = at / EACH, c = at % EACH;
      to[i * STEP + c] = first + i < rows && c < COLUMNS ? (T)KIND::wide(row(first + i)[c]) : (T)0;
    }
  }
}

/* x[i][j] = dot product of row `row + i` of a and row `lane + 8j` of b. */
template <class T, int OWN, int ACROSS, int COLUMNS, int STEP>
WS_INLINE void ws_compare(T (&x)[OWN][ACROSS], const T *a, const T *b, int row, int lane) {
#pragma unroll
  for (int i = 0; i < OWN; i++)
#pragma unroll
    for (int j = 0; j < ACROSS; j++) x[i][j] = 0;
#pragma unroll 4
  for (int w = 0; w < COLUMNS; w += 4) {
    T y[OWN][4], z[4];
#pragma unroll
    for (int i = 0; i < OWN; i++) ws_pick<T, 4>(y[i], a + (row + i) * STEP + w);
#pragma unroll
    for (int j = 0; j < ACROSS; j++) {
      ws_pick<T, 4>(z, b + (lane + 8 * j) * STEP + w);
#pragma unroll
      for (int i = 0; i < OWN; i++)
#pragma unroll
        for (int l = 0; l < 4; l++) x[i][j] += y[i][l] * z[l];
    }
  }
}

/* sum[i][...] += weights[r] * rows[r], r over a tile; a thread has columns (lane + 8p) * 4 ... + 3.  The weights of row
   i are a row of `weights`, or a column if TRANSPOSED. */
template <class T, int TILE, int OWN, int PIECES, int COLUMNS, int STEP, int SQUARE, bool TRANSPOSED>
WS_INLINE void ws_weigh(T (&sum)[OWN][PIECES * 4], const T *weights, const T *rows, int row, int lane) {
#pragma unroll 2
  for (int r = 0; r < TILE; r += 4) {
    T weight[4][OWN];
    if constexpr (TRANSPOSED) {
#pragma unroll
      for (int m = 0; m < 4; m++) ws_pick<T, OWN>(weight[m], weights + (r + m) * SQUARE + row);
    } else {
#pragma unroll
      for (int i = 0; i < OWN; i++) {
        T four[4];
        ws_pick<T, 4>(four, weights + (row + i) * SQUARE + r);
#pragma unroll
        for (int m = 0; m < 4; m++) weight[m][i] = four[m];
      }
    }
#pragma unroll
    for (int p = 0; p < PIECES; p++) {
      const int c = (lane + 8 * p) * 4;
      if (c >= COLUMNS) continue;
#pragma unroll
      for (int m = 0; m < 4; m++) {
        T x[4];
        ws_pick<T, 4>(x, rows + (r + m) * STEP + c);
#pragma unroll
        for (int i = 0; i < OWN; i++)
#pragma unroll
          for (int l = 0; l < 4; l++) sum[i][p * 4 + l] += weight[m][i] * x[l];
      }
    }
  }
}

/* Reduction over the 8 threads that share rows; each has the result. */
template <class Op, class T> WS_INLINE T ws_eight(T x) {
#pragma unroll
  for (int lanes = 4; lanes; lanes >>= 1) x = Op::join(x, ws_across(x, lanes));
  return x;
}

/* Stores the sums of a thread, row by row; rows are null if the result is not needed. */
template <class KIND, bool ALIGNED, class T, int OWN, int PIECES, int COLUMNS, class F>
WS_INLINE void ws_hand(const T (&sum)[OWN][PIECES * 4], int first, int row, int lane, int rows, F to) {
  using S = ws_element<decltype(to(0))>;
#pragma unroll
  for (int i = 0; i < OWN; i++) {
    if (first + row + i >= rows || !to(first + row + i)) continue;
    S *const into = to(first + row + i);
#pragma unroll
    for (int p = 0; p < PIECES; p++) {
      const int c = (lane + 8 * p) * 4;
      ws_piece<S, 4> piece;
#pragma unroll
      for (int l = 0; l < 4; l++) {
        piece.x[l] = KIND::narrow(sum[i][p * 4 + l]);
        if (!ALIGNED && c + l < COLUMNS) into[c + l] = piece.x[l];
      }
      if (ALIGNED && c < COLUMNS) *ws_begin((ws_piece<S, 4> *)(into + c), 4 * sizeof(S)) = piece;
    }
  }
}

template <class T, int N, int M> WS_INLINE void ws_clear(T (&x)[N][M]) {
#pragma unroll
  for (int i = 0; i < N; i++)
#pragma unroll
    for (int j = 0; j < M; j++) x[i][j] = 0;
}

/* Forward pass of the query tile at q0: softmax(scale q k^T + mask) v, and the log-sum-exp of the scores per row. */
template <class T, class IN, class OUT, bool ALIGNED, int OWN, int TILE, int W, int E, bool CAUSAL, bool MASKED, class Q, class K,
          class V, class M, class O, class L>
WS_INLINE void ws_attention(T *memory, int queries, int keys, int q0, T scale, Q q, K k, V v, M mask, O out, L lse) {
  using H = ws_heads<T, OWN, TILE, W, E>;
  T *const qs = memory, *const ks = qs + TILE * H::WIDE, *const vs = ks + TILE * H::WIDE, *const ps = vs + TILE * H::TALL;
  const int row = threadIdx.x / 8 * H::OWN, lane = threadIdx.x % 8;
  T most[H::OWN], total[H::OWN], sum[H::OWN][H::PIECES_E * 4];
  ws_clear(sum);
#pragma unroll
  for (int i = 0; i < H::OWN; i++) most[i] = ws_lowest((T)0), total[i] = 0;
  ws_fill<IN, ALIGNED, T, H::THREADS, TILE, W, H::WIDE>(qs, q0, queries, q);
  const int to = CAUSAL && q0 + TILE < keys ? q0 + TILE : keys;
#pragma unroll 1
  for (int k0 = 0; k0 < to; k0 += TILE) {
    if (k0) __syncthreads();
    ws_fill<IN, ALIGNED, T, H::THREADS, TILE, W, H::WIDE>(ks, k0, keys, k);
    ws_fill<IN, ALIGNED, T, H::THREADS, TILE, E, H::TALL>(vs, k0, keys, v);
    __syncthreads();
    T s[H::OWN][H::ACROSS];
    ws_compare<T, H::OWN, H::ACROSS, W, H::WIDE>(s, qs, ks, row, lane);
#pragma unroll
    for (int i = 0; i < H::OWN; i++) {
      const int at = q0 + row + i;
      T largest = ws_lowest((T)0), added = 0;
#pragma unroll
      for (int j = 0; j < H::ACROSS; j++) {
        const int key = k0 + lane + 8 * j;
        const bool seen = at < queries && key < keys && (!CAUSAL || key <= at);
        s[i][j] = !seen ? ws_lowest((T)0) : MASKED ? scale * s[i][j] + (T)mask(at, key) : scale * s[i][j];
        largest = ws_max(largest, s[i][j]);
      }
      largest = ws_max(most[i], ws_eight<ws_max_op>(largest));
      const T shift = largest == ws_lowest((T)0) ? (T)0 : largest, factor = ws_exp(most[i] - shift);
#pragma unroll
      for (int j = 0; j < H::ACROSS; j++) {
        const T weight = ws_exp(s[i][j] - shift);
        added += weight;
        ps[(row + i) * H::SQUARE + lane + 8 * j] = weight;
      }
      total[i] = total[i] * factor + ws_eight<ws_sum_op>(added);
      most[i] = largest;
#pragma unroll
      for (int c = 0; c < H::PIECES_E * 4; c++) sum[i][c] *= factor;
    }
    __syncwarp(); /* the weights of a row are written and read by its 8 threads only */
    ws_weigh<T, TILE, H::OWN, H::PIECES_E, E, H::TALL, H::SQUARE, false>(sum, ps, vs, row, lane);
  }
#pragma unroll
  for (int i = 0; i < H::OWN; i++) {
    const T shift = most[i] == ws_lowest((T)0) ? (T)0 : most[i];
    if (lane == 0 && q0 + row + i < queries)
      lse(q0 + row + i, total[i] == 0 ? ws_inf((T)0) : shift + ws_log(total[i]));
#pragma unroll
    for (int c = 0; c < H::PIECES_E * 4; c++) sum[i][c] = total[i] == 0 ? (T)0 : sum[i][c] / total[i];
  }
  ws_hand<OUT, ALIGNED, T, H::OWN, H::PIECES_E, E>(sum, q0, row, lane, queries, out);
}

/* Recomputes the probabilities of a query tile and a key tile in shared memory: p = e^(s - lse), and the score
   gradients ds = p (dp - sum of p dp), stored times scale.  dmask(i, j, ds) stores the gradient of the mask. */
template <class T, int OWN, int TILE, int W, int E, bool CAUSAL, bool MASKED, class M, class D>
WS_INLINE void ws_slopes(
    const T *qs, const T *gs, const T *ks, const T *vs, const T *lses, const T *deltas, T *ps, T *ds, int queries, int keys,
    int q0, int k0, T scale, M mask, D dmask) {
  using H = ws_heads<T, OWN, TILE, W, E>;
  const int row = threadIdx.x / 8 * H::OWN, lane = threadIdx.x % 8;
  T s[H::OWN][H::ACROSS], dp[H::OWN][H::ACROSS];
  ws_compare<T, H::OWN, H::ACROSS, W, H::WIDE>(s, qs, ks, row, lane);
  ws_compare<T, H::OWN, H::ACROSS, E, H::TALL>(dp, gs, vs, row, lane);
#pragma unroll
  for (int i = 0; i < H::OWN; i++) {
    const int at = q0 + row + i;
    const T lse = lses[row + i], delta = deltas[row + i];
#pragma unroll
    for (int j = 0; j < H::ACROSS; j++) {
      const int key = k0 + lane + 8 * j;
      const bool seen = at < queries && key < keys && (!CAUSAL || key <= at);
      const T score = !seen ? ws_lowest((T)0) : MASKED ? scale * s[i][j] + (T)mask(at, key) : scale * s[i][j];
      const T p = seen ? ws_exp(score - lse) : (T)0, slope = p * (dp[i][j] - delta);
      if (MASKED && at < queries && key < keys) dmask(at, key, slope);
      ps[(row + i) * H::SQUARE + lane + 8 * j] = p;
      ds[(row + i) * H::SQUARE + lane + 8 * j] = scale * slope;
    }
  }
}

/* Per row of a query tile: the log-sum-exp, and delta, the dot product of the result with its gradient. */
template <class KIND, bool ALIGNED, class T, int OWN, int TILE, int E, int TALL, class O, class L>
WS_INLINE void ws_rows_of(T *lses, T *deltas, const T *gs, int q0, int queries, O out, L lse) {
  const int row = threadIdx.x / 8 * OWN, lane = threadIdx.x % 8;
#pragma unroll
  for (int i = 0; i < OWN; i++) {
    const int at = q0 + row + i;
    T delta = 0;
    if (at < queries) {
      const ws_element<decltype(out(0))> *const from = out(at);
      for (int c = lane * 4; c < E; c += 32)
#pragma unroll
        for (int l = 0; l < 4; l++)
          if (ALIGNED || c + l < E) delta += (T)KIND::wide(from[c + l]) * gs[(row + i) * TALL + c + l];
    }
    delta = ws_eight<ws_sum_op>(delta);
    if (lane == 0) deltas[row + i] = delta, lses[row + i] = at < queries ? (T)lse(at) : (T)0;
  }
}

/* Backward pass: the gradient of a query tile. */
template <class T, class IN, class OUT, bool ALIGNED, int OWN, int TILE, int W, int E, bool CAUSAL, bool MASKED, class Q, class K,
          class V, class M, class G, class O, class L, class X, class D>
WS_INLINE void ws_attention_queries(T *memory, int queries, int keys, int q0, T scale, Q q, K k, V v, M mask, G g, O out,
                                    L lse, X dq, D dmask) {
  using H = ws_heads<T, OWN, TILE, W, E>;
  T *const qs = memory, *const ks = qs + TILE * H::WIDE, *const gs = ks + TILE * H::WIDE, *const vs = gs + TILE * H::TALL;
  T *const ps = vs + TILE * H::TALL, *const ds = ps + TILE * H::SQUARE, *const lses = ds + TILE * H::SQUARE;
  T *const deltas = lses + TILE;
  const int row = threadIdx.x / 8 * H::OWN, lane = threadIdx.x % 8;
  T sum[H::OWN][H::PIECES_W * 4];
  ws_clear(sum);
  ws_fill<IN, ALIGNED, T, H::THREADS, TILE, W, H::WIDE>(qs, q0, queries, q);
  ws_fill<IN, ALIGNED, T, H::THREADS, TILE, E, H::TALL>(gs, q0, queries, g);
  __syncthreads();
  ws_rows_of<OUT, ALIGNED, T, OWN, TILE, E, H::TALL>(lses, deltas, gs, q0, queries, out, lse);
  const int to = CAUSAL && !MASKED && q0 + TILE < keys ? q0 + TILE : keys; /* dmask is written everywhere */
#pragma unroll 1
  for (int k0 = 0; k0 < to; k0 += TILE) {
    if (k0) __syncthreads();
    ws_fill<IN, ALIGNED, T, H::THREADS, TILE, W, H::WIDE>(ks, k0, keys, k);
    ws_fill<IN, ALIGNED, T, H::THREADS, TILE, E, H::TALL>(vs, k0, keys, v);
    __syncthreads();
    ws_slopes<T, OWN, TILE, W, E, CAUSAL, MASKED>(qs, gs, ks, vs, lses, deltas, ps, ds, queries, keys, q0, k0, scale, mask, dmask);
    __syncwarp();
    ws_weigh<T, TILE, H::OWN, H::PIECES_W, W, H::WIDE, H::SQUARE, false>(sum, ds, ks, row, lane);
  }
  ws_hand<OUT, ALIGNED, T, H::OWN, H::PIECES_W, W>(sum, q0, row, lane, queries, dq);
}

/* Backward pass: the gradients of a key tile and of its values, summed over all query heads that share them. */
template <class T, class IN, class OUT, bool ALIGNED, int OWN, int TILE, int W, int E, bool CAUSAL, bool MASKED, class Q, class K,
          class V, class M, class G, class O, class L, class X, class Y>
WS_INLINE void ws_attention_keys(T *memory, int heads, int queries, int keys, int k0, T scale, Q q, K k, V v, M mask, G g,
                                 O out, L lse, X dk, Y dv) {
  using H = ws_heads<T, OWN, TILE, W, E>;
  T *const qs = memory, *const ks = qs + TILE * H::WIDE, *const gs = ks + TILE * H::WIDE, *const vs = gs + TILE * H::TALL;
  T *const ps = vs + TILE * H::TALL, *const ds = ps + TILE * H::SQUARE, *const lses = ds + TILE * H::SQUARE;
  T *const deltas = lses + TILE;
  const int row = threadIdx.x / 8 * H::OWN, lane = threadIdx.x % 8;
  T of_keys[H::OWN][H::PIECES_W * 4], of_values[H::OWN][H::PIECES_E * 4];
  ws_clear(of_keys);
  ws_clear(of_values);
  ws_fill<IN, ALIGNED, T, H::THREADS, TILE, W, H::WIDE>(ks, k0, keys, k);
  ws_fill<IN, ALIGNED, T, H::THREADS, TILE, E, H::TALL>(vs, k0, keys, v);
  auto nothing = [](int, int, T) {};
#pragma unroll 1
  for (int h = 0; h < heads; h++)
#pragma unroll 1
    for (int q0 = CAUSAL ? k0 : 0; q0 < queries; q0 += TILE) {
      __syncthreads(); /* other threads may still read the previous tiles */
      ws_fill<IN, ALIGNED, T, H::THREADS, TILE, W, H::WIDE>(qs, q0, queries, [&](int i) { return q(h, i); });
      ws_fill<IN, ALIGNED, T, H::THREADS, TILE, E, H::TALL>(gs, q0, queries, [&](int i) { return g(h, i); });
      __syncthreads();
      ws_rows_of<OUT, ALIGNED, T, OWN, TILE, E, H::TALL>(
          lses, deltas, gs, q0, queries, [&](int i) { return out(h, i); }, [&](int i) { return lse(h, i); });
      __syncwarp();
      ws_slopes<T, OWN, TILE, W, E, CAUSAL, MASKED>(
          qs, gs, ks, vs, lses, deltas, ps, ds, queries, keys, q0, k0, scale, [&](int i, int j) { return mask(h, i, j); },
          nothing);
      __syncthreads();
      ws_weigh<T, TILE, H::OWN, H::PIECES_W, W, H::WIDE, H::SQUARE, true>(of_keys, ds, qs, row, lane);
      ws_weigh<T, TILE, H::OWN, H::PIECES_E, E, H::TALL, H::SQUARE, true>(of_values, ps, gs, row, lane);
    }
  ws_hand<OUT, ALIGNED, T, H::OWN, H::PIECES_W, W>(of_keys, k0, row, lane, keys, dk);
  ws_hand<OUT, ALIGNED, T, H::OWN, H::PIECES_E, E>(of_values, k0, row, lane, keys, dv);
}
