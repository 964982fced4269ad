/* Medium float32 GEMM: one TM x TN tile of C per block of 256 threads.  The block's groups of TM threads split every
   stage of k, TK indices each; a thread's register tile is 8 x TN / 8, in vectors of four.  Order of the sums (bits):
   each group adds its indices of all stages in order, then the groups are added in order; it depends on the tile.

   a(i, k) and b(k, j) return addresses; groups of four are contiguous and aligned along k or along the other axis. e(i,
   j, sum, seen) is the epilogue of an element, early(i, j) loads the epilogue's operands. */
template <int TM, int TN, int TK> struct ws_middle {
  static constexpr int GROUPS = 256 / TM, PIECE = GROUPS * TK, APART_M = TM + 4, APART_N = TN + 4;
  static constexpr int OPERANDS = PIECE * (APART_M + APART_N), ROUNDS = TM * TN * GROUPS > 8192 ? 2 : 1;
  static constexpr int MEMORY = OPERANDS > TM * TN * GROUPS / ROUNDS ? OPERANDS : TM * TN * GROUPS / ROUNDS;
};

/* Register stage of an operand (software prefetch): WIDE indices of the other axis by PIECE of k, stored to shared
   memory as rows of k. */
template <int PIECE, int WIDE, bool ALONG_K> struct ws_stage {
  static constexpr int COUNT = PIECE * WIDE / 1024; /* vectors of four per thread */
  float next[COUNT][4];
  /* If k is contiguous, a warp has 8 of k by 16 of the other axis: no bank conflicts in shared memory. */
  static __device__ __forceinline__ int k_of(int at) {
    return ALONG_K ? at / 32 % (PIECE / 8) * 8 + at % 2 * 4 : at / (WIDE / 4);
  }
  static __device__ __forceinline__ int other_of(int at) {
    return ALONG_K ? at / 32 / (PIECE / 8) * 16 + at % 32 / 2 : at % (WIDE / 4) * 4;
  }
  template <class F> __device__ __forceinline__ void fetch(int first, int end, int k0, int depth, F place) {
#pragma unroll
    for (int l = 0; l < COUNT; l++) {
      const int at = threadIdx.x + l * 256, other = first + other_of(at), k = k0 + k_of(at);
      if (other < end && k < depth) {
        ws_pick<float, 4>(next[l], place(other, k));
      } else {
#pragma unroll
        for (int s = 0; s < 4; s++) next[l][s] = 0;
      }
    }
  }
  __device__ __forceinline__ void put(float *to) const {
#pragma unroll
    for (int l = 0; l < COUNT; l++) {
      const int at = threadIdx.x + l * 256;
      float *const into = to + k_of(at) * (WIDE + 4) + other_of(at);
#pragma unroll
      for (int s = 0; s < 4; s++) into[ALONG_K ? s * (WIDE + 4) : s] = next[l][s];
    }
  }
};

template <int TM, int TN, int TK, bool A_ALONG_K, bool B_ALONG_K, class A, class B, class P, class E>
WS_INLINE void ws_middle_product(float *memory, int m, int n, int depth, int m0, int n0, A a, B b, P early, E e) {
  using S = ws_middle<TM, TN, TK>;
  constexpr int PIECE = S::PIECE, FOURS = TN / 32, ROUNDS = S::ROUNDS, ROWS = TM / ROUNDS;
  float *const left = memory, *const right = memory + PIECE * S::APART_M;
  const int t = threadIdx.x, group = t / TM, row = t % TM / 8 * 4, column = t % 8 * 4;
  float acc[2][4][FOURS][4];
  ws_stage<PIECE, TM, A_ALONG_K> next_a;
  ws_stage<PIECE, TN, B_ALONG_K> next_b;
#pragma unroll
  for (int h = 0; h < 2; h++)
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
      for (int q = 0; q < FOURS; q++)
#pragma unroll
        for (int j = 0; j < 4; j++) acc[h][i][q][j] = 0;
  auto fetch = [&](int k0) {
    next_a.fetch(m0, m, k0, depth, a);
    next_b.fetch(n0, n, k0, depth, [&](int j, int k) { return b(k, j); });
  };
  fetch(0);
#pragma unroll 1
  for (int k0 = 0; k0 < depth; k0 += PIECE) {
    if (k0) __syncthreads();
    next_a.put(left);
    next_b.put(right);
    __syncthreads();
    if (k0 + PIECE < depth) fetch(k0 + PIECE);
#pragma unroll
    for (int k = 0; k < TK; k++) {
      float x[2][4], y[FOURS][4];
#pragma unroll
      for (int h = 0; h < 2; h++) ws_pick<float, 4>(x[h], left + (group * TK + k) * S::APART_M + h * (TM / 2) + row);
#pragma unroll
      for (int q = 0; q < FOURS; q++) ws_pick<float, 4>(y[q], right + (group * TK + k) * S::APART_N + q * 32 + column);
#pragma unroll
      for (int h = 0; h < 2; h++)
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
          for (int q = 0; q < FOURS; q++)
#pragma unroll
            for (int j = 0; j < 4; j++) acc[h][i][q][j] += x[h][i] * y[q][j];
    }
  }
#pragma unroll
  for (int round = 0; round < ROUNDS; round++) {
    __syncthreads(); /* other threads may still read the previous contents */
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
      for (int i = 0; i < 4; i++)
#pragma unroll
        for (int q = 0; q < FOURS; q++) {
          if (ROUNDS == 2 && h != round) continue;
          const int at = (ROUNDS == 2 ? 0 : h * (TM / 2)) + row + i;
#pragma unroll
          for (int j = 0; j < 4; j++) memory[(group * ROWS + at) * TN + q * 32 + column + j] = acc[h][i][q][j];
        }
    __syncthreads();
#pragma unroll 4
    for (int at = t; at < ROWS * TN; at += 256) {
      const int i = m0 + round * ROWS + at / TN, j = n0 + at % TN;
      if (i >= m || j >= n) continue;
      const auto seen = early(i, j);
      float sum = memory[at];
#pragma unroll
      for (int g = 1; g < S::GROUPS; g++) sum += memory[g * (ROWS * TN) + at];
      e(i, j, sum, seen);
    }
  }
}
