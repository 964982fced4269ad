/* Products of a persistent scan kernel.  A block keeps its columns of the weights in shared memory for all time steps,
   and in each step loads the rows that it multiplies, which other blocks have written.  Both operands are stored as
   padded rows of k.  Sums are added in the order of product.h: of every 128 indices of k each of eight warps adds its
   own sixteen, the warps of a chunk are added in order, and then the chunks. */
constexpr int WS_LONG_PIECE = 128;
constexpr int ws_padded(int depth) { return (depth + WS_LONG_PIECE - 1) / WS_LONG_PIECE * WS_LONG_PIECE + 4; }

/* Loads columns of the weights, w(k, column), padded with zeros. */
template <int COLUMNS, int DEPTH, class W> WS_INLINE void ws_hold(float *to, W w) {
  constexpr int APART = ws_padded(DEPTH);
  for (int at = threadIdx.x; at < COLUMNS * APART; at += 256) {
    const int column = at / APART, k = at % APART;
    to[at] = k < DEPTH ? w(k, column) : 0.0f;
  }
}

/* Asynchronous copy of rows to shared memory in pieces of 16 bytes, with zeros past the last row.  Long rows are copied
   in two parts, so that the first is multiplied while the second arrives.  Half-precision values are copied to a
   staging area, from which the thread that copied them converts them to float32. */
template <class T, int ROWS, int DEPTH> struct ws_rows {
  static constexpr bool WIDE = sizeof(T) == 4;
  static constexpr int APART = ws_padded(DEPTH), LONG = APART - 4, SIDE = 16 / sizeof(T), PARTS = LONG > 512 ? 2 : 1;
  static constexpr int FIRST = PARTS == 2 ? LONG / 2 / WS_LONG_PIECE * WS_LONG_PIECE : LONG;
  float *rows;
  T *halves;
  template <class F> WS_PART void each(int part, F f) const {
    const int from = part * FIRST, line = (part + 1 < PARTS ? FIRST : LONG - from) / SIDE;
#pragma unroll 8
    for (int at = threadIdx.x; at < ROWS * line; at += 256) f(at / line, from + at % line * SIDE);
  }
  WS_PART T *place(int row, int k) const {
    if constexpr (WIDE) return rows + row * APART + k;
    else return halves + row * LONG + k;
  }
  /* a(row, k) returns an address. */
  template <class A> WS_PART void bring(int count, A a) const {
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
      each(part, [&](int row, int k) {
        const bool inside = row < count && k < DEPTH;
        ws_copy<16>(place(row, k), a(inside ? row : 0, inside ? k : 0), inside);
      });
      ws_copy_commit();
    }
  }
  /* Converts a part of the half-precision rows whose copy is complete to float32, by wide(half). */
  template <class W> WS_PART void widen(int part, W wide) const {
    if constexpr (!WIDE)
      each(part, [&](int row, int k) {
        const T *const from = ws_begin(place(row, k), 16);
#pragma unroll
        for (int s = 0; s < SIDE; s++) rows[row * APART + k + s] = wide(from[s]);
      });
  }
};

/* The product of rows being copied and resident columns.  e(row, column, sum, which) is the epilogue of an element; an
   element has the same thread in every step.  The lanes of a warp tile the result DOWN x ACROSS. */
template <int ROWS, int COLUMNS, int DEPTH, int CHUNK, int DOWN, int ACROSS, class X, class W, class E>
WS_INLINE void ws_held_product(float *parts, const X &incoming, const float *w, W wide, E e) {
  constexpr int APART = ws_padded(DEPTH), LONG = APART - 4, RM = ROWS / DOWN, RN = COLUMNS / ACROSS, TILE = ROWS * COLUMNS;
  constexpr int CHUNKS = (DEPTH + CHUNK - 1) / CHUNK, PIECES = LONG / WS_LONG_PIECE;
  constexpr int HALF = LONG > 512 ? PIECES / 2 : 0; /* first piece of the second half of k */
  const float *const x = incoming.rows;
  const int t = threadIdx.x, group = t / 32, row = t % 32 / ACROSS, column = t % ACROSS;
  float acc[CHUNKS][RM][RN];
#pragma unroll
  for (int c = 0; c < CHUNKS; c++)
#pragma unroll
    for (int i = 0; i < RM; i++)
#pragma unroll
      for (int j = 0; j < RN; j++) acc[c][i][j] = 0;
  if constexpr (HALF > 0) ws_copy_wait<1>();
  else ws_copy_wait<0>();
  incoming.widen(0, wide);
  __syncthreads();
#pragma unroll
  for (int piece = 0; piece < PIECES; piece++) {
    if (HALF > 0 && piece == HALF) {
      ws_copy_wait<0>();
      incoming.widen(1, wide);
      __syncthreads();
    }
#pragma unroll
    for (int l = 0; l < 16; l += 4) {
      const int k = piece * WS_LONG_PIECE + group * 16 + l;
      float a[RM][4], b[RN][4];
#pragma unroll
      for (int i = 0; i < RM; i++) ws_pick<float, 4>(a[i], x + (row + i * DOWN) * APART + k);
#pragma unroll
      for (int j = 0; j < RN; j++) ws_pick<float, 4>(b[j], w + (column + j * ACROSS) * APART + k);
#pragma unroll
      for (int s = 0; s < 4; s++)
#pragma unroll
        for (int i = 0; i < RM; i++)
#pragma unroll
          for (int j = 0; j < RN; j++) acc[piece * WS_LONG_PIECE / CHUNK][i][j] += a[i][s] * b[j][s];
    }
  }
#pragma unroll
  for (int c = 0; c < CHUNKS; c++)
#pragma unroll
    for (int i = 0; i < RM; i++)
#pragma unroll
      for (int j = 0; j < RN; j++)
        parts[(c * 8 + group) * TILE + (row + i * DOWN) * COLUMNS + column + j * ACROSS] = acc[c][i][j];
  __syncthreads();
#pragma unroll
  for (int which = 0; which < (TILE + 255) / 256; which++) {
    const int at = which * 256 + t;
    if (TILE % 256 && at >= TILE) break;
    float sum = 0;
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
      float chunk = parts[c * 8 * TILE + at];
#pragma unroll
      for (int g = 1; g < 8; g++) chunk += parts[(c * 8 + g) * TILE + at];
      sum = CHUNKS > 1 ? sum + chunk : chunk;
    }
    e(at / COLUMNS, at % COLUMNS, sum, which);
  }
}
