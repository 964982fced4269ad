/* Scatter-add in a fixed order: tables of partial sums for few target rows; a stable radix sort of the indices and sums
   of segments for many.  No float atomics.  A key is `row << 32 | position`; accessors are lambdas of the kernel. */

/* Few rows: a block adds one slice of the indices into tables in shared memory, one per group of LANES threads, each for
   a part of the slice; a thread owns EACH columns.  The groups' tables are added in order, then the slices'. */
template <class T, int ROWS, int EACH, int LANES, int JOINED, class I, class R, class W>
WS_INLINE void ws_scatter_table(
    T *tables, T *scratch, int *counters, int slice, int slices, int total, int columns, int first, I row_of, R read,
    W write) {
  constexpr int GROUPS = 256 / LANES, WIDE = LANES * EACH, COUNT = ROWS * WIDE, MINE = (COUNT + 255) / 256;
  constexpr int AHEAD = EACH >= 8 ? 4 : 8; /* rows whose loads are in flight */
  const int group = threadIdx.x / LANES, lane = threadIdx.x % LANES, column = first + lane * EACH;
  const int per_slice = (total + slices - 1) / slices, per_group = (per_slice + GROUPS - 1) / GROUPS;
  const int slice_end = ws_min((slice + 1) * per_slice, total);
  const int begin = slice * per_slice + group * per_group, end = ws_min(begin + per_group, slice_end);
  T *const table = tables + group * COUNT + lane * EACH;
  if (group < GROUPS) {
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
      for (int e = 0; e < EACH; e++) table[r * WIDE + e] = 0;
    for (int at = begin; at < end && column < columns; at += AHEAD) {
      T values[AHEAD][EACH];
      int rows[AHEAD];
#pragma unroll
      for (int i = 0; i < AHEAD; i++)
        if (at + i < end) rows[i] = row_of(at + i), read(at + i, column, values[i]);
#pragma unroll
      for (int i = 0; i < AHEAD; i++)
        if (at + i < end)
#pragma unroll
          for (int e = 0; e < EACH; e++)
            table[rows[i] * WIDE + e] = ws_add(table[rows[i] * WIDE + e], values[i][e]);
    }
  }
  __syncthreads();
  T own[MINE];
#pragma unroll
  for (int i = 0; i < MINE; i++) {
    const int at = threadIdx.x + i * 256;
    own[i] = at < COUNT ? tables[at] : 0;
    for (int g = 1; g < GROUPS && at < COUNT; g++) own[i] = ws_add(own[i], tables[g * COUNT + at]);
  }
  if (!ws_join_parts<T, COUNT, 256, JOINED>(own, scratch, counters, slice, slices)) return;
#pragma unroll
  for (int i = 0; i < MINE; i++) {
    const int at = threadIdx.x + i * 256;
    if (at < COUNT && first + at % WIDE < columns) write(at / WIDE, first + at % WIDE, own[i]);
  }
}

/* Sorts few keys: each moves to the number of smaller ones. */
template <class K> WS_INLINE void ws_rank_keys(long long *sorted, int total, K key) {
  __shared__ long long others[256];
  const int t = threadIdx.x;
  for (int first = (int)blockIdx.x * 256; first < total; first += (int)gridDim.x * 256) {
    const long long own = first + t < total ? key(first + t) : 0;
    int before = 0;
    for (int other = 0; other < total; other += 256) {
      __syncthreads();
      others[t] = other + t < total ? key(other + t) : 1ll << 62;
      __syncthreads();
#pragma unroll 16
      for (int i = 0; i < 256; i++) before += others[i] < own;
    }
    if (first + t < total) sorted[before] = own;
  }
}

/* -- stable radix sort: passes over 8 bits of the row, least significant first; a block has 2048 keys ----------------- */
constexpr int WS_BLOCK_KEYS = 2048;
WS_INLINE int ws_digit(long long key, int shift) { return (int)(key >> (32 + shift)) & 255; }

/* How many keys of each block have each digit, and before them: the last block to arrive turns the counts of
   [digit][block] into the position of the first such key. */
template <class K> WS_INLINE void ws_count_digits(int *counts, int *counter, int total, int shift, K key) {
  __shared__ int digits[256];
  const int t = threadIdx.x, blocks = (total + WS_BLOCK_KEYS - 1) / WS_BLOCK_KEYS;
  if ((int)blockIdx.x >= blocks) return;
  digits[t] = 0;
  __syncthreads();
  for (int i = 0; i < WS_BLOCK_KEYS; i += 256) {
    const int at = (int)blockIdx.x * WS_BLOCK_KEYS + i + t;
    if (at < total) atomicAdd(&digits[ws_digit(key(at), shift)], 1);
  }
  __syncthreads();
  counts[t * blocks + (int)blockIdx.x] = digits[t];
  if (!ws_is_last(counter, blocks)) return;
  int *const own = counts + t * blocks;
  int sum = 0, before = 0;
#pragma unroll 8
  for (int b = 0; b < blocks; b++) sum += own[b];
  digits[t] = sum;
  __syncthreads();
  for (int d = 0; d < t; d++) before += digits[d];
  for (int b = 0; b < blocks; b++) {
    const int count = own[b];
    own[b] = before, before += count;
  }
}

/* Moves the keys of a block to their positions; equal digits stay in order. */
template <class K> WS_INLINE void ws_place_digits(long long *to, const int *counts, int total, int shift, K key) {
  __shared__ int next[256], first[8][256]; /* by digit: the next position; that of each warp in a round of 256 keys */
  const int t = threadIdx.x, lane = t % 32, warp = t / 32, blocks = (total + WS_BLOCK_KEYS - 1) / WS_BLOCK_KEYS;
  if ((int)blockIdx.x >= blocks) return;
  next[t] = counts[t * blocks + (int)blockIdx.x];
  const int begin = (int)blockIdx.x * WS_BLOCK_KEYS, end = ws_min(begin + WS_BLOCK_KEYS, total);
  for (int round = begin; round < end; round += 256) {
    for (int w = 0; w < 8; w++) first[w][t] = 0;
    __syncthreads();
    const bool inside = round + t < end;
    const long long own = inside ? key(round + t) : 0;
    const int digit = ws_digit(own, shift);
    unsigned equal = __ballot_sync(WS_ALL, inside); /* lanes with the same digit */
#pragma unroll
    for (int bit = 0; bit < 8; bit++) {
      const bool one = digit >> bit & 1;
      const unsigned ones = __ballot_sync(WS_ALL, one);
      equal &= one ? ones : ~ones;
    }
    const int rank = __popc(equal & ((1u << lane) - 1));
    if (inside && rank == 0) first[warp][digit] = __popc(equal);
    __syncthreads();
    int position = next[t];
    for (int w = 0; w < 8; w++) {
      const int count = first[w][t];
      first[w][t] = position, position += count;
    }
    next[t] = position;
    __syncthreads();
    if (inside) to[first[warp][digit] + rank] = own;
    __syncthreads();
  }
}

/* -- sums of segments of sorted keys: `add(position, begin, sum)` adds PIECES vectors of EACH elements, of this lane ---- */

/* The sum of every slice of SLICE adjacent keys that all have the same row: a row with many indices is the sum of few
   slices then.  LANES threads per slice and part of a row. */
template <class T, int SLICE, int LANES, int PIECES, int EACH, class A>
WS_INLINE void ws_sum_slices(const long long *sorted, T *slices, int indices, int row, A add) {
  constexpr int WIDE = LANES * PIECES * EACH;
  const int lane = threadIdx.x % LANES, across = (row + WIDE - 1) / WIDE, total = indices / SLICE * across;
  const int first = ((int)blockIdx.x * 256 + (int)threadIdx.x) / LANES;
  for (int item = first; item < total; item += (int)gridDim.x * (256 / LANES)) {
    const int slice = item / across, begin = item % across * WIDE + lane * EACH;
    const long long *const keys = sorted + slice * SLICE;
    if (keys[0] >> 32 != keys[SLICE - 1] >> 32) continue;
    T sum[PIECES][EACH] = {};
#pragma unroll 4
    for (int i = 0; i < SLICE; i++) add((int)keys[i], begin, sum);
#pragma unroll
    for (int p = 0; p < PIECES; p++)
#pragma unroll
      for (int e = 0; e < EACH; e++)
        if (begin + p * LANES * EACH + e < row) slices[(long long)slice * row + begin + p * LANES * EACH + e] = sum[p][e];
  }
}

/* Adds the keys `low` to `high` - 1 in order: single ones up to a slice, slices, single ones. */
template <class T, int SLICE, int LANES, int PIECES, int EACH, class A>
WS_INLINE void ws_sum_segment(
    T (*sum)[EACH], const long long *sorted, const T *slices, int low, int high, int row, int begin, A add) {
  const int first = ws_min((low + SLICE - 1) / SLICE * SLICE, high);
#pragma unroll 4
  for (; low < first; low++) add((int)sorted[low], begin, sum);
#pragma unroll 4
  for (; low + SLICE <= high; low += SLICE) {
    const T *const from = slices + (long long)(low / SLICE) * row + begin;
#pragma unroll
    for (int p = 0; p < PIECES; p++)
#pragma unroll
      for (int e = 0; e < EACH; e++)
        if (begin + p * LANES * EACH + e < row) sum[p][e] = ws_add(sum[p][e], from[p * LANES * EACH + e]);
  }
#pragma unroll 4
  for (; low < high; low++) add((int)sorted[low], begin, sum);
}

/* The first of the sorted keys whose row is at least `row`. */
WS_INLINE int ws_first_key(const long long *sorted, int indices, long long row) {
  int low = 0, high = indices;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (sorted[middle] >> 32 < row) low = middle + 1;
    else high = middle;
  }
  return low;
}
