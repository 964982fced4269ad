/* Persistent training kernel: many steps of a small MLP in one launch.  The first layer's weights stay resident: a
   block has 128 features by 8 columns of them in shared memory, their optimizer state in registers, and the same
   features of every batch, which are copied one step ahead (double buffering).  Sums are added in the order
   of product.h. */
constexpr int WS_DEEP = 128, WS_WIDE = 8, WS_APART = WS_DEEP + 4;

/* Row numbers of a step's batch in the data set. */
WS_INLINE void ws_find_rows(int *places, const ws_step *step, const ws_data *d) {
  for (int row = threadIdx.x; row < step->rows; row += 256) {
    ws_long_word from = step->position + row;
    if (d->shuffled) do from = ws_network(from, d); while (from >= d->rows);
    places[row] = (int)from;
  }
}

/* Copies the block's features of each row, with zeros past the last row and the last feature: one warp per row. */
template <int ROWS, int FEATURES>
WS_INLINE void ws_bring_rows(float *to, const int *places, const ws_step *step, const ws_data *d, int first) {
  const int k = threadIdx.x % 32 * 4, start = threadIdx.x / 32;
  const int count = first + k < FEATURES ? (int)step->rows : 0;
  const char *const rows = d->sources[0].rows + (long long)(first + k) * 4;
  to += start * WS_APART + k;
#pragma unroll
  for (int i = 0; i < ROWS / 8; i++) {
    const bool inside = start + i * 8 < count;
    const long long from = inside ? (long long)places[start + i * 8] * (FEATURES * 4) : 0;
    ws_copy<16>(to + i * (8 * WS_APART), rows + from, inside);
  }
}

/* Copies the rows of the other inputs, which are short: one thread per row. */
WS_INLINE void ws_bring_others(const int *places, const ws_step *step, const ws_data *d) {
  for (int row = threadIdx.x; row < step->rows; row += 256)
    for (int i = 0; i < d->count; i++) {
      const long long bytes = d->sources[i].row_bytes;
      const char *const from = d->sources[i].rows + places[row] * bytes;
      char *const to = d->sources[i].input + row * bytes;
      if (bytes % 4 == 0)
        for (int at = 0; at < bytes / 4; at++) ((int *)to)[at] = ((const int *)from)[at];
      else
        for (int at = 0; at < bytes; at++) to[at] = from[at];
    }
}

/* Partial sums over the block's 128 features, for all rows and 8 columns: e(row, column, sum).  Each of eight teams of
   threads has sixteen indices of k; a thread's register tile is 8 x 8 for many rows, since shared memory bandwidth is
   the bottleneck.  The sums of the eight teams are added in order. */
template <int ROWS, class E> WS_INLINE void ws_chunk_of_rows(float *memory, const float *x, const float *w, E e) {
  constexpr int RM = ROWS > 64 ? 8 : ROWS / 16, RN = ROWS > 64 ? 8 : 4, ACROSS = WS_WIDE / RN, DOWN = ROWS / RM;
  constexpr int TEAM = DOWN * ACROSS, TILE = ROWS * WS_WIDE;
  static_assert(8 * TEAM <= 256, "a block has room for eight teams");
  struct alignas(16) Piece { float x[4]; };
  const int t = threadIdx.x, group = t / TEAM, row = t % TEAM / ACROSS, column = t % ACROSS * RN;
  if (group < 8) {
    float acc[RM][RN];
#pragma unroll
    for (int i = 0; i < RM; i++)
#pragma unroll
      for (int j = 0; j < RN; j++) acc[i][j] = 0;
#pragma unroll
    for (int l = 0; l < 16; l += 4) {
      float a[RM][4], b[RN][4];
#pragma unroll
      for (int i = 0; i < RM; i++) ws_pick<float, 4>(a[i], x + (row + i * DOWN) * WS_APART + group * 16 + l);
#pragma unroll
      for (int j = 0; j < RN; j++) ws_pick<float, 4>(b[j], w + (column + j) * WS_APART + group * 16 + l);
#pragma unroll
      for (int k = 0; k < 4; k++)
#pragma unroll
        for (int i = 0; i < RM; i++)
#pragma unroll
          for (int j = 0; j < RN; j++) acc[i][j] += a[i][k] * b[j][k];
    }
#pragma unroll
    for (int i = 0; i < RM; i++)
#pragma unroll
      for (int j = 0; j < RN; j += 4)
        *(Piece *)(memory + group * TILE + (row + i * DOWN) * WS_WIDE + column + j) =
            {{acc[i][j], acc[i][j + 1], acc[i][j + 2], acc[i][j + 3]}};
  }
  __syncthreads();
#pragma unroll
  for (int at = t; at < TILE; at += 256) {
    float sum = memory[at];
#pragma unroll
    for (int other = 1; other < 8; other++) sum += memory[other * TILE + at];
    e(at / WS_WIDE, at % WS_WIDE, sum);
  }
}

/* Gradient of the block's weights; d(row, column) is the output gradient.  64 threads, with 4 x 4 weights each, add
   sixteen rows at a time; then the groups of sixteen are added in order.  e(feature, column, sum, which) updates a
   weight, four per thread. */
template <int ROWS, class D, class E> WS_INLINE void ws_gradient_of_weights(float *memory, const float *x, D d, E e) {
  constexpr int PARTS = ROWS / 16, TILE = WS_DEEP * WS_WIDE;
  struct alignas(16) Piece { float x[4]; };
  float *const parts = memory, *const gradients = memory + PARTS * TILE;
  const int t = threadIdx.x, feature = t % 32 * 4, column = t / 32 % 2 * 4;
#pragma unroll
  for (int at = t; at < ROWS * WS_WIDE; at += 256) gradients[at] = d(at / WS_WIDE, at % WS_WIDE);
  __syncthreads();
  for (int part = t / 64; part < PARTS; part += 4) {
    float acc[4][4];
#pragma unroll
    for (int c = 0; c < 4; c++)
#pragma unroll
      for (int f = 0; f < 4; f++) acc[c][f] = 0;
#pragma unroll
    for (int row = 0; row < 16; row++) {
      float a[4], b[4];
      ws_pick<float, 4>(a, x + (part * 16 + row) * WS_APART + feature);
      ws_pick<float, 4>(b, gradients + (part * 16 + row) * WS_WIDE + column);
#pragma unroll
      for (int c = 0; c < 4; c++)
#pragma unroll
        for (int f = 0; f < 4; f++) acc[c][f] += a[f] * b[c];
    }
#pragma unroll
    for (int c = 0; c < 4; c++)
      *(Piece *)(parts + part * TILE + (column + c) * WS_DEEP + feature) = {{acc[c][0], acc[c][1], acc[c][2], acc[c][3]}};
  }
  __syncthreads();
#pragma unroll
  for (int which = 0; which < TILE / 256; which++) {
    const int at = which * 256 + t;
    float sum = parts[at];
#pragma unroll
    for (int part = 1; part < 8; part++) sum += part < PARTS ? parts[part * TILE + at] : 0.0f;
    e(at % WS_DEEP, at / WS_DEEP, sum, which);
  }
}
