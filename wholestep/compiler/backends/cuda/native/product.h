/* A tile of a product, TM x TN, by 256 threads in GROUPS groups: a(i, k) and b(k, j) are elements, e(i, j, acc) takes one
   of the result.  Of every GROUPS * TK indices of k each group adds up its own TK, in order; then the groups are added
   in order: what is added to what depends on k alone.

   Where k is cut into chunks, each block adds up one, leaves its tile in `partial`, and the last to arrive adds the
   chunks in order. */
template <class T> struct ws_chunks {
  T *partial;   /* [chunk][tile][TM * TN] */
  int *counter; /* of this tile */
  int chunk, count, tile, tiles;
};

template <class T, int TM, int TN, int TK, int GROUPS, bool A_ALONG_K, bool B_ALONG_K, class A, class B, class E>
WS_INLINE void ws_product(int m, int n, int k_from, int k_to, int m0, int n0, ws_chunks<T> chunks, A a, B b, E e) {
  constexpr int THREADS = 256, DEEP = TK * GROUPS, EACH = THREADS / GROUPS;
  constexpr int RM = TM * TN / EACH >= 64 ? 8 : 4, RN = TM * TN / EACH / RM; /* of a thread */
  constexpr int LA = TM * DEEP / THREADS, LB = TN * DEEP / THREADS;
  __shared__ T left[DEEP][TM + 1], right[DEEP][TN + 1];
  const int t = threadIdx.x, group = t / EACH, own = t % EACH, row = own / (TN / RN), column = own % (TN / RN);
  T acc[RM][RN], next_a[LA], next_b[LB];
#pragma unroll
  for (int i = 0; i < RM; i++)
#pragma unroll
    for (int j = 0; j < RN; j++) acc[i][j] = 0;
  auto fetch = [&](int k0) {
#pragma unroll
    for (int l = 0; l < LA; l++) {
      const int at = t + l * THREADS, i = m0 + (A_ALONG_K ? at / DEEP : at % TM);
      const int k = k0 + (A_ALONG_K ? at % DEEP : at / TM);
      next_a[l] = i < m && k < k_to ? (T)a(i, k) : (T)0;
    }
#pragma unroll
    for (int l = 0; l < LB; l++) {
      const int at = t + l * THREADS, j = n0 + (B_ALONG_K ? at / DEEP : at % TN);
      const int k = k0 + (B_ALONG_K ? at % DEEP : at / TN);
      next_b[l] = j < n && k < k_to ? (T)b(k, j) : (T)0;
    }
  };
  fetch(k_from);
  for (int k0 = k_from; k0 < k_to; k0 += DEEP) {
    __syncthreads();
#pragma unroll
    for (int l = 0; l < LA; l++) {
      const int at = t + l * THREADS;
      left[A_ALONG_K ? at % DEEP : at / TM][A_ALONG_K ? at / DEEP : at % TM] = next_a[l];
    }
#pragma unroll
    for (int l = 0; l < LB; l++) {
      const int at = t + l * THREADS;
      right[B_ALONG_K ? at % DEEP : at / TN][B_ALONG_K ? at / DEEP : at % TN] = next_b[l];
    }
    __syncthreads();
    if (k0 + DEEP < k_to) fetch(k0 + DEEP);
#pragma unroll
    for (int k = 0; k < TK; k++) {
      T x[RM], y[RN];
#pragma unroll
      for (int i = 0; i < RM; i++) x[i] = left[group * TK + k][row + i * (TM / RM)];
#pragma unroll
      for (int j = 0; j < RN; j++) y[j] = right[group * TK + k][column + j * (TN / RN)];
#pragma unroll
      for (int i = 0; i < RM; i++)
#pragma unroll
        for (int j = 0; j < RN; j++) acc[i][j] += x[i] * y[j];
    }
  }
  __shared__ T tiles[GROUPS][TM * TN];
#pragma unroll
  for (int i = 0; i < RM; i++)
#pragma unroll
    for (int j = 0; j < RN; j++) tiles[group][(row + i * (TM / RM)) * TN + column + j * (TN / RN)] = acc[i][j];
  __syncthreads();
  for (int at = t; at < TM * TN; at += THREADS) {
    T sum = tiles[0][at];
#pragma unroll
    for (int g = 1; g < GROUPS; g++) sum += tiles[g][at];
    if (chunks.count > 1)
      chunks.partial[((long long)chunks.chunk * chunks.tiles + chunks.tile) * (TM * TN) + at] = sum;
    else if (m0 + at / TN < m && n0 + at % TN < n)
      e(m0 + at / TN, n0 + at % TN, sum);
  }
  if (chunks.count > 1 && ws_is_last(chunks.counter, chunks.count)) {
    for (int at = t; at < TM * TN; at += THREADS) {
      if (m0 + at / TN >= m || n0 + at % TN >= n) continue;
      T sum = 0;
      for (int c = 0; c < chunks.count; c++)
        sum += chunks.partial[((long long)c * chunks.tiles + chunks.tile) * (TM * TN) + at];
      e(m0 + at / TN, n0 + at % TN, sum);
    }
  }
}
