/* A tile of a product, TM x TN, by 256 threads in GROUPS groups: a(i, k) and b(k, j) are elements, e(i, j, acc) takes one
   of the result.  Of every GROUPS * TK indices of k each group adds up its own TK, in order; then the groups are added
   in order: what is added to what depends on k alone, not on the tile.  `memory` is the block's.

   Where k is cut into chunks, each block adds up one, leaves its tile in `partial`, and the last to arrive adds the
   chunks in order. */
template <class T> struct ws_chunks {
  T *partial;   /* [chunk][tile][TM * TN] */
  int *counter; /* of this tile */
  int chunk, count, tile, tiles;
};

/* COUNT elements side by side, read in pieces of 16 bytes. */
template <class T, int COUNT> WS_INLINE void ws_pick(T *to, const T *from) {
  struct alignas(16) Piece {
    T x[16 / sizeof(T)];
  };
  constexpr int EACH = 16 / sizeof(T);
  if constexpr (COUNT % EACH == 0) {
#pragma unroll
    for (int i = 0; i < COUNT / EACH; i++) {
      const Piece piece = reinterpret_cast<const Piece *>(from)[i];
#pragma unroll
      for (int l = 0; l < EACH; l++) to[i * EACH + l] = piece.x[l];
    }
  } else {
#pragma unroll
    for (int i = 0; i < COUNT; i++) to[i] = from[i];
  }
}

/* Element `at` of an operand's piece, DEEP indices of k by WIDE of the other axis.  Where k is contiguous in memory, a
   warp takes 8 of k by 4 of the other: whole sectors there, and all banks of the shared memory here. */
template <int DEEP, int WIDE, bool ALONG_K> WS_INLINE int ws_k_of(int at) {
  return ALONG_K ? at / 32 % (DEEP / 8) * 8 + at % 8 : at / WIDE;
}
template <int DEEP, int WIDE, bool ALONG_K> WS_INLINE int ws_other_of(int at) {
  return ALONG_K ? at / 32 / (DEEP / 8) * 4 + at % 32 / 8 : at % WIDE;
}

/* Nothing of an epilogue is read before its product is made. */
struct ws_nothing {};

template <
    class T, int TM, int TN, int TK, int GROUPS, bool A_ALONG_K, bool B_ALONG_K, class A, class B, class P, class E>
WS_INLINE void ws_product(
    T *memory, int m, int n, int k_from, int k_to, int m0, int n0, ws_chunks<T> chunks, A a, B b, P early, E e) {
  constexpr int THREADS = 256, DEEP = TK * GROUPS, EACH = THREADS / GROUPS, OWN = TM * TN / EACH;
  constexpr int RN = OWN >= 16 && TN >= 16 ? 4 : 2, RM = OWN / RN; /* of a thread: side by side */
  constexpr int LA = TM * DEEP / THREADS, LB = TN * DEEP / THREADS, PM = TM + 4, PN = TN + 4;
  T *const left = memory, *const right = memory + DEEP * PM;
  const int t = threadIdx.x, group = t / EACH, own = t % EACH, row = own / (TN / RN) * RM, column = own % (TN / RN) * RN;
  T acc[RM][RN], next_a[LA], next_b[LB];
#pragma unroll
  for (int i = 0; i < RM; i++)
#pragma unroll
    for (int j = 0; j < RN; j++) acc[i][j] = 0;
  auto fetch = [&](int k0) {
#pragma unroll
    for (int l = 0; l < LA; l++) {
      const int at = t + l * THREADS, i = m0 + ws_other_of<DEEP, TM, A_ALONG_K>(at);
      const int k = k0 + ws_k_of<DEEP, TM, A_ALONG_K>(at);
      next_a[l] = i < m && k < k_to ? (T)a(i, k) : (T)0;
    }
#pragma unroll
    for (int l = 0; l < LB; l++) {
      const int at = t + l * THREADS, j = n0 + ws_other_of<DEEP, TN, B_ALONG_K>(at);
      const int k = k0 + ws_k_of<DEEP, TN, B_ALONG_K>(at);
      next_b[l] = j < n && k < k_to ? (T)b(k, j) : (T)0;
    }
  };
  /* Of a tile with an element for each thread, what its epilogue reads is on its way while the product is made. */
  auto seen = early(m0 + t / TN < m ? m0 + t / TN : m0, n0 + t % TN < n ? n0 + t % TN : n0);
  fetch(k_from);
  for (int k0 = k_from; k0 < k_to; k0 += DEEP) {
    if (k0 > k_from) __syncthreads();
#pragma unroll
    for (int l = 0; l < LA; l++) {
      const int at = t + l * THREADS;
      left[ws_k_of<DEEP, TM, A_ALONG_K>(at) * PM + ws_other_of<DEEP, TM, A_ALONG_K>(at)] = next_a[l];
    }
#pragma unroll
    for (int l = 0; l < LB; l++) {
      const int at = t + l * THREADS;
      right[ws_k_of<DEEP, TN, B_ALONG_K>(at) * PN + ws_other_of<DEEP, TN, B_ALONG_K>(at)] = next_b[l];
    }
    __syncthreads();
    if (k0 + DEEP < k_to) fetch(k0 + DEEP);
    if (GROUPS > 1 && k0 + group * TK >= k_to) continue; /* nothing is left for this group */
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

/* A tile of a product of a fixed DEPTH by one block, in STAGE indices of k at a time: for products of so few tiles that
   the chunks of k would be most of the blocks.  What is added to what is as above. */
template <
    class T, int TM, int TN, int TK, int GROUPS, int DEPTH, int CHUNK, int STAGE, bool A_ALONG_K, bool B_ALONG_K, class A,
    class B, class P, class E>
WS_INLINE void ws_whole_product(T *memory, int m, int n, int m0, int n0, A a, B b, P early, E e) {
  constexpr int THREADS = 256, EACH = THREADS / GROUPS, OWN = TM * TN / EACH;
  constexpr int RN = OWN >= 2 ? 2 : 1, RM = OWN / RN, CHUNKS = (DEPTH + CHUNK - 1) / CHUNK;
  constexpr int LA = TM * STAGE / THREADS, LB = TN * STAGE / THREADS, PM = TM + 4, PN = TN + 4;
  T *const left = memory, *const right = memory + STAGE * PM;
  const int t = threadIdx.x, group = t / EACH, own = t % EACH, row = own / (TN / RN) * RM, column = own % (TN / RN) * RN;
  T acc[CHUNKS][RM][RN], next_a[LA], next_b[LB];
#pragma unroll
  for (int c = 0; c < CHUNKS; c++)
#pragma unroll
    for (int i = 0; i < RM; i++)
#pragma unroll
      for (int j = 0; j < RN; j++) acc[c][i][j] = 0;
  auto fetch = [&](int k0) {
#pragma unroll
    for (int l = 0; l < LA; l++) {
      const int at = t + l * THREADS, i = m0 + ws_other_of<STAGE, TM, A_ALONG_K>(at);
      const int k = k0 + ws_k_of<STAGE, TM, A_ALONG_K>(at);
      next_a[l] = i < m && k < DEPTH ? (T)a(i, k) : (T)0;
    }
#pragma unroll
    for (int l = 0; l < LB; l++) {
      const int at = t + l * THREADS, j = n0 + ws_other_of<STAGE, TN, B_ALONG_K>(at);
      const int k = k0 + ws_k_of<STAGE, TN, B_ALONG_K>(at);
      next_b[l] = j < n && k < DEPTH ? (T)b(k, j) : (T)0;
    }
  };
  auto seen = early(m0 + t / TN % TM < m ? m0 + t / TN % TM : m0, n0 + t % TN < n ? n0 + t % TN : n0);
  fetch(0);
#pragma unroll
  for (int k0 = 0; k0 < DEPTH; k0 += STAGE) {
    if (k0) __syncthreads();
#pragma unroll
    for (int l = 0; l < LA; l++) {
      const int at = t + l * THREADS;
      left[ws_k_of<STAGE, TM, A_ALONG_K>(at) * PM + ws_other_of<STAGE, TM, A_ALONG_K>(at)] = next_a[l];
    }
#pragma unroll
    for (int l = 0; l < LB; l++) {
      const int at = t + l * THREADS;
      right[ws_k_of<STAGE, TN, B_ALONG_K>(at) * PN + ws_other_of<STAGE, TN, B_ALONG_K>(at)] = next_b[l];
    }
    __syncthreads();
    if (k0 + STAGE < DEPTH) fetch(k0 + STAGE);
#pragma unroll
    for (int piece = 0; piece < STAGE && k0 + piece < DEPTH; piece += TK * GROUPS) {
      const int c = (k0 + piece) / CHUNK, from = piece + group * TK;
#pragma unroll
      for (int k = 0; k < TK; k++) {
        T x[RM], y[RN];
#pragma unroll
        for (int i = 0; i < RM; i++) x[i] = left[(from + k) * PM + row + i];
#pragma unroll
        for (int j = 0; j < RN; j++) y[j] = right[(from + k) * PN + column + j];
#pragma unroll
        for (int i = 0; i < RM; i++)
#pragma unroll
          for (int j = 0; j < RN; j++) acc[c][i][j] += x[i] * y[j];
      }
    }
  }
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

/* A row of a product, by WIDE * GROUPS threads: a(k) and b(k, j) are elements, e(j, acc) takes one of the result.  What
   is added to what is as in a tile: of every piece of k each group adds up its own TK in order, the groups of a chunk are
   added in order, and then the chunks. */
template <class T, int GROUPS, int WIDE, int TK, int DEPTH, int CHUNK, bool ALONG_K, class A, class B, class E>
WS_INLINE void ws_row_product(T *parts, int n, A a, B b, E e) {
  constexpr int CHUNKS = (DEPTH + CHUNK - 1) / CHUNK;
  const int t = threadIdx.x, group = ALONG_K ? t % GROUPS : t / WIDE, own = ALONG_K ? t / GROUPS : t % WIDE;
  for (int j0 = 0; j0 < n; j0 += WIDE) {
    const int j = j0 + own;
    if (j < n) {
      T acc[CHUNKS];
#pragma unroll
      for (int c = 0; c < CHUNKS; c++) {
        acc[c] = 0;
#pragma unroll
        for (int k0 = c * CHUNK; k0 < DEPTH && k0 < (c + 1) * CHUNK; k0 += TK * GROUPS) {
          const int to = DEPTH < (c + 1) * CHUNK ? DEPTH : (c + 1) * CHUNK, from = k0 + group * TK;
          T x[TK], y[TK];
#pragma unroll
          for (int k = 0; k < TK; k++) {
            const bool inside = from + k < to;
            x[k] = inside ? a(from + k) : (T)0;
            y[k] = inside ? b(from + k, j) : (T)0;
          }
#pragma unroll
          for (int k = 0; k < TK; k++) acc[c] += x[k] * y[k];
        }
        parts[(c * GROUPS + group) * WIDE + own] = acc[c];
      }
    }
    __syncthreads();
    if (t < WIDE && j0 + t < n) {
      T sum = 0;
#pragma unroll
      for (int c = 0; c < CHUNKS; c++) {
        T chunk = parts[c * GROUPS * WIDE + t];
#pragma unroll
        for (int g = 1; g < GROUPS; g++) chunk += parts[(c * GROUPS + g) * WIDE + t];
        sum = CHUNKS > 1 ? sum + chunk : chunk;
      }
      e(j0 + t, sum);
    }
    __syncthreads();
  }
}
