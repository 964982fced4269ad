/* Direct convolutions of few channels: forward and input gradient (ws_convolve), weight gradient (ws_gradient), and
   weight gradient through a max-pool (ws_pooled_gradient).  A block keeps the input pixels of its windows and the
   weights of some outputs in shared memory.  Order of the sums (bits): channel by channel, tap by tap; it depends on
   the window alone. */

/* COUNT adjacent elements, by the widest loads that divide them. */
template <class T, int COUNT> WS_INLINE void ws_near(T *to, const T *from) {
  constexpr int BYTES = COUNT * sizeof(T);
  constexpr int EACH = (BYTES % 16 == 0 ? 16 : BYTES % 8 == 0 ? 8 : (int)sizeof(T)) / sizeof(T);
  struct alignas(EACH * sizeof(T)) Piece {
    T x[EACH];
  };
#pragma unroll
  for (int i = 0; i < COUNT / EACH; i++) {
    const Piece piece = ws_begin(reinterpret_cast<const Piece *>(from), EACH * sizeof(T))[i];
#pragma unroll
    for (int l = 0; l < EACH; l++) to[i * EACH + l] = piece.x[l];
  }
}

/* The shape of a convolution: kernel size TALL x WIDE, stride DOWN x ACROSS, dilation FAR x BROAD. */
template <int TALL_, int WIDE_, int DOWN_, int ACROSS_, int FAR_, int BROAD_> struct ws_shape {
  static constexpr int TALL = TALL_, WIDE = WIDE_, DOWN = DOWN_, ACROSS = ACROSS_, FAR = FAR_, BROAD = BROAD_;
  /* Input rows and columns covered by adjacent windows. */
  static __device__ constexpr int rows(int windows) { return (windows - 1) * DOWN + (TALL - 1) * FAR + 1; }
  static __device__ constexpr int columns(int windows) { return (windows - 1) * ACROSS + (WIDE - 1) * BROAD + 1; }
};

/* One block computes a band of BAND rows of ITEMS items.  An item is the register tile of a thread: PT x PW pixels and
   EACH of GROUPS * EACH outputs.  x(row, column, channel) is the band's input, zero outside of the image; w(tap,
   channel, output) a weight; give(row, column, output, sums) is the epilogue of an item.

   Shared memory bandwidth is the bottleneck: the items of a warp have the same outputs, so that all lanes read the same
   weight (a broadcast), and an item's input row is read by vector loads as wide as the distance of items. */
template <class T, class S, int CHANNELS, int PT, int PW, int BAND, int ITEMS, int GROUPS, int EACH, int THREADS, class X,
          class W, class G>
WS_INLINE void ws_convolve(X x, W w, G give) {
  constexpr int STEP = PW * S::ACROSS, PIECE = STEP % 4 == 0 ? 4 : STEP % 2 == 0 ? 2 : 1;
  constexpr int PACK = EACH > 4 ? 8 : EACH > 2 ? 4 : EACH, OWN = GROUPS * PACK; /* outputs, padded for vector loads */
  constexpr int SEEN_ROWS = S::rows(PT), SEEN = (S::columns(PW) + PIECE - 1) / PIECE * PIECE;
  constexpr int HIGH = S::rows(BAND * PT), BROAD = S::columns(ITEMS * PW), TAPS = S::TALL * S::WIDE;
  constexpr int WIDE = ((ITEMS - 1) * STEP + SEEN + PIECE - 1) / PIECE * PIECE; /* row stride */
  constexpr int PLANE = (HIGH * WIDE / PIECE | 1) * PIECE;
  constexpr int PIXELS = BAND * ITEMS, PADDED = (PIXELS + 31) / 32 * 32;
  __shared__ __align__(16) T weights[TAPS * CHANNELS * OWN];
  __shared__ __align__(16) T tile[CHANNELS * PLANE];
  for (int at = threadIdx.x; at < TAPS * CHANNELS * OWN; at += THREADS) {
    const int output = at % PACK;
    weights[at] = output < EACH ? w(at / (OWN * CHANNELS), at / OWN % CHANNELS, at % OWN / PACK * EACH + output) : (T)0;
  }
  for (int at = threadIdx.x; at < HIGH * BROAD * CHANNELS; at += THREADS) {
    const int channel = at % CHANNELS, column = at / CHANNELS % BROAD, row = at / (CHANNELS * BROAD);
    tile[channel * PLANE + row * WIDE + column] = x(row, column, channel);
  }
  __syncthreads();
  for (int item = threadIdx.x; item < PADDED * GROUPS; item += THREADS) {
    const int group = item / PADDED, pixel = item % PADDED, column = pixel % ITEMS, row = pixel / ITEMS;
    if (pixel >= PIXELS) continue;
    T sums[PT * PW][EACH];
#pragma unroll
    for (int p = 0; p < PT * PW; p++)
#pragma unroll
      for (int e = 0; e < EACH; e++) sums[p][e] = 0;
#pragma unroll 1
    for (int channel = 0; channel < CHANNELS; channel++) {
      const T *const from = tile + channel * PLANE + row * (PT * S::DOWN * WIDE) + column * STEP;
      const T *const factors = weights + channel * OWN + group * PACK;
      T seen[SEEN_ROWS][SEEN];
#pragma unroll
      for (int i = 0; i < SEEN_ROWS; i++)
#pragma unroll
        for (int j = 0; j < SEEN; j += PIECE) ws_near<T, PIECE>(seen[i] + j, from + i * WIDE + j);
#pragma unroll
      for (int r = 0; r < S::TALL; r++)
#pragma unroll
        for (int s = 0; s < S::WIDE; s++) {
          T factor[PACK];
          ws_near<T, PACK>(factor, factors + (r * S::WIDE + s) * (CHANNELS * OWN));
#pragma unroll
          for (int p = 0; p < PT * PW; p++)
#pragma unroll
            for (int e = 0; e < EACH; e++)
              sums[p][e] += seen[p / PW * S::DOWN + r * S::FAR][p % PW * S::ACROSS + s * S::BROAD] * factor[e];
        }
    }
    give(row, column, group * EACH, sums);
  }
}

/* Adds the partial sums of blocks, COUNT values each, in a fixed order: the last block of a group to arrive adds its
   group's, then the last group adds all groups'.  Thread t has values t, t + THREADS, ...; returns true in the block
   that has the total. */
template <class T, int COUNT, int THREADS, int GROUP>
WS_INLINE bool ws_join_parts(T *own, T *scratch, int *counters, int part, int parts) {
  constexpr int MINE = (COUNT + THREADS - 1) / THREADS, UNROLLED = MINE > 16 ? 2 : MINE > 4 ? 4 : 8;
  const int groups = (parts + GROUP - 1) / GROUP, group = part / GROUP;
  const int size = group < groups - 1 ? GROUP : parts - group * GROUP;
  T *const sums = scratch + (long long)parts * COUNT;
  auto put = [&](T *to) {
#pragma unroll
    for (int i = 0; i < MINE; i++)
      if (threadIdx.x + i * THREADS < COUNT) to[threadIdx.x + i * THREADS] = own[i];
  };
  auto add = [&](const T *from, int count) { /* the loads of all values of a part are in flight together */
#pragma unroll
    for (int i = 0; i < MINE; i++) own[i] = 0;
#pragma unroll UNROLLED
    for (int p = 0; p < count; p++)
#pragma unroll
      for (int i = 0; i < MINE; i++)
        if (threadIdx.x + i * THREADS < COUNT) own[i] += from[(long long)p * COUNT + threadIdx.x + i * THREADS];
  };
  if (parts == 1) return true;
  put(scratch + (long long)part * COUNT);
  if (!ws_is_last(counters + 1 + group, size)) return false;
  add(scratch + (long long)group * GROUP * COUNT, size);
  put(sums + (long long)group * COUNT);
  if (!ws_is_last(counters, groups)) return false;
  add(sums, groups);
  return true;
}

/* Weight gradient.  An item is the register tile of a thread: CE channels and KE outputs of one tap.  A block has OWN
   of the items of all taps, starting at `begin`, and SPLIT threads share the rows of a band.  Values are in item order.

   add() adds the contributions of bands `first` to `last` - 1: x(band, row, column, channel) is a band's input, g(band,
   row, column, output) its output gradient, both zero outside of an image. */
template <class T, class S, int CHANNELS, int KERNELS, int CE, int KE, int OWN, int SPLIT, int BAND, int COLUMNS, int THREADS>
struct ws_gradient {
  static constexpr int BROAD = S::columns(COLUMNS), HIGH = S::rows(BAND), ACROSS = KERNELS / KE, DEEP = CHANNELS / CE;
  static constexpr int ITEMS = S::TALL * S::WIDE * DEEP * ACROSS, COUNT = OWN * CE * KE;
  static constexpr int MINE = (COUNT + THREADS - 1) / THREADS;
  static constexpr int SEEN = HIGH * BROAD * CHANNELS, GIVEN = BAND * COLUMNS * KERNELS;
  static constexpr int FRAME = (SEEN + 3) / 4 * 4, LEFT = SPLIT * COUNT, MEMORY = FRAME + GIVEN > LEFT ? FRAME + GIVEN : LEFT;
  T own[MINE];

  template <class X, class G> __device__ __forceinline__ void add(int begin, int first, int last, X x, G g) {
    __shared__ __align__(16) T memory[MEMORY];
    T *const tile = memory, *const given = memory + FRAME;
    const int mine = threadIdx.x % OWN, split = threadIdx.x / OWN, item = begin + mine;
    const int output = item % ACROSS * KE, channel = item / ACROSS % DEEP * CE, tap = item / (ACROSS * DEEP);
    const int place = (tap / S::WIDE * S::FAR * BROAD + tap % S::WIDE * S::BROAD) * CHANNELS + channel;
    T sums[CE][KE];
#pragma unroll
    for (int c = 0; c < CE; c++)
#pragma unroll
      for (int k = 0; k < KE; k++) sums[c][k] = 0;
    for (int band = first; band < last; band++) {
      __syncthreads();
      for (int at = threadIdx.x; at < SEEN; at += THREADS)
        tile[at] = x(band, at / (CHANNELS * BROAD), at / CHANNELS % BROAD, at % CHANNELS);
      for (int at = threadIdx.x; at < GIVEN; at += THREADS)
        given[at] = g(band, at / (KERNELS * COLUMNS), at / KERNELS % COLUMNS, at % KERNELS);
      __syncthreads();
      if (split >= SPLIT || item >= ITEMS) continue;
      for (int row = split; row < BAND; row += SPLIT) {
        const T *const from = tile + row * (S::DOWN * BROAD * CHANNELS) + place;
        const T *const to = given + row * (COLUMNS * KERNELS) + output;
#pragma unroll 4
        for (int column = 0; column < COLUMNS; column++) {
          T seen[CE], gradient[KE];
          ws_near<T, CE>(seen, from + column * (S::ACROSS * CHANNELS));
          ws_near<T, KE>(gradient, to + column * KERNELS);
#pragma unroll
          for (int c = 0; c < CE; c++)
#pragma unroll
            for (int k = 0; k < KE; k++) sums[c][k] += seen[c] * gradient[k];
        }
      }
    }
    __syncthreads();
    if (split < SPLIT) {
#pragma unroll
      for (int c = 0; c < CE; c++)
#pragma unroll
        for (int k = 0; k < KE; k++) memory[split * COUNT + (mine * CE + c) * KE + k] = sums[c][k];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < MINE; i++) {
      const int at = threadIdx.x + i * THREADS;
      own[i] = 0;
      if (at >= COUNT) continue;
#pragma unroll
      for (int s = 0; s < SPLIT; s++) own[i] += memory[s * COUNT + at];
    }
  }

  /* give(output, row, column, channel, sum) stores each of this thread's values. */
  template <class G> __device__ __forceinline__ void finish(int begin, G give) {
#pragma unroll
    for (int i = 0; i < MINE; i++) {
      const int at = threadIdx.x + i * THREADS, item = begin + at / (CE * KE);
      if (at >= COUNT || item >= ITEMS) continue;
      const int tap = item / (ACROSS * DEEP);
      give(item % ACROSS * KE + at % KE, tap / S::WIDE, tap % S::WIDE, item / ACROSS % DEEP * CE + at / KE % CE, own[i]);
    }
  }
};

/* Weight gradient through a max-pool of PT x PW, over images `first` to `last` - 1: only the maxima have a gradient.
   won(image, row, column, output) returns a gradient and the position of the maximum in its window; x(image, row,
   column, channel) is the input; give(number, sum) stores an element of [outputs][tall][wide][channels], of which a
   block has OWN, starting at `begin`; SPLIT threads share the pixels of one weight. */
template <class T> struct ws_won {
  T gradient;
  int place;
};
template <class T, class S, int CHANNELS, int KERNELS, int ROWS, int COLUMNS, int PT, int PW, int OWN, int SPLIT, int THREADS,
          class X, class P, class G>
WS_INLINE void ws_pooled_gradient(int begin, int first, int last, X x, P won, G give) {
  constexpr int HIGH = S::rows(ROWS * PT), BROAD = S::columns(COLUMNS * PW);
  constexpr int WIDE = BROAD | 1, PLANE = HIGH * WIDE | 1; /* odd strides avoid bank conflicts */
  constexpr int COUNT = KERNELS * S::TALL * S::WIDE * CHANNELS, LANES = THREADS / SPLIT;
  constexpr int MINE = (OWN + LANES - 1) / LANES, PIXELS = ROWS * COLUMNS, PARTS = SPLIT > 1 ? SPLIT * OWN : 1;
  __shared__ T tile[CHANNELS * PLANE], parts[PARTS];
  __shared__ __align__(16) ws_won<T> winners[KERNELS * PIXELS];
  const int lane = threadIdx.x % LANES, split = threadIdx.x / LANES;
  T own[MINE];
#pragma unroll
  for (int i = 0; i < MINE; i++) own[i] = 0;
  for (int image = first; image < last; image++) {
    __syncthreads();
    for (int at = threadIdx.x; at < HIGH * BROAD * CHANNELS; at += THREADS) {
      const int channel = at % CHANNELS, column = at / CHANNELS % BROAD, row = at / (CHANNELS * BROAD);
      tile[channel * PLANE + row * WIDE + column] = x(image, row, column, channel);
    }
    for (int at = threadIdx.x; at < KERNELS * PIXELS; at += THREADS) {
      const int output = at % KERNELS, column = at / KERNELS % COLUMNS, row = at / (KERNELS * COLUMNS);
      const ws_won<T> winner = won(image, row, column, output);
      const int y = row * PT + winner.place / PW, x = column * PW + winner.place % PW;
      winners[output * PIXELS + row * COLUMNS + column] = {winner.gradient, y * WIDE + x};
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < MINE; i++) {
      const int at = lane + i * LANES, number = begin + at, channel = number % CHANNELS, tap = number / CHANNELS;
      const int column = tap % S::WIDE, row = tap / S::WIDE % S::TALL, output = tap / (S::WIDE * S::TALL);
      if (at >= OWN || number >= COUNT) continue;
      const T *const from = tile + channel * PLANE + row * WIDE + column;
      const ws_won<T> *const of = winners + output * PIXELS;
#pragma unroll 8
      for (int p = split; p < PIXELS; p += SPLIT) own[i] += of[p].gradient * from[of[p].place];
    }
  }
  if (SPLIT > 1) {
    if (lane < OWN) parts[split * OWN + lane] = own[0];
    __syncthreads();
    if (split == 0 && lane < OWN) {
#pragma unroll
      for (int s = 1; s < SPLIT; s++) own[0] += parts[s * OWN + lane];
    }
  }
#pragma unroll
  for (int i = 0; i < MINE; i++) {
    const int at = lane + i * LANES;
    if (split == 0 && at < OWN && begin + at < COUNT) give(begin + at, own[i]);
  }
}
