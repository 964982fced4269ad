/* Many steps in one launch.  Weights that rows of the input are multiplied by stay where they are: a block has 128
   features by 8 columns of them in shared memory, what an optimizer keeps of them in registers, and of every batch the
   same features, which are on their way a step ahead.  What is added to what is as in product.h. */
constexpr int WS_DEEP = 128, WS_WIDE = 8, WS_APART = WS_DEEP + 4;

/* Where in the data the rows of a step are. */
WS_INLINE void ws_find_rows(long long *places, const ws_step *step, const ws_data *d) {
  for (int row = threadIdx.x; row < step->rows; row += 256) {
    ws_long_word from = step->position + row;
    if (d->shuffled) do from = ws_network(from, d); while (from >= d->rows);
    places[row] = (long long)from;
  }
}

/* Of each row the features of a block, and zeros behind the last row and the last feature. */
template <int ROWS, int FEATURES>
WS_INLINE void ws_bring_rows(float *to, const long long *places, const ws_step *step, const ws_data *d, int first) {
  const long long count = step->rows;
  const char *const rows = d->sources[0].rows;
#pragma unroll 4
  for (int at = threadIdx.x; at < ROWS * (WS_DEEP / 4); at += 256) {
    const int row = at / (WS_DEEP / 4), k = at % (WS_DEEP / 4) * 4;
    const bool inside = row < count && first + k < FEATURES;
    ws_copy<16>(to + row * WS_APART + k, inside ? rows + (places[row] * FEATURES + first + k) * 4 : rows, inside);
  }
}

/* The rows of other inputs, which are short: a thread a row. */
WS_INLINE void ws_bring_others(const long long *places, const ws_step *step, const ws_data *d) {
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

/* A chunk of the sums of all rows and 8 columns: e(row, column, sum). */
template <int ROWS, class E> WS_INLINE void ws_chunk_of_rows(const float *x, const float *w, E e) {
  constexpr int RN = ROWS > 32 ? 2 : 1, RM = ROWS > 64 ? 2 : 1, ACROSS = WS_WIDE / RN, DOWN = 32 / ACROSS;
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * (DOWN * RM) + lane / ACROSS, column = lane % ACROSS;
  float sum[RM][RN];
#pragma unroll
  for (int group = 0; group < 8; group++) {
    float acc[RM][RN];
#pragma unroll
    for (int i = 0; i < RM; i++)
#pragma unroll
      for (int j = 0; j < RN; j++) acc[i][j] = 0;
#pragma unroll
    for (int k = group * 16; k < group * 16 + 16; k += 4) {
      float a[RM][4], b[RN][4];
#pragma unroll
      for (int i = 0; i < RM; i++) ws_pick<float, 4>(a[i], x + (row + i * DOWN) * WS_APART + k);
#pragma unroll
      for (int j = 0; j < RN; j++) ws_pick<float, 4>(b[j], w + (column + j * ACROSS) * WS_APART + k);
#pragma unroll
      for (int l = 0; l < 4; l++)
#pragma unroll
        for (int i = 0; i < RM; i++)
#pragma unroll
          for (int j = 0; j < RN; j++) acc[i][j] += a[i][l] * b[j][l];
    }
#pragma unroll
    for (int i = 0; i < RM; i++)
#pragma unroll
      for (int j = 0; j < RN; j++) sum[i][j] = group ? sum[i][j] + acc[i][j] : acc[i][j];
  }
#pragma unroll
  for (int i = 0; i < RM; i++)
#pragma unroll
    for (int j = 0; j < RN; j++) e(row + i * DOWN, column + j * ACROSS, sum[i][j]);
}

/* The gradient of a block's weights: d(row, column) is that of the columns.  Sixteen rows at a time are added up by 64
   threads, 4 x 4 weights each; e(feature, column, sum, which) takes the four of a thread. */
template <int ROWS, class D, class E> WS_INLINE void ws_gradient_of_weights(float *memory, const float *x, D d, E e) {
  constexpr int PARTS = ROWS / 16, TILE = WS_DEEP * WS_WIDE;
  float *const parts = memory, *const slopes = memory + PARTS * TILE;
  const int t = threadIdx.x, quad = t % 32, half = t / 32 % 2;
  for (int at = t; at < ROWS * WS_WIDE; at += 256) slopes[at] = d(at / WS_WIDE, at % WS_WIDE);
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
      ws_pick<float, 4>(a, x + (part * 16 + row) * WS_APART + quad * 4);
      ws_pick<float, 4>(b, slopes + (part * 16 + row) * WS_WIDE + half * 4);
#pragma unroll
      for (int c = 0; c < 4; c++)
#pragma unroll
        for (int f = 0; f < 4; f++) acc[c][f] += a[f] * b[c];
    }
#pragma unroll
    for (int c = 0; c < 4; c++) {
      struct alignas(16) Piece { float x[4]; };
      *(Piece *)(parts + part * TILE + (half * 4 + c) * WS_DEEP + quad * 4) = {{acc[c][0], acc[c][1], acc[c][2], acc[c][3]}};
    }
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
