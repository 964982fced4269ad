/* Scatter-add in a fixed order: tables of partial sums for few target rows; a stable radix sort of the indices and sums
   of segments for many.  No float atomics.  A key is `row << 32 | position`; accessors are lambdas of the kernel. */

/* Few rows: a block adds one slice of the indices into tables in shared memory.  Each group of LANES threads adds a
   part of the slice into its own table; a thread owns EACH columns.  The groups' tables are added in order, then the
   slices'.  A table is [row][element][lane], without bank conflicts. */
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
  T *const table = tables + group * COUNT + lane;
  if (group < GROUPS) {
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
      for (int e = 0; e < EACH; e++) table[r * WIDE + e * LANES] = 0;
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
            table[rows[i] * WIDE + e * LANES] = ws_add(table[rows[i] * WIDE + e * LANES], values[i][e]);
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
    const int at = threadIdx.x + i * 256, to = first + at % LANES * EACH + at % WIDE / LANES;
    if (at < COUNT && to < columns) write(at / WIDE, to, own[i]);
  }
}

/* Sorts few keys: each moves to the number of smaller ones, which eight threads count.  `order` gives the numbers that
   are compared, of type O. */
template <class O, class K, class N> WS_INLINE void ws_rank_keys(long long *sorted, int total, K key, N order) {
  constexpr int STAGE = 2048, PARTS = 8, OWN = 256 / PARTS;
  __shared__ O others[STAGE];
  const int t = threadIdx.x, part = t % PARTS, mine = (int)blockIdx.x * OWN + t / PARTS;
  const O own = mine < total ? order(key(mine)) : 0;
  int before = 0;
  for (int first = 0; first < total; first += STAGE) {
    const int count = ws_min(STAGE, total - first);
    __syncthreads();
#pragma unroll 8
    for (int i = t; i < STAGE; i += 256)
      if (i < count) others[i] = order(key(first + i));
    __syncthreads();
#pragma unroll 16
    for (int i = part; i < count; i += PARTS) before += others[i] < own;
  }
  before += ws_across(before, 1);
  before += ws_across(before, 2);
  before += ws_across(before, 4);
  if (part == 0 && mine < total) sorted[before] = key(mine);
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
  /* For each digit: the position of its next key, and each warp's first position in a round of 256 keys. */
  __shared__ int next[256], first[8][256];
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

/* The first of the sorted keys whose row is at least `row`.  A whole warp compares 32 of them at a time. */
template <int LANES> WS_INLINE int ws_first_key(const long long *sorted, int indices, long long row) {
  int low = 0, high = indices;
  if constexpr (LANES == 32) {
    const int lane = threadIdx.x % 32;
    while (low < high) {
      const int step = (high - low + 31) / 32, at = low + lane * step;
      const int less = __popc(__ballot_sync(WS_ALL, at < high && sorted[at < high ? at : low] >> 32 < row));
      if (step == 1) return low + less;
      if (less == 0) return low;
      high = ws_min(high, low + less * step);
      low += (less - 1) * step + 1;
    }
    return low;
  } else {
    while (low < high) {
      const int middle = (low + high) / 2;
      if (sorted[middle] >> 32 < row) low = middle + 1;
      else high = middle;
    }
    return low;
  }
}

/* The end of the segment of `row`, which begins at `low`: mostly within the next 32 keys. */
template <int LANES> WS_INLINE int ws_last_key(const long long *sorted, int indices, long long row, int low) {
  if constexpr (LANES == 32) {
    const int at = low + (int)threadIdx.x % 32;
    const int equal = __popc(__ballot_sync(WS_ALL, at < indices && sorted[at < indices ? at : 0] >> 32 == row));
    if (equal < 32) return low + equal;
  }
  return ws_first_key<LANES>(sorted, indices, row + 1);
}
