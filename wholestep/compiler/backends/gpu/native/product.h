/* Tiled GEMM with register tiles: one TM x TN tile of C per block of 256 threads in GROUPS groups.  The accessors a(i,
   k) and b(k, j) return elements of any layout; e(i, j, acc, early) is the epilogue of one element of the result.

   Order of the sums (bits): of every GROUPS * TK indices of k each group adds its own TK in order, then the groups are
   added in order.  It depends on k alone, not on the tile.  `memory` is the block's shared memory.

   Split-K: if k is divided into chunks, each block adds one chunk and writes its tile to `partial`; the last block to
   arrive adds the chunks in order. */
template <class T> struct ws_chunks {
  T *partial;   /* [chunk][tile][TM * TN] */
  int *counter; /* arrivals at this tile */
  int chunk, count, tile, tiles;
};

/* COUNT adjacent elements, read by 16-byte loads. */
template <class T, int COUNT> WS_INLINE void ws_pick(T *to, const T *from) {
  struct alignas(16) Piece {
    T x[16 / sizeof(T)];
  };
  constexpr int EACH = 16 / sizeof(T);
  if constexpr (COUNT % EACH == 0) {
#pragma unroll
    for (int i = 0; i < COUNT / EACH; i++) {
      const Piece piece = ws_begin(reinterpret_cast<const Piece *>(from), 16)[i];
#pragma unroll
      for (int l = 0; l < EACH; l++) to[i * EACH + l] = piece.x[l];
    }
  } else {
#pragma unroll
    for (int i = 0; i < COUNT; i++) to[i] = from[i];
  }
}

/* Position of element `at` in an operand's stage of DEEP indices of k by WIDE of the other axis.  If k is contiguous in
   memory, a warp loads 8 of k by 4 of the other axis: full sectors of global memory, and no bank conflicts in shared.
   */
template <int DEEP, int WIDE, bool ALONG_K> WS_INLINE int ws_k_of(int at) {
  return ALONG_K ? at / 32 % (DEEP / 8) * 8 + at % 8 : at / WIDE;
}
template <int DEEP, int WIDE, bool ALONG_K> WS_INLINE int ws_other_of(int at) {
  return ALONG_K ? at / 32 / (DEEP / 8) * 4 + at % 32 / 8 : at % WIDE;
}

/* Position of a vector of four along the contiguous axis: a warp loads 8 of k by 16 of the other axis. */
template <int DEEP, int WIDE, bool ALONG_K> WS_INLINE int ws_k_of_four(int at) {
  return ALONG_K ? at / 32 % (DEEP / 8) * 8 + at % 2 * 4 : at / (WIDE / 4);
}
template <int DEEP, int WIDE, bool ALONG_K> WS_INLINE int ws_other_of_four(int at) {
  return ALONG_K ? at / 32 / (DEEP / 8) * 16 + at % 32 / 2 : at % (WIDE / 4) * 4;
}

/* An operand whose accessor returns references to 4-byte elements is read by 16-byte loads: the renderer guarantees
   that groups of four are aligned and complete. */
template <class X> struct ws_place { static constexpr bool WHOLE = false; };
template <class X> struct ws_place<const X &> { static constexpr bool WHOLE = sizeof(X) == 4; };

/* Register stage of an operand (software prefetch): `fetch` loads the next stage from global memory, `put` writes it to
   shared memory, as rows of k with stride STEP. */
template <class T, int DEEP, int WIDE, int STEP, bool ALONG_K, bool FOURS> struct ws_load {
  static constexpr int COUNT = WIDE * DEEP / 256;
  T next[COUNT];
  template <class F> __device__ __forceinline__ void fetch(int first, int end, int k0, int k_to, F f) {
    const int t = threadIdx.x;
    if constexpr (FOURS) {
#pragma unroll
      for (int l = 0; l < COUNT / 4; l++) {
        const int at = t + l * 256, other = first + ws_other_of_four<DEEP, WIDE, ALONG_K>(at);
        const int k = k0 + ws_k_of_four<DEEP, WIDE, ALONG_K>(at);
        if (other < end && k < k_to) {
          ws_pick<T, 4>(next + l * 4, &f(other, k));
        } else {
#pragma unroll
          for (int s = 0; s < 4; s++) next[l * 4 + s] = 0;
        }
      }
    } else {
#pragma unroll
      for (int l = 0; l < COUNT; l++) {
        const int at = t + l * 256, other = first + ws_other_of<DEEP, WIDE, ALONG_K>(at);
        const int k = k0 + ws_k_of<DEEP, WIDE, ALONG_K>(at);
        next[l] = other < end && k < k_to ? (T)f(other, k) : (T)0;
      }
    }
  }
  __device__ __forceinline__ void put(T *to) const {
    const int t = threadIdx.x;
    if constexpr (FOURS) {
#pragma unroll
      for (int l = 0; l < COUNT / 4; l++) {
        const int at = t + l * 256, other = ws_other_of_four<DEEP, WIDE, ALONG_K>(at);
        const int k = ws_k_of_four<DEEP, WIDE, ALONG_K>(at);
#pragma unroll
        for (int s = 0; s < 4; s++) to[ALONG_K ? (k + s) * STEP + other : k * STEP + other + s] = next[l * 4 + s];
      }
    } else {
#pragma unroll
      for (int l = 0; l < COUNT; l++) {
        const int at = t + l * 256;
        to[ws_k_of<DEEP, WIDE, ALONG_K>(at) * STEP + ws_other_of<DEEP, WIDE, ALONG_K>(at)] = next[l];
      }
    }
  }
};

/* Type of `early` if the epilogue prefetches nothing. */
struct ws_nothing {};

template <
    class T, int TM, int TN, int TK, int GROUPS, bool A_ALONG_K, bool B_ALONG_K, class A, class B, class P, class E>
WS_INLINE void ws_product(
    T *memory, int m, int n, int k_from, int k_to, int m0, int n0, ws_chunks<T> chunks, A a, B b, P early, E e) {
  constexpr int THREADS = 256, DEEP = TK * GROUPS, EACH = THREADS / GROUPS, OWN = TM * TN / EACH;
  constexpr int RN = OWN >= 16 && TN >= 16 ? 4 : 2, RM = OWN / RN; /* register tile of a thread */
  constexpr int PM = TM + 4, PN = TN + 4;                          /* padded against bank conflicts */
  constexpr bool A_FOURS = ws_place<decltype(a(0, 0))>::WHOLE && TM % 16 == 0;
  constexpr bool B_FOURS = ws_place<decltype(b(0, 0))>::WHOLE && TN % 16 == 0;
  T *const left = memory, *const right = memory + DEEP * PM;
  const int t = threadIdx.x, group = t / EACH, own = t % EACH, row = own / (TN / RN) * RM, column = own % (TN / RN) * RN;
  T acc[RM][RN];
  ws_load<T, DEEP, TM, PM, A_ALONG_K, A_FOURS> next_a;
  ws_load<T, DEEP, TN, PN, B_ALONG_K, B_FOURS> next_b;
#pragma unroll
  for (int i = 0; i < RM; i++)
#pragma unroll
    for (int j = 0; j < RN; j++) acc[i][j] = 0;
  auto fetch = [&](int k0) {
    next_a.fetch(m0, m, k0, k_to, [&](int i, int k) -> decltype(a(0, 0)) { return a(i, k); });
    next_b.fetch(n0, n, k0, k_to, [&](int j, int k) -> decltype(b(0, 0)) { return b(k, j); });
  };
  /* If a tile has one element per thread, the epilogue's loads are issued before the product, to hide their latency. */
  auto seen = early(m0 + t / TN < m ? m0 + t / TN : m0, n0 + t % TN < n ? n0 + t % TN : n0);
  fetch(k_from);
  for (int k0 = k_from; k0 < k_to; k0 += DEEP) {
    if (k0 > k_from) __syncthreads();
    next_a.put(left);
    next_b.put(right);
    __syncthreads();
    if (k0 + DEEP < k_to) fetch(k0 + DEEP);
    if (GROUPS > 1 && k0 + group * TK >= k_to) continue; /* this group has reached the end of k */
#pragma unroll
    for (int k = 0; k < TK; k++) {
      T x[RM], y[RN];
      ws_pick<T, RM>(x, left + (group * TK + k) * PM + row);
      ws_pick<T, RN>(y, right + (group * TK + k) * PN + column);
#pragma unroll
      for (int i = 0; i < RM; i++)
#pragma unroll
        for (int j = 0; j < RN; j++) acc[i][j] += x[i] * y[j];
    }
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < RM; i++)
#pragma unroll
    for (int j = 0; j < RN; j++) memory[group * (TM * TN) + (row + i) * TN + column + j] = acc[i][j];
  __syncthreads();
  for (int at = t; at < TM * TN; at += THREADS) {
    T sum = memory[at];
#pragma unroll
    for (int g = 1; g < GROUPS; g++) sum += memory[g * (TM * TN) + at];
    if (chunks.count > 1)
      chunks.partial[((long long)chunks.chunk * chunks.tiles + chunks.tile) * (TM * TN) + at] = sum;
    else if (m0 + at / TN < m && n0 + at % TN < n) {
      if (TM * TN > THREADS) seen = early(m0 + at / TN, n0 + at % TN);
      e(m0 + at / TN, n0 + at % TN, sum, seen);
    }
  }
  if (chunks.count > 1 && ws_is_last(chunks.counter, chunks.count)) {
    const T *const partial = chunks.partial + (long long)chunks.tile * (TM * TN);
    for (int at = t; at < TM * TN; at += THREADS) {
      if (m0 + at / TN >= m || n0 + at % TN >= n) continue;
      T sum = 0;
#pragma unroll 8
      for (int c = 0; c < chunks.count; c++) sum += partial[(long long)c * chunks.tiles * (TM * TN) + at];
      if (TM * TN > THREADS) seen = early(m0 + at / TN, n0 + at % TN);
      e(m0 + at / TN, n0 + at % TN, sum, seen);
    }
  }
}

/* One TM x TN tile with all of a static DEPTH in a single block, for GEMMs of so few tiles that split-K would need more
   blocks for chunks than for tiles.  a(i, k) and b(k, j) return addresses, from which stages of k are copied to shared
   memory asynchronously (three stages, cp.async of A_BYTES and B_BYTES; b along k or along columns).  The order of the
   sums is the order of ws_product with the same chunks. */
template <
    class T, int TM, int TN, int TK, int GROUPS, int DEPTH, int CHUNK, int A_BYTES, int B_BYTES, bool B_ALONG_K, class A,
    class B, class P, class E>
WS_INLINE void ws_whole_product(T *memory, int m, int n, int m0, int n0, A a, B b, P early, E e) {
  constexpr int THREADS = 256, EACH = THREADS / GROUPS, OWN = TM * TN / EACH, STAGES = 3, PIECE = TK * GROUPS;
  constexpr int RN = OWN >= 2 ? 2 : 1, RM = OWN / RN, CHUNKS = (DEPTH + CHUNK - 1) / CHUNK;
  constexpr int PIECES = (DEPTH + PIECE - 1) / PIECE, APART = PIECE + 4, STAGE = (TM + TN) * APART;
  constexpr int A_SIDE = A_BYTES / sizeof(T), B_SIDE = B_BYTES / sizeof(T), A_LINE = PIECE / A_SIDE;
  constexpr int B_LINE = (B_ALONG_K ? PIECE : TN) / B_SIDE, B_LINES = B_ALONG_K ? TN : PIECE, B_APART = B_ALONG_K ? APART : TN;
  const int t = threadIdx.x, group = t / EACH, own = t % EACH, row = own / (TN / RN) * RM, column = own % (TN / RN) * RN;
  T acc[CHUNKS][RM][RN];
#pragma unroll
  for (int c = 0; c < CHUNKS; c++)
#pragma unroll
    for (int i = 0; i < RM; i++)
#pragma unroll
      for (int j = 0; j < RN; j++) acc[c][i][j] = 0;
  auto fetch = [&](int piece) {
    T *const left = memory + piece % STAGES * STAGE, *const right = left + TM * APART;
    if (piece < PIECES) {
#pragma unroll
      for (int at = t; at < TM * A_LINE; at += THREADS) {
        const int line = at / A_LINE, side = at % A_LINE * A_SIDE, i = m0 + line, k = piece * PIECE + side;
        const bool inside = i < m && k < DEPTH;
        ws_copy<A_BYTES>(left + line * APART + side, a(inside ? i : m0, inside ? k : 0), inside);
      }
#pragma unroll
      for (int at = t; at < B_LINES * B_LINE; at += THREADS) {
        const int line = at / B_LINE, side = at % B_LINE * B_SIDE;
        const int k = piece * PIECE + (B_ALONG_K ? side : line), j = n0 + (B_ALONG_K ? line : side);
        const bool inside = j < n && k < DEPTH;
        ws_copy<B_BYTES>(right + line * B_APART + side, b(inside ? k : 0, inside ? j : n0), inside);
      }
    }
    ws_copy_commit();
  };
  auto seen = early(m0 + t / TN % TM < m ? m0 + t / TN % TM : m0, n0 + t % TN < n ? n0 + t % TN : n0);
  fetch(0);
  fetch(1);
#pragma unroll
  for (int piece = 0; piece < PIECES; piece++) {
    ws_copy_wait<1>();
    __syncthreads();
    fetch(piece + 2);
    const T *const left = memory + piece % STAGES * STAGE + group * TK, *const right = memory + piece % STAGES * STAGE + TM * APART;
#pragma unroll
    for (int k = 0; k < TK; k += 4) {
      T x[RM][4], y[RN][4];
#pragma unroll
      for (int i = 0; i < RM; i++) ws_pick<T, 4>(x[i], left + (row + i) * APART + k);
#pragma unroll
      for (int j = 0; j < RN; j++)
        if constexpr (B_ALONG_K) {
          ws_pick<T, 4>(y[j], right + (column + j) * APART + group * TK + k);
        } else {
#pragma unroll
          for (int l = 0; l < 4; l++) y[j][l] = right[(group * TK + k + l) * TN + column + j];
        }
#pragma unroll
      for (int l = 0; l < 4; l++)
#pragma unroll
        for (int i = 0; i < RM; i++)
#pragma unroll
          for (int j = 0; j < RN; j++) acc[piece * PIECE / CHUNK][i][j] += x[i][l] * y[j][l];
    }
  }
  ws_copy_wait<0>();
  __syncthreads();
#pragma unroll
  for (int c = 0; c < CHUNKS; c++)
#pragma unroll
    for (int i = 0; i < RM; i++)
#pragma unroll
      for (int j = 0; j < RN; j++) memory[(c * GROUPS + group) * (TM * TN) + (row + i) * TN + column + j] = acc[c][i][j];
  __syncthreads();
  if (t < TM * TN && m0 + t / TN < m && n0 + t % TN < n) {
    T sum = 0;
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
      T chunk = memory[c * GROUPS * (TM * TN) + t];
#pragma unroll
      for (int g = 1; g < GROUPS; g++) chunk += memory[(c * GROUPS + g) * (TM * TN) + t];
      sum += chunk;
    }
    e(m0 + t / TN, n0 + t % TN, sum, seen);
  }
}

/* One row of C by a block of 256 threads: a(k) returns an element, b(k, j) an address, e(j, acc) is the epilogue.  The
   sums are added in the order of ws_product: in every stage of k each group adds its own TK in order, the groups of a
   chunk are added in order, and then the chunks.  Stages of 32 columns are double-buffered by cp.async, BYTES at a
   time. */
template <class T, int N, int TK, int DEPTH, int CHUNK, bool ALONG_K, int BYTES, class A, class B, class E>
WS_INLINE void ws_row_product(T *memory, A a, B b, E e) {
  constexpr int THREADS = 256, GROUPS = 8, WIDE = 32, STAGES = 2, PIECE = TK * GROUPS, SIDE = BYTES / sizeof(T);
  constexpr int CHUNKS = (DEPTH + CHUNK - 1) / CHUNK, PIECES = (DEPTH + PIECE - 1) / PIECE, ROUNDS = (N + WIDE - 1) / WIDE;
  constexpr int LINE = (ALONG_K ? PIECE : WIDE) / SIDE, LINES = ALONG_K ? WIDE : PIECE, APART = (ALONG_K ? PIECE : WIDE) + 4;
  T *const tiles = memory, *const given = tiles + STAGES * LINES * APART, *const parts = given + PIECES * PIECE;
  const int t = threadIdx.x, group = t / WIDE, own = t % WIDE;
  auto fetch = [&](int turn) { /* nested loops: stages of k within rounds of columns */
    T *const to = tiles + turn % STAGES * (LINES * APART);
    const int k0 = turn % PIECES * PIECE, j0 = turn / PIECES * WIDE;
    if (turn < ROUNDS * PIECES)
      for (int at = t; at < LINES * LINE; at += THREADS) {
        const int line = at / LINE, side = at % LINE * SIDE;
        const int k = k0 + (ALONG_K ? side : line), j = j0 + (ALONG_K ? line : side);
        const bool inside = k < DEPTH && j < N;
        ws_copy<BYTES>(to + line * APART + side, b(inside ? k : 0, inside ? j : 0), inside);
      }
    ws_copy_commit();
  };
  fetch(0);
  for (int k = t; k < PIECES * PIECE; k += THREADS) given[k] = k < DEPTH ? a(k) : (T)0;
  for (int round = 0; round < ROUNDS; round++) {
    T acc[CHUNKS];
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) acc[c] = 0;
#pragma unroll
    for (int piece = 0; piece < PIECES; piece++) {
      const int turn = round * PIECES + piece;
      fetch(turn + 1);
      ws_copy_wait<1>();
      __syncthreads();
      const T *const x = given + piece * PIECE + group * TK, *const tile = tiles + turn % STAGES * (LINES * APART);
#pragma unroll
      for (int k = 0; k < TK; k += 4) {
        T y[4];
        if (ALONG_K) ws_pick<T, 4>(y, tile + own * APART + group * TK + k);
#pragma unroll
        for (int l = 0; l < 4; l++)
          acc[piece * PIECE / CHUNK] += x[k + l] * (ALONG_K ? y[l] : tile[(group * TK + k + l) * APART + own]);
      }
      __syncthreads();
    }
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) parts[(c * GROUPS + group) * WIDE + own] = acc[c];
    __syncthreads();
    const int j = round * WIDE + t;
    if (t < WIDE && j < N) {
      T sum = 0;
#pragma unroll
      for (int c = 0; c < CHUNKS; c++) {
        T chunk = parts[c * GROUPS * WIDE + t];
#pragma unroll
        for (int g = 1; g < GROUPS; g++) chunk += parts[(c * GROUPS + g) * WIDE + t];
        sum = CHUNKS > 1 ? sum + chunk : chunk;
      }
      e(j, sum);
    }
  }
  ws_copy_wait<0>();
}

/* One row of C, as above, for a k so short that a single group adds all its terms: one thread per column. */
template <class T, int N, int DEPTH, class A, class B, class E> WS_INLINE void ws_short_row_product(A a, B b, E e) {
  for (int j = threadIdx.x; j < N; j += 256) {
    T x[DEPTH], y[DEPTH], sum = 0;
#pragma unroll
    for (int k = 0; k < DEPTH; k++) x[k] = a(k), y[k] = *b(k, j);
#pragma unroll
    for (int k = 0; k < DEPTH; k++) sum += x[k] * y[k];
    e(j, sum);
  }
}
