/* Flash attention with tensor cores, forward and backward (FlashAttention-2, arXiv:2307.08691).  A block of WARPS warps
   owns 16 M rows per warp, of queries or of keys, and iterates over tiles of N rows of the others, which arrive by
   cp.async in STAGES buffers.  Scores stay in registers: the accumulator of one product is the left operand of the next.
   The order of the sums depends on N and the lengths alone; there are no atomics.

   Accessors as in attention.h: q(h, i), k(j) and so on return rows in memory.  F describes the fragments of a type, OUT
   the storage type of results; ALIGNED: all rows are multiples of 16 bytes, in address and length. */
template <class KIND> struct ws_half_fragments {
  using T = ws_half;
  static constexpr int DEEP = 16, PAD = 8; /* columns per product; padding of a row, against bank conflicts */
  static WS_PART float wide(T x) { return KIND::wide(x); }
  /* Left operand: 16 rows of DEEP columns. */
  static WS_PART void left(ws_word (&x)[4], const T *tile, int step) {
    const int lane = threadIdx.x % 32;
    ws_matrices<false>(x, tile + lane % 16 * step + lane / 16 * 8);
  }
  /* Right operand, 16 columns: rows of the tile are columns of the operand. */
  static WS_PART void right_of_rows(ws_word (&x)[4], const T *tile, int step) {
    const int lane = threadIdx.x % 32;
    ws_matrices<false>(x, tile + (lane % 8 + lane / 16 * 8) * step + lane / 8 % 2 * 8);
  }
  /* Right operand, 16 columns: rows of the tile are its rows. */
  static WS_PART void right_of_columns(ws_word (&x)[4], const T *tile, int step) {
    const int lane = threadIdx.x % 32;
    ws_matrices<true>(x, tile + lane % 16 * step + lane / 16 * 8);
  }
  static WS_PART void multiply(float (&sum)[4], const ws_word (&x)[4], ws_word y0, ws_word y1) {
    KIND::multiply(sum, x, y0, y1);
  }
  /* Left operands from the accumulators of a product, rounded. */
  template <int COUNT> static WS_PART void left_of_sums(ws_word (&x)[COUNT / 2][4], const float (&sum)[COUNT][4]) {
#pragma unroll
    for (int n = 0; n < COUNT; n++) {
      x[n / 2][n % 2 * 2] = KIND::pack(sum[n][0], sum[n][1]);
      x[n / 2][n % 2 * 2 + 1] = KIND::pack(sum[n][2], sum[n][3]);
    }
  }
};
struct ws_bf16_pairs : ws_bf16 {
  static WS_PART ws_word pack(float x, float y) { return ws_pack_bf16(x, y); }
  static WS_PART void multiply(float (&sum)[4], const ws_word (&x)[4], ws_word y0, ws_word y1) { ws_mma_bf16(sum, x, y0, y1); }
};
struct ws_f16_pairs : ws_f16 {
  static WS_PART ws_word pack(float x, float y) { return ws_pack_f16(x, y); }
  static WS_PART void multiply(float (&sum)[4], const ws_word (&x)[4], ws_word y0, ws_word y1) { ws_mma_f16(sum, x, y0, y1); }
};
using ws_bf16_fragments = ws_half_fragments<ws_bf16_pairs>;
using ws_f16_fragments = ws_half_fragments<ws_f16_pairs>;

/* float32 rounded to tf32.  A product of 8 columns takes column 2t of the accumulators as its column t, and 2t + 1 as
   t + 4: so accumulators are left operands as they are, if right operands use the same order. */
struct ws_tf32_fragments {
  using T = float;
  static constexpr int DEEP = 8, PAD = 4;
  static WS_PART float wide(T x) { return x; }
  static WS_PART void left(ws_word (&x)[4], const T *tile, int step) {
    const T *const at = tile + threadIdx.x % 32 / 4 * step + threadIdx.x % 4;
    x[0] = ws_tf32_of_float(at[0]), x[1] = ws_tf32_of_float(at[8 * step]);
    x[2] = ws_tf32_of_float(at[4]), x[3] = ws_tf32_of_float(at[8 * step + 4]);
  }
  static WS_PART void right_of_rows(ws_word (&x)[4], const T *tile, int step) {
    const T *const at = tile + threadIdx.x % 32 / 4 * step + threadIdx.x % 4;
    x[0] = ws_tf32_of_float(at[0]), x[1] = ws_tf32_of_float(at[4]);
    x[2] = ws_tf32_of_float(at[8 * step]), x[3] = ws_tf32_of_float(at[8 * step + 4]);
  }
  static WS_PART void right_of_columns(ws_word (&x)[4], const T *tile, int step) {
    const T *const at = tile + threadIdx.x % 4 * 2 * step + threadIdx.x % 32 / 4;
    x[0] = ws_tf32_of_float(at[0]), x[1] = ws_tf32_of_float(at[step]);
    x[2] = ws_tf32_of_float(at[8]), x[3] = ws_tf32_of_float(at[step + 8]);
  }
  static WS_PART void multiply(float (&sum)[4], const ws_word (&x)[4], ws_word y0, ws_word y1) { ws_mma_tf32(sum, x, y0, y1); }
  template <int COUNT> static WS_PART void left_of_sums(ws_word (&x)[COUNT][4], const float (&sum)[COUNT][4]) {
#pragma unroll
    for (int n = 0; n < COUNT; n++) {
      x[n][0] = ws_tf32_of_float(sum[n][0]), x[n][1] = ws_tf32_of_float(sum[n][2]);
      x[n][2] = ws_tf32_of_float(sum[n][1]), x[n][3] = ws_tf32_of_float(sum[n][3]);
    }
  }
};

template <class FRAGMENTS, int WARPS_, int M_, int N_, int STAGES_, int W_, int E_> struct ws_tiles {
  using F = FRAGMENTS;
  using T = typename F::T;
  static constexpr int WARPS = WARPS_, THREADS = WARPS * 32, M = M_, OWN = 16 * M * WARPS, N = N_, STAGES = STAGES_;
  static constexpr int W = W_, E = E_, DEEP_W = (W + 15) / 16 * 16, DEEP_E = (E + 15) / 16 * 16;
  static constexpr int STEP_W = DEEP_W + F::PAD, STEP_E = DEEP_E + F::PAD, STAGE = N * (STEP_W + STEP_E);
  static WS_PART int row() { return threadIdx.x / 32 * 16 * M; } /* first row of this warp in the block's tile */
};

/* Copies ROWS rows of COLUMNS elements to shared memory, zeros past the last row and column; complete after a commit,
   a wait and a barrier. */
template <class F, bool ALIGNED, int THREADS, int ROWS, int COLUMNS, class R>
WS_INLINE void ws_copy_rows(typename F::T *to, int first, int rows, R row) {
  using T = typename F::T;
  constexpr int DEEP = (COLUMNS + 15) / 16 * 16, STEP = DEEP + F::PAD, EACH = ALIGNED ? 16 / sizeof(T) : 1;
#pragma unroll 4
  for (int at = threadIdx.x; at < ROWS * (DEEP / EACH); at += THREADS) {
    const int i = at / (DEEP / EACH), c = at % (DEEP / EACH) * EACH;
    const bool inside = first + i < rows && c < COLUMNS;
    if constexpr (ALIGNED) {
      ws_copy<16>(to + i * STEP + c, row(inside ? first + i : 0) + (inside ? c : 0), inside);
    } else {
      to[i * STEP + c] = inside ? row(first + i)[c] : (T)0;
    }
  }
}

/* Left operands from the 16 M rows of a warp, DEPTH columns: loaded once if HELD, else per tile of right operands. */
template <class F, int M, int DEPTH, bool HELD> struct ws_own_rows {
  const typename F::T *tile;
  int step;
  ws_word held[HELD ? DEPTH / F::DEEP : 1][M][4];
  WS_PART void load() {
    if constexpr (HELD) {
#pragma unroll
      for (int k = 0; k < DEPTH / F::DEEP; k++)
#pragma unroll
        for (int m = 0; m < M; m++) F::left(held[k][m], tile + m * 16 * step + k * F::DEEP, step);
    }
  }
  WS_PART void left(ws_word (&x)[M][4], int k) const {
#pragma unroll
    for (int m = 0; m < M; m++) {
      if constexpr (HELD) {
#pragma unroll
        for (int i = 0; i < 4; i++) x[m][i] = held[k / F::DEEP][m][i];
      } else {
        F::left(x[m], tile + m * 16 * step + k, step);
      }
    }
  }
};

/* sum[m][n] += own rows times rows of `others`, DEPTH columns. */
template <int N, class F, int M, int DEPTH, bool HELD>
WS_INLINE void ws_multiply_rows(
    float (&sum)[M][N / 8][4], const ws_own_rows<F, M, DEPTH, HELD> &own, const typename F::T *others, int step) {
#pragma unroll
  for (int k = 0; k < DEPTH; k += F::DEEP) {
    ws_word x[M][4], y[4];
    own.left(x, k);
#pragma unroll
    for (int n = 0; n < N; n += 16) {
      F::right_of_rows(y, others + n * step + k, step);
#pragma unroll
      for (int m = 0; m < M; m++) {
        F::multiply(sum[m][n / 8], x[m], y[0], y[1]);
        F::multiply(sum[m][n / 8 + 1], x[m], y[2], y[3]);
      }
    }
  }
}

template <int N, class F, int M, int DEPTH>
WS_INLINE void ws_multiply_rows(float (&sum)[M][N / 8][4], const typename F::T *own, const typename F::T *others, int step) {
  ws_multiply_rows<N>(sum, ws_own_rows<F, M, DEPTH, false>{own, step}, others, step);
}

/* sum[m] += weights[m] (16 x N) times N rows of `others`, WIDE columns. */
template <class F, int M, int N, int WIDE>
WS_INLINE void ws_weigh_rows(
    float (&sum)[M][WIDE / 8][4], const float (&weights)[M][N / 8][4], const typename F::T *others, int step) {
  ws_word x[M][N / F::DEEP][4], y[4];
#pragma unroll
  for (int m = 0; m < M; m++) F::left_of_sums(x[m], weights[m]);
#pragma unroll
  for (int k = 0; k < N / F::DEEP; k++)
#pragma unroll
    for (int w = 0; w < WIDE; w += 16) {
      F::right_of_columns(y, others + k * F::DEEP * step + w, step);
#pragma unroll
      for (int m = 0; m < M; m++) {
        F::multiply(sum[m][w / 8], x[m][k], y[0], y[1]);
        F::multiply(sum[m][w / 8 + 1], x[m][k], y[2], y[3]);
      }
    }
}

template <int M, int N> WS_INLINE void ws_clear(float (&x)[M][N][4]) {
#pragma unroll
  for (int m = 0; m < M; m++) ws_clear(x[m]);
}

/* Reduction over the 4 threads that share rows of an accumulator; each has the result. */
template <class Op> WS_INLINE float ws_quad(float x) {
  x = Op::join(x, ws_across(x, 1));
  return Op::join(x, ws_across(x, 2));
}

/* Row of accumulator element c within 16 rows, and its column within 8. */
WS_INLINE int ws_sum_row(int c) { return threadIdx.x % 32 / 4 + c / 2 * 8; }
WS_INLINE int ws_sum_column(int c) { return threadIdx.x % 4 * 2 + c % 2; }

/* Stores rows of accumulators times a factor per row; rows are null if the result is not needed. */
template <class OUT, bool ALIGNED, int M, int WIDE, int COLUMNS, class R>
WS_INLINE void ws_store_rows(const float (&sum)[M][WIDE / 8][4], const float (&factor)[M][2], int first, int rows, R row) {
  using S = ws_element<decltype(row(0))>;
#pragma unroll
  for (int m = 0; m < M; m++)
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int at = first + m * 16 + ws_sum_row(half * 2);
      if (at >= rows || !row(at)) continue;
      S *const to = row(at) + ws_sum_column(0);
#pragma unroll
      for (int n = 0; n < WIDE / 8; n++) {
        ws_piece<S, 2> piece;
#pragma unroll
        for (int l = 0; l < 2; l++) {
          piece.x[l] = OUT::narrow(sum[m][n][half * 2 + l] * factor[m][half]);
          if (!ALIGNED && n * 8 + ws_sum_column(l) < COLUMNS) to[n * 8 + l] = piece.x[l];
        }
        if (ALIGNED && n * 8 + ws_sum_column(0) < COLUMNS) *ws_begin((ws_piece<S, 2> *)(to + n * 8), 2 * sizeof(S)) = piece;
      }
    }
}

/* Scores are in units of log 2, which saves a product per score; with a mask they are not, since the most negative
   number, which masks often contain, would become -inf. */
template <bool MASKED> struct ws_unit {
  static constexpr float OF_E = MASKED ? 1.f : 1.4426950408889634f, OF_UNIT = MASKED ? 1.f : 0.6931471805599453f;
  static WS_PART float power(float x) { return MASKED ? ws_exp_half(x) : ws_exp2_half(x); }
};

/* Scores of a tile, from products; -inf where a query does not see a key. */
template <int M, int N, bool KEYS, bool CAUSAL, bool MASKED, class X>
WS_INLINE void ws_mask_scores(float (&s)[M][N / 8][4], int row0, int column0, int queries, int keys, float scale, X mask) {
  const int last_key = KEYS ? row0 + 16 * M - 1 : column0 + N - 1, first_query = KEYS ? column0 : row0;
  const bool whole = !MASKED && last_key < keys && (!CAUSAL || last_key <= first_query);
#pragma unroll
  for (int m = 0; m < M; m++)
#pragma unroll
    for (int n = 0; n < N / 8; n++)
#pragma unroll
      for (int c = 0; c < 4; c++) {
        s[m][n][c] *= scale * ws_unit<MASKED>::OF_E;
        if (whole) continue;
        const int row = row0 + m * 16 + ws_sum_row(c), column = column0 + n * 8 + ws_sum_column(c);
        const int query = KEYS ? column : row, key = KEYS ? row : column;
        const bool seen = key < keys && (!CAUSAL || key <= query);
        if (MASKED && seen && query < queries) s[m][n][c] += mask(query, key);
        if (!seen) s[m][n][c] = ws_lowest(0.f);
      }
}

/* Forward pass of the query tile at q0: softmax(scale q k^T + mask) v, and the log-sum-exp of the scores per row. */
template <class H, class OUT, bool ALIGNED, bool CAUSAL, bool MASKED, class Q, class K, class V, class X, class O, class L>
WS_INLINE void ws_mma_attention(int queries, int keys, int q0, float scale, Q q, K k, V v, X mask, O out, L lse) {
  using F = typename H::F;
  using T = typename H::T;
  using U = ws_unit<MASKED>;
  T *const own = (T *)ws_shared_memory(), *const stages = own + H::OWN * H::STEP_W;
  const int row = q0 + H::row();
  float most[H::M][2], total[H::M][2], sum[H::M][H::DEEP_E / 8][4];
  ws_clear(sum);
#pragma unroll
  for (int m = 0; m < H::M; m++) most[m][0] = most[m][1] = ws_lowest(0.f), total[m][0] = total[m][1] = 0;
  auto fetch = [&](int turn) {
    T *const to = stages + turn % H::STAGES * H::STAGE;
    ws_copy_rows<F, ALIGNED, H::THREADS, H::N, H::W>(to, turn * H::N, keys, k);
    ws_copy_rows<F, ALIGNED, H::THREADS, H::N, H::E>(to + H::N * H::STEP_W, turn * H::N, keys, v);
  };
  const int seen = CAUSAL && q0 + H::OWN < keys ? q0 + H::OWN : keys, turns = (seen + H::N - 1) / H::N;
  ws_copy_rows<F, ALIGNED, H::THREADS, H::OWN, H::W>(own, q0, queries, q);
  ws_copy_commit();
  if (turns) fetch(0);
  ws_copy_commit();
  ws_copy_wait<1>();
  __syncthreads();
  ws_own_rows<F, H::M, H::DEEP_W, (H::M * H::DEEP_W <= 64)> rows = {own + H::row() * H::STEP_W, H::STEP_W};
  rows.load();
#pragma unroll 1
  for (int turn = 0; turn < turns; turn++) {
    if (H::STAGES > 1 && turn + 1 < turns) fetch(turn + 1);
    ws_copy_commit();
    ws_copy_wait<1>();
    __syncthreads();
    const T *const ks = stages + turn % H::STAGES * H::STAGE, *const vs = ks + H::N * H::STEP_W;
    float s[H::M][H::N / 8][4];
    ws_clear(s);
    ws_multiply_rows<H::N>(s, rows, ks, H::STEP_W);
    ws_mask_scores<H::M, H::N, false, CAUSAL, MASKED>(s, row, turn * H::N, queries, keys, scale, mask);
#pragma unroll
    for (int m = 0; m < H::M; m++)
#pragma unroll
      for (int half = 0; half < 2; half++) {
        float largest = most[m][half], added = 0;
#pragma unroll
        for (int n = 0; n < H::N / 8; n++) largest = ws_max(largest, ws_max(s[m][n][half * 2], s[m][n][half * 2 + 1]));
        largest = ws_quad<ws_max_op>(largest);
        const float shift = largest == ws_lowest(0.f) ? 0.f : largest, factor = U::power(most[m][half] - shift);
#pragma unroll
        for (int n = 0; n < H::N / 8; n++)
#pragma unroll
          for (int l = 0; l < 2; l++) added += s[m][n][half * 2 + l] = U::power(s[m][n][half * 2 + l] - shift);
        total[m][half] = total[m][half] * factor + added;
        most[m][half] = largest;
#pragma unroll
        for (int w = 0; w < H::DEEP_E / 8; w++) sum[m][w][half * 2] *= factor, sum[m][w][half * 2 + 1] *= factor;
      }
    ws_weigh_rows<F, H::M, H::N, H::DEEP_E>(sum, s, vs, H::STEP_E);
    __syncthreads(); /* the next copies overwrite this stage */
    if (H::STAGES == 1 && turn + 1 < turns) fetch(turn + 1);
    if (H::STAGES == 1) ws_copy_commit();
  }
  ws_copy_wait<0>();
#pragma unroll
  for (int m = 0; m < H::M; m++)
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int at = row + m * 16 + ws_sum_row(half * 2);
      const float all = ws_quad<ws_sum_op>(total[m][half]), shift = most[m][half] == ws_lowest(0.f) ? 0.f : most[m][half];
      if (threadIdx.x % 4 == 0 && at < queries) lse(at, all == 0 ? ws_inf(0.f) : shift * U::OF_UNIT + ws_log(all));
      total[m][half] = all == 0 ? 0.f : 1 / all;
    }
  ws_store_rows<OUT, ALIGNED, H::M, H::DEEP_E, H::E>(sum, total, row, queries, out);
}

/* Dot product of a row of the result with its gradient, by 4 threads. */
template <class F, class OUT, bool ALIGNED, int E, class S> WS_INLINE float ws_row_delta(const typename F::T *g, const S *out) {
  float sum = 0;
#pragma unroll
  for (int c = threadIdx.x % 4 * 4; c < E; c += 16) {
    if constexpr (ALIGNED) {
      const ws_piece<S, 4> piece = *ws_begin((const ws_piece<S, 4> *)(out + c), 4 * sizeof(S));
#pragma unroll
      for (int l = 0; l < 4; l++) sum += F::wide(g[c + l]) * OUT::wide(piece.x[l]);
    } else {
#pragma unroll
      for (int l = 0; l < 4; l++)
        if (c + l < E) sum += F::wide(g[c + l]) * OUT::wide(out[c + l]);
    }
  }
  return sum;
}

/* Probabilities p = e^(s - lse) from scores s, and score gradients ds = p (dp - delta) times `scale` from dp. */
template <bool MASKED, int M, int N, class L, class D, class X>
WS_INLINE void ws_score_gradients(float (&s)[M][N / 8][4], float (&dp)[M][N / 8][4], float scale, L lse, D delta, X dmask) {
#pragma unroll
  for (int m = 0; m < M; m++)
#pragma unroll
    for (int n = 0; n < N / 8; n++)
#pragma unroll
      for (int c = 0; c < 4; c++) {
        const float p = ws_unit<MASKED>::power(s[m][n][c] - lse(m, n, c)), slope = p * (dp[m][n][c] - delta(m, n, c));
        s[m][n][c] = p, dp[m][n][c] = slope * scale;
        dmask(m, n, c, slope);
      }
}

/* Backward pass: the gradient of a query tile, and of its part of the mask. */
template <
    class H, class OUT, bool ALIGNED, bool CAUSAL, bool MASKED, bool DMASK, class Q, class K, class V, class X, class G,
    class O, class L, class R, class D>
WS_INLINE void ws_mma_attention_queries(
    int queries, int keys, int q0, float scale, Q q, K k, V v, X mask, G g, O out, L lse, R dq, D dmask) {
  using F = typename H::F;
  using T = typename H::T;
  using U = ws_unit<MASKED>;
  T *const qs = (T *)ws_shared_memory(), *const gs = qs + H::OWN * H::STEP_W, *const stages = gs + H::OWN * H::STEP_E;
  const int row = q0 + H::row();
  auto fetch = [&](int turn) {
    T *const to = stages + turn % H::STAGES * H::STAGE;
    ws_copy_rows<F, ALIGNED, H::THREADS, H::N, H::W>(to, turn * H::N, keys, k);
    ws_copy_rows<F, ALIGNED, H::THREADS, H::N, H::E>(to + H::N * H::STEP_W, turn * H::N, keys, v);
  };
  const int seen = CAUSAL && !DMASK && q0 + H::OWN < keys ? q0 + H::OWN : keys; /* dmask is written everywhere */
  const int turns = (seen + H::N - 1) / H::N;
  ws_copy_rows<F, ALIGNED, H::THREADS, H::OWN, H::W>(qs, q0, queries, q);
  ws_copy_rows<F, ALIGNED, H::THREADS, H::OWN, H::E>(gs, q0, queries, g);
  ws_copy_commit();
  if (turns) fetch(0);
  ws_copy_commit();
  ws_copy_wait<1>();
  __syncthreads();
  float lses[H::M][2], deltas[H::M][2], ones[H::M][2], sum[H::M][H::DEEP_W / 8][4];
  ws_clear(sum);
#pragma unroll
  for (int m = 0; m < H::M; m++)
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int own = H::row() + m * 16 + ws_sum_row(half * 2), at = q0 + own;
      const float delta = at < queries ? ws_row_delta<F, OUT, ALIGNED, H::E>(gs + own * H::STEP_E, out(at)) : 0.f;
      deltas[m][half] = ws_quad<ws_sum_op>(delta), ones[m][half] = 1;
      lses[m][half] = at < queries ? lse(at) * U::OF_E : ws_inf(0.f);
    }
#pragma unroll 1
  for (int turn = 0; turn < turns; turn++) {
    if (H::STAGES > 1 && turn + 1 < turns) fetch(turn + 1);
    ws_copy_commit();
    ws_copy_wait<1>();
    __syncthreads();
    const T *const ks = stages + turn % H::STAGES * H::STAGE, *const vs = ks + H::N * H::STEP_W;
    float s[H::M][H::N / 8][4], dp[H::M][H::N / 8][4];
    ws_clear(s);
    ws_clear(dp);
    ws_multiply_rows<H::N, F, H::M, H::DEEP_W>(s, qs + H::row() * H::STEP_W, ks, H::STEP_W);
    ws_mask_scores<H::M, H::N, false, CAUSAL, MASKED>(s, row, turn * H::N, queries, keys, scale, mask);
    ws_multiply_rows<H::N, F, H::M, H::DEEP_E>(dp, gs + H::row() * H::STEP_E, vs, H::STEP_E);
    ws_score_gradients<MASKED, H::M, H::N>(
        s, dp, scale, [&](int m, int, int c) { return lses[m][c / 2]; }, [&](int m, int, int c) { return deltas[m][c / 2]; },
        [&](int m, int n, int c, float slope) {
          const int query = row + m * 16 + ws_sum_row(c), key = turn * H::N + n * 8 + ws_sum_column(c);
          if (DMASK && query < queries && key < keys) dmask(query, key, slope);
        });
    ws_weigh_rows<F, H::M, H::N, H::DEEP_W>(sum, dp, ks, H::STEP_W);
    __syncthreads(); /* the next copies overwrite this stage */
    if (H::STAGES == 1 && turn + 1 < turns) fetch(turn + 1);
    if (H::STAGES == 1) ws_copy_commit();
  }
  ws_copy_wait<0>();
  ws_store_rows<OUT, ALIGNED, H::M, H::DEEP_W, H::W>(sum, ones, row, queries, dq);
}

/* Backward pass: the gradients of a key tile (if KEYS) and of its values (if VALUES), summed over all query heads that
   share them. */
template <
    class H, class OUT, bool ALIGNED, bool CAUSAL, bool MASKED, bool KEYS, bool VALUES, class Q, class K, class V, class X,
    class G, class O, class L, class R, class Y>
WS_INLINE void ws_mma_attention_keys(
    int heads, int queries, int keys, int k0, float scale, Q q, K k, V v, X mask, G g, O out, L lse, R dk, Y dv) {
  using F = typename H::F;
  using T = typename H::T;
  using U = ws_unit<MASKED>;
  T *const ks = (T *)ws_shared_memory(), *const vs = ks + H::OWN * H::STEP_W, *const stages = vs + H::OWN * H::STEP_E;
  float *const lses = (float *)(stages + H::STAGES * H::STAGE), *const deltas = lses + H::N;
  const int row = k0 + H::row(), first = CAUSAL ? k0 / H::N : 0, all = (queries + H::N - 1) / H::N;
  const int each = all > first ? all - first : 0, turns = heads * each;
  auto fetch = [&](int turn) {
    T *const to = stages + turn % H::STAGES * H::STAGE;
    const int h = turn / each, q0 = (first + turn % each) * H::N;
    ws_copy_rows<F, ALIGNED, H::THREADS, H::N, H::W>(to, q0, queries, [&](int i) { return q(h, i); });
    ws_copy_rows<F, ALIGNED, H::THREADS, H::N, H::E>(to + H::N * H::STEP_W, q0, queries, [&](int i) { return g(h, i); });
  };
  float of_keys[H::M][H::DEEP_W / 8][4], of_values[H::M][H::DEEP_E / 8][4], ones[H::M][2];
  ws_clear(of_keys);
  ws_clear(of_values);
#pragma unroll
  for (int m = 0; m < H::M; m++) ones[m][0] = ones[m][1] = 1;
  ws_copy_rows<F, ALIGNED, H::THREADS, H::OWN, H::W>(ks, k0, keys, k);
  if (KEYS) ws_copy_rows<F, ALIGNED, H::THREADS, H::OWN, H::E>(vs, k0, keys, v);
  if (turns) fetch(0);
  ws_copy_commit();
#pragma unroll 1
  for (int turn = 0; turn < turns; turn++) {
    if (H::STAGES > 1 && turn + 1 < turns) fetch(turn + 1);
    ws_copy_commit();
    ws_copy_wait<1>();
    __syncthreads();
    const T *const qs = stages + turn % H::STAGES * H::STAGE, *const gs = qs + H::N * H::STEP_W;
    const int h = turn / each, q0 = (first + turn % each) * H::N;
#pragma unroll
    for (int i = threadIdx.x / 4; i < (H::N + 7) / 8 * 8; i += H::THREADS / 4) {
      const bool inside = i < H::N && q0 + i < queries;
      float delta = 0;
      if (KEYS && inside) delta = ws_row_delta<F, OUT, ALIGNED, H::E>(gs + i * H::STEP_E, out(h, q0 + i));
      delta = ws_quad<ws_sum_op>(delta);
      if (threadIdx.x % 4 == 0) deltas[i] = delta, lses[i] = inside ? lse(h, q0 + i) * U::OF_E : ws_inf(0.f);
    }
    __syncthreads();
    float s[H::M][H::N / 8][4], dp[H::M][H::N / 8][4];
    ws_clear(s);
    ws_clear(dp);
    ws_multiply_rows<H::N, F, H::M, H::DEEP_W>(s, ks + H::row() * H::STEP_W, qs, H::STEP_W);
    ws_mask_scores<H::M, H::N, true, CAUSAL, MASKED>(
        s, row, q0, queries, keys, scale, [&](int i, int j) { return mask(h, i, j); });
    if (KEYS) ws_multiply_rows<H::N, F, H::M, H::DEEP_E>(dp, vs + H::row() * H::STEP_E, gs, H::STEP_E);
    ws_score_gradients<MASKED, H::M, H::N>(
        s, dp, scale, [&](int, int n, int c) { return lses[n * 8 + ws_sum_column(c)]; },
        [&](int, int n, int c) { return deltas[n * 8 + ws_sum_column(c)]; }, [](int, int, int, float) {});
    if (KEYS) ws_weigh_rows<F, H::M, H::N, H::DEEP_W>(of_keys, dp, qs, H::STEP_W);
    if (VALUES) ws_weigh_rows<F, H::M, H::N, H::DEEP_E>(of_values, s, gs, H::STEP_E);
    __syncthreads(); /* the next copies overwrite this stage */
    if (H::STAGES == 1 && turn + 1 < turns) fetch(turn + 1);
    if (H::STAGES == 1) ws_copy_commit();
  }
  ws_copy_wait<0>();
  if (KEYS) ws_store_rows<OUT, ALIGNED, H::M, H::DEEP_W, H::W>(of_keys, ones, row, keys, dk);
  if (VALUES) ws_store_rows<OUT, ALIGNED, H::M, H::DEEP_E, H::E>(of_values, ones, row, keys, dv);
}

/* Backward pass if all queries and all keys fit a tile of N = 16 WARPS rows: all gradients of a key head, and of the
   query heads that share it, by one block that reads each operand once. */
template <
    class H, class OUT, bool ALIGNED, bool CAUSAL, bool MASKED, bool DMASK, class Q, class K, class V, class X, class G,
    class O, class L, class R, class D, class Y, class Z>
WS_INLINE void ws_mma_attention_short(
    int heads, int queries, int keys, float scale, Q q, K k, V v, X mask, G g, O out, L lse, R dq, D dmask, Y dk, Z dv) {
  using F = typename H::F;
  using T = typename H::T;
  using U = ws_unit<MASKED>;
  T *const qs = (T *)ws_shared_memory(), *const gs = qs + H::N * H::STEP_W, *const ks = gs + H::N * H::STEP_E;
  T *const vs = ks + H::N * H::STEP_W;
  float *const lses = (float *)(vs + H::N * H::STEP_E), *const deltas = lses + H::N;
  const int row = H::row();
  float of_keys[1][H::DEEP_W / 8][4], of_values[1][H::DEEP_E / 8][4];
  const float ones[1][2] = {{1, 1}};
  ws_clear(of_keys);
  ws_clear(of_values);
  ws_copy_rows<F, ALIGNED, H::THREADS, H::N, H::W>(ks, 0, keys, k);
  ws_copy_rows<F, ALIGNED, H::THREADS, H::N, H::E>(vs, 0, keys, v);
#pragma unroll 1
  for (int h = 0; h < heads; h++) {
    if (h) __syncthreads(); /* other warps may still read the previous head's rows */
    ws_copy_rows<F, ALIGNED, H::THREADS, H::N, H::W>(qs, 0, queries, [&](int i) { return q(h, i); });
    ws_copy_rows<F, ALIGNED, H::THREADS, H::N, H::E>(gs, 0, queries, [&](int i) { return g(h, i); });
    ws_copy_commit();
    ws_copy_wait<0>();
    __syncthreads();
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int at = row + ws_sum_row(half * 2);
      float delta = at < queries ? ws_row_delta<F, OUT, ALIGNED, H::E>(gs + at * H::STEP_E, out(h, at)) : 0.f;
      delta = ws_quad<ws_sum_op>(delta);
      if (threadIdx.x % 4 == 0) deltas[at] = delta, lses[at] = at < queries ? lse(h, at) * U::OF_E : ws_inf(0.f);
    }
    __syncthreads();
    auto pairs = [&](int i, int j) { return mask(h, i, j); };
    float s[1][H::N / 8][4], dp[1][H::N / 8][4];
    {
      float of_queries[1][H::DEEP_W / 8][4];
      ws_clear(of_queries);
      ws_clear(s);
      ws_clear(dp);
      ws_multiply_rows<H::N, F, 1, H::DEEP_W>(s, qs + row * H::STEP_W, ks, H::STEP_W);
      ws_mask_scores<1, H::N, false, CAUSAL, MASKED>(s, row, 0, queries, keys, scale, pairs);
      ws_multiply_rows<H::N, F, 1, H::DEEP_E>(dp, gs + row * H::STEP_E, vs, H::STEP_E);
      ws_score_gradients<MASKED, 1, H::N>(
          s, dp, scale, [&](int, int, int c) { return lses[row + ws_sum_row(c)]; },
          [&](int, int, int c) { return deltas[row + ws_sum_row(c)]; },
          [&](int, int n, int c, float slope) {
            const int query = row + ws_sum_row(c), key = n * 8 + ws_sum_column(c);
            if (DMASK && query < queries && key < keys) dmask(h, query, key, slope);
          });
      ws_weigh_rows<F, 1, H::N, H::DEEP_W>(of_queries, dp, ks, H::STEP_W);
      ws_store_rows<OUT, ALIGNED, 1, H::DEEP_W, H::W>(of_queries, ones, row, queries, [&](int i) { return dq(h, i); });
    }
    ws_clear(s);
    ws_clear(dp);
    ws_multiply_rows<H::N, F, 1, H::DEEP_W>(s, ks + row * H::STEP_W, qs, H::STEP_W);
    ws_mask_scores<1, H::N, true, CAUSAL, MASKED>(s, row, 0, queries, keys, scale, pairs);
    ws_multiply_rows<H::N, F, 1, H::DEEP_E>(dp, vs + row * H::STEP_E, gs, H::STEP_E);
    ws_score_gradients<MASKED, 1, H::N>(
        s, dp, scale, [&](int, int n, int c) { return lses[n * 8 + ws_sum_column(c)]; },
        [&](int, int n, int c) { return deltas[n * 8 + ws_sum_column(c)]; }, [](int, int, int, float) {});
    ws_weigh_rows<F, 1, H::N, H::DEEP_W>(of_keys, dp, qs, H::STEP_W);
    ws_weigh_rows<F, 1, H::N, H::DEEP_E>(of_values, s, gs, H::STEP_E);
  }
  ws_store_rows<OUT, ALIGNED, 1, H::DEEP_W, H::W>(of_keys, ones, row, keys, dk);
  ws_store_rows<OUT, ALIGNED, 1, H::DEEP_E, H::E>(of_values, ones, row, keys, dv);
}
