/* All-reduce sums over ranks in the fixed order of `ir/type_rules/collectives.py`: a binary tree, in which the sum of
   ranks lo .. hi-1 is the sum of the first, larger half plus the sum of the rest; every rank has the same bits.
   Elements received from the other ranks are stored rank by rank with stride `apart`, without a slot for this rank,
   whose own elements are read where its step computed them.  One thread per element. */
template <class T> WS_INLINE T ws_sum_of_ranks(const T *own, const T *others, long long apart, int rank, int ranks) {
  if (ranks == 1) return *own;
  if (ranks == 2) return *own + *others;
  T left[32];      /* stack of the sums of first halves */
  int waiting[32]; /* ranks in each second half; 0 while it is being added */
  int depth = 0, size = ranks, at = 0;
  for (;;) {
    for (; size > 1; size = (size + 1) / 2) waiting[depth++] = size / 2;
    T sum = at == rank ? *own : others[(at - (at > rank)) * apart];
    at++;
    for (; depth && !waiting[depth - 1]; depth--) sum = left[depth - 1] + sum;
    if (!depth) return sum;
    left[depth - 1] = sum, size = waiting[depth - 1], waiting[depth - 1] = 0;
  }
}

/* Each piece has four words: this rank's elements, the destination, the first other rank's elements, and the count. */
template <class T, int WORDS>
WS_INLINE void ws_add_pieces(const ws_given<WORDS> &given, int pieces, long long apart, int rank, int ranks) {
  for (int p = 0; p < pieces; p++) {
    const T *const own = (const T *)given.at[4 * p], *const others = (const T *)given.at[4 * p + 2];
    T *const to = (T *)given.at[4 * p + 1];
    const long long count = (long long)given.at[4 * p + 3];
    for (long long i = (long long)blockIdx.x * 256 + threadIdx.x; i < count; i += (long long)gridDim.x * 256)
      to[i] = ws_sum_of_ranks(own + i, others + i, apart, rank, ranks);
  }
}

extern "C" __global__ void __launch_bounds__(256) ws_add_float32(
    const __grid_constant__ ws_given<400> given, int pieces, long long apart, int rank, int ranks) {
  ws_wait_for_others();
  ws_add_pieces<float>(given, pieces, apart, rank, ranks);
}

extern "C" __global__ void __launch_bounds__(256) ws_add_float64(
    const __grid_constant__ ws_given<400> given, int pieces, long long apart, int rank, int ranks) {
  ws_wait_for_others();
  ws_add_pieces<double>(given, pieces, apart, rank, ranks);
}

extern "C" __global__ void __launch_bounds__(256) ws_add_int32(
    const __grid_constant__ ws_given<400> given, int pieces, long long apart, int rank, int ranks) {
  ws_wait_for_others();
  ws_add_pieces<unsigned>(given, pieces, apart, rank, ranks); /* integers wrap */
}

extern "C" __global__ void __launch_bounds__(256) ws_add_int64(
    const __grid_constant__ ws_given<400> given, int pieces, long long apart, int rank, int ranks) {
  ws_wait_for_others();
  ws_add_pieces<unsigned long long>(given, pieces, apart, rank, ranks);
}
