/* Gather of a batch from data in GPU memory: one block per row, for each of the inputs.  The shuffled order is defined
   in `runtime/epoch_permutation.py`: a Feistel network on positions with cycle walking, so that no permutation is
   stored.  Also copies between host and device memory at the start and end of a launch. */
struct ws_source {
  const char *rows;
  char *input;
  long long row_bytes;
};
struct ws_data {
  long long rows;     /* rows of the whole data set */
  int shuffled, left; /* is the epoch shuffled?  bits of the left half of a position */
  int right, count;   /* bits of the right half; number of inputs */
  ws_long_word keys[6];
  ws_source sources[8];
};

/* The Feistel network: a bijection of positions of `left + right` bits. */
WS_INLINE ws_long_word ws_network(ws_long_word at, const ws_data *d) {
  int low = d->right, high = d->left;
  ws_long_word x = at & ((1ull << low) - 1), y = at >> low;
  for (int r = 0; r < 6; r++) { /* (y, x) -> (x, y ^ F(x)); the halves swap their widths */
    ws_long_word f = (x ^ d->keys[r]) * 0xFF51AFD7ED558CCDull;
    f = (f ^ (f >> 32)) * 0xC4CEB9FE1A85EC53ull;
    const ws_long_word next = y ^ (f >> (64 - high));
    y = x, x = next;
    const int width = low;
    low = high, high = width;
  }
  return y << low | x;
}

/* Copies with COUNT loads in flight per thread, to hide the latency of rows that are in no cache. */
template <class Piece> WS_INLINE void ws_move(void *to, const void *of, long long pieces) {
  constexpr int COUNT = 8, THREADS = 256;
  Piece *const into = (Piece *)to;
  const Piece *const from = (const Piece *)of;
  for (long long first = threadIdx.x; first < pieces; first += COUNT * THREADS) {
    Piece seen[COUNT];
#pragma unroll
    for (int i = 0; i < COUNT; i++)
      if (first + i * THREADS < pieces) seen[i] = from[first + i * THREADS];
#pragma unroll
    for (int i = 0; i < COUNT; i++)
      if (first + i * THREADS < pieces) into[first + i * THREADS] = seen[i];
  }
}

struct alignas(16) ws_sixteen {
  int x[4];
};

WS_INLINE void ws_gather_rows(const ws_step *step, const ws_data *d, int block, int blocks) {
  const long long rows = step->rows;
  for (long long row = block; row < rows; row += blocks) {
    ws_long_word from = step->position + row;
    if (d->shuffled) do from = ws_network(from, d); while (from >= d->rows);
    for (int i = 0; i < d->count; i++) {
      const long long bytes = d->sources[i].row_bytes;
      const char *const source = d->sources[i].rows + (long long)from * bytes;
      char *const input = d->sources[i].input + row * bytes;
      if (bytes % 16 == 0) ws_move<ws_sixteen>(input, source, bytes / 16);
      else if (bytes % 4 == 0) ws_move<int>(input, source, bytes / 4);
      else ws_move<char>(input, source, bytes);
    }
  }
}

extern "C" __global__ void __launch_bounds__(256) ws_gather(const ws_step *step, const ws_data *d) {
  ws_wait_for_others();
  ws_gather_rows(step, d, blockIdx.x, gridDim.x);
}

/* Copies the arguments of a launch from pinned host memory, in pieces of 16 bytes.  Launches run in order, so the
   number of this one, which the host stores in `position`, tells the host through `begun` that all earlier ones are
   done. */
extern "C" __global__ void __launch_bounds__(256) ws_fetch(char *to, const char *of, long long pieces, long long *begun) {
  ws_wait_for_others();
  struct alignas(16) Piece { int x[4]; };
  for (long long i = blockIdx.x * 256 + threadIdx.x; i < pieces; i += gridDim.x * 256)
    ((Piece *)to)[i] = ((const Piece *)of)[i];
  if (blockIdx.x == 0 && threadIdx.x == 0) *begun = ((const ws_step *)of)->position;
}

/* Copies the results of a launch to pinned host memory. */
extern "C" __global__ void __launch_bounds__(256) ws_leave(char *to, const char *of, long long pieces) {
  ws_wait_for_others();
  for (long long i = blockIdx.x * 256 + threadIdx.x; i < pieces; i += gridDim.x * 256)
    ((ws_sixteen *)to)[i] = ((const ws_sixteen *)of)[i];
}

/* Fills up to four ranges of memory with a byte: address, size and byte of each. */
extern "C" __global__ void __launch_bounds__(256) ws_fill_bytes(const __grid_constant__ ws_given<12> given) {
  ws_wait_for_others();
  const long long first = blockIdx.x * 256 + threadIdx.x, step = gridDim.x * 256;
  for (int n = 0; n < 12; n += 3) {
    char *const to = (char *)given.at[n];
    const long long size = (long long)given.at[n + 1], pieces = (unsigned long long)to % 16 ? 0 : size / 16;
    const int byte = (int)(long long)given.at[n + 2] & 255, word = byte * 0x01010101;
    const ws_sixteen piece = {{word, word, word, word}};
    for (long long i = first; i < pieces; i += step) ((ws_sixteen *)to)[i] = piece;
    for (long long i = 16 * pieces + first; i < size; i += step) to[i] = (char)byte;
  }
}
