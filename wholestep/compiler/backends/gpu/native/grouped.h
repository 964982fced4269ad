/* Grouped convolutions, depthwise ones above all: forward and input gradient (ws_strip), weight gradient
   (ws_group_gradient).  Images are channels-last; a lane is the channels that a thread computes: E adjacent groups, of
   each CI input and KO output channels.  A strip is COUNT adjacent pixels of a row: a thread keeps their sums in
   registers and loads every input pixel of a row once for all of them.  Rows that windows share are read again through
   the L1 cache, by threads of the same block.  Order of the sums (bits): row by row of the window, blocks of CI channels
   within, chunks of TAPS columns within; it depends neither on strips nor on blocks of threads. */

/* Element types: in memory, and of the sums; `at` widens element l of some words, `of` a single element. */
struct ws_in_f32 {
  typedef float stored, wide;
  static WS_PART float at(const ws_word *x, int l) { return __uint_as_float(x[l]); }
  static WS_PART float of(float x) { return x; }
};
struct ws_in_f64 {
  typedef double stored, wide;
  static WS_PART double at(const ws_word *x, int l) {
    return __longlong_as_double((long long)((ws_long_word)x[2 * l + 1] << 32 | x[2 * l]));
  }
  static WS_PART double of(double x) { return x; }
};
struct ws_in_bf16 {
  typedef ws_half stored;
  typedef float wide;
  static WS_PART float at(const ws_word *x, int l) {
    return __uint_as_float(l % 2 ? x[l / 2] & 0xffff0000u : x[l / 2] << 16);
  }
  static WS_PART float of(ws_half x) { return ws_from_bf16(x); }
};
struct ws_in_f16 {
  typedef ws_half stored;
  typedef float wide;
  static WS_PART float at(const ws_word *x, int l) { return ws_from_f16((ws_half)(x[l / 2] >> l % 2 * 16)); }
  static WS_PART float of(ws_half x) { return ws_from_f16(x); }
};

template <int WORDS> struct alignas(4 * WORDS) ws_words {
  ws_word x[WORDS];
};
/* N elements, widened: read by the widest loads if they are PACKED (adjacent and aligned), otherwise one by one. */
template <class D, bool PACKED, int N>
WS_INLINE void ws_widen(typename D::wide *to, const typename D::stored *from, int step) {
  constexpr int BYTES = N * sizeof(typename D::stored), EACH = BYTES % 16 == 0 ? 16 : BYTES % 8 == 0 ? 8 : BYTES % 4 ? 0 : 4;
  if constexpr (PACKED && EACH > 0) {
    constexpr int COUNT = EACH / sizeof(typename D::stored);
#pragma unroll
    for (int i = 0; i < BYTES / EACH; i++) {
      const ws_words<EACH / 4> piece = ws_begin(reinterpret_cast<const ws_words<EACH / 4> *>(from), EACH)[i];
#pragma unroll
      for (int l = 0; l < COUNT; l++) to[i * COUNT + l] = D::at(piece.x, l);
    }
  } else {
#pragma unroll
    for (int l = 0; l < N; l++) to[l] = D::of(from[l * step]);
  }
}

/* Weights of the lanes of a block in shared memory, [taps][blocks][N / PIECE][lanes][PIECE], without bank conflicts:
   get(lane, tap, block, n) returns one. */
template <class T, int N> struct ws_lane_weights {
  static constexpr int MOST = 16 / sizeof(T), PIECE = N % MOST == 0 ? MOST : N % 2 == 0 ? 2 : 1;
  template <int COUNT, int BLOCKS, int LANES, int THREADS, class G> static WS_PART void stage(T *to, G get) {
    for (int at = threadIdx.x; at < COUNT; at += THREADS) {
      const int lane = at / PIECE % LANES, row = at / (PIECE * LANES);
      to[at] = get(lane, row / (N / PIECE * BLOCKS), row / (N / PIECE) % BLOCKS, row % (N / PIECE) * PIECE + at % PIECE);
    }
    __syncthreads();
  }
  template <int LANES> static WS_PART void read(T *to, const T *from) {
#pragma unroll
    for (int q = 0; q < N / PIECE; q++) ws_near<T, PIECE>(to + q * PIECE, from + q * LANES * PIECE);
  }
};

/* A row of an image of channels-last pixels: distances are in elements. */
template <class D> struct ws_pixels {
  const typename D::stored *at; /* row 0, column 0, the lane's first channel */
  int rows, columns, down, across, channel;
};

/* Sums of a strip.  Forward, output pixel p of the strip reads input column p * ACROSS + k * BROAD from its first one;
   the ADJOINT reads the output gradient q for which q * ACROSS + k * BROAD - LEFT is p.  Both follow from constants, so
   that the sums stay in registers; an adjoint whose strip is not a multiple of the stride has one pixel (FREE). */
template <class D, class S, bool ADJOINT, bool PACKED, int COUNT, int E, int CI, int KO, int BLOCKS, int LANES, int TAPS, int LEFT>
struct ws_strip {
  typedef typename D::wide T;
  static constexpr int N = E * CI * KO, OUT = E * KO, IN = E * CI;
  static constexpr bool FREE = ADJOINT && COUNT % S::ACROSS != 0;
  typedef ws_lane_weights<T, N> W;
  static constexpr int TAP = BLOCKS * N * LANES; /* weights of one tap */
  T sums[COUNT][OUT];

  static WS_PART void multiply(T *to, const T *x, const T *w) {
#pragma unroll
    for (int e = 0; e < E; e++)
#pragma unroll
      for (int o = 0; o < KO; o++)
#pragma unroll
        for (int i = 0; i < CI; i++) to[e * KO + o] += x[e * CI + i] * w[(e * KO + o) * CI + i];
  }
  static constexpr WS_PART int below(int x, int y) { return x >= 0 ? x / y : -((y - 1 - x) / y); }
  /* The taps from K0 on of one row: `line` begins at the row's first column. */
  template <int K0> WS_PART void chunk(const typename D::stored *line, int first, const ws_pixels<D> &image, const T *weights) {
    constexpr int K1 = K0 + TAPS < S::WIDE ? K0 + TAPS : S::WIDE;
    constexpr int FROM = ADJOINT ? below(LEFT - (K1 - 1) * S::BROAD, S::ACROSS) : K0 * S::BROAD;
    constexpr int TO = ADJOINT ? below(COUNT - 1 + LEFT - K0 * S::BROAD, S::ACROSS) : (COUNT - 1) * S::ACROSS + (K1 - 1) * S::BROAD;
    T w[K1 - K0][N];
#pragma unroll
    for (int k = K0; k < K1; k++) W::template read<LANES>(w[k - K0], weights + k * TAP);
#pragma unroll
    for (int j = FROM; j <= TO; j++) {
      T x[IN];
      const int column = first + j;
      if (column >= 0 && column < image.columns) {
        ws_widen<D, PACKED, IN>(x, line + column * image.across, image.channel);
      } else {
#pragma unroll
        for (int i = 0; i < IN; i++) x[i] = 0;
      }
#pragma unroll
      for (int k = K0; k < K1; k++) {
        const int far = ADJOINT ? j * S::ACROSS + k * S::BROAD - LEFT : j - k * S::BROAD;
        const int p = ADJOINT ? far : far / S::ACROSS;
        if (far >= 0 && p < COUNT && (ADJOINT || far % S::ACROSS == 0)) multiply(sums[p], x, w[k - K0]);
      }
    }
    if constexpr (K1 < S::WIDE) chunk<K1>(line, first, image, weights);
  }
  /* One pixel, whose taps depend on its place. */
  WS_PART void pixel(const typename D::stored *line, int column, const ws_pixels<D> &image, const T *weights) {
#pragma unroll 1
    for (int k = 0; k < S::WIDE; k++) {
      const int far = column + LEFT - k * S::BROAD;
      if (far < 0 || far % S::ACROSS || far / S::ACROSS >= image.columns) continue;
      T x[IN], w[N];
      ws_widen<D, PACKED, IN>(x, line + far / S::ACROSS * image.across, image.channel);
      W::template read<LANES>(w, weights + k * TAP);
      multiply(sums[0], x, w);
    }
  }
  /* The strip of a row that begins at a column; `weights` are the lane's weights, `top` is the padding above. */
  WS_PART void add(const ws_pixels<D> &image, int row, int column, int top, const T *weights) {
#pragma unroll
    for (int p = 0; p < COUNT; p++)
#pragma unroll
      for (int o = 0; o < OUT; o++) sums[p][o] = 0;
#pragma unroll 1
    for (int r = 0; r < S::TALL; r++) {
      const int far = ADJOINT ? row + top - r * S::FAR : row * S::DOWN + r * S::FAR - top;
      const int y = ADJOINT ? far / S::DOWN : far;
      if (far < 0 || y >= image.rows || (ADJOINT && far % S::DOWN)) continue;
#pragma unroll 1
      for (int b = 0; b < BLOCKS; b++) {
        const typename D::stored *const line = image.at + y * image.down + b * (CI * image.channel);
        const T *const own = weights + r * (S::WIDE * TAP) + b * (N * LANES);
        if constexpr (FREE)
          pixel(line, column, image, own);
        else
          chunk<0>(line, ADJOINT ? column / S::ACROSS : column * S::ACROSS - LEFT, image, own);
      }
    }
  }
};

/* Weight gradient.  A thread has one lane, one row of the window, TAPS columns of it, and each SPLIT-th strip of the
   block's rows; a block has LANES lanes and PAIRS of (row, chunk of columns).  Values are in the order
   [pair][tap][n][lane]; thread t has values t, t + THREADS, ... of their sum. */
template <class D, class S, bool PACKED_X, bool PACKED_G, int COUNT, int E, int CI, int KO, int LANES, int PAIRS, int SPLIT,
          int TAPS, int THREADS>
struct ws_group_gradient {
  typedef typename D::wide T;
  static constexpr int N = E * CI * KO, CHUNKS = (S::WIDE + TAPS - 1) / TAPS, VALUES = PAIRS * TAPS * N * LANES;
  static constexpr int MINE = (VALUES + THREADS - 1) / THREADS;
  T own[MINE];

  WS_PART void strip(T (&sums)[TAPS][N], const ws_pixels<D> &x, int y, int from, const ws_pixels<D> &g, int row, int column) {
    T given[COUNT][E * KO];
#pragma unroll
    for (int p = 0; p < COUNT; p++) {
      if (column + p < g.columns) {
        ws_widen<D, PACKED_G, E * KO>(given[p], g.at + row * g.down + (column + p) * g.across, g.channel);
      } else {
#pragma unroll
        for (int o = 0; o < E * KO; o++) given[p][o] = 0;
      }
    }
    const typename D::stored *const line = x.at + y * x.down;
#pragma unroll
    for (int j = 0; j <= (COUNT - 1) * S::ACROSS + (TAPS - 1) * S::BROAD; j++) {
      T seen[E * CI];
      if (from + j >= 0 && from + j < x.columns) {
        ws_widen<D, PACKED_X, E * CI>(seen, line + (from + j) * x.across, x.channel);
      } else {
#pragma unroll
        for (int i = 0; i < E * CI; i++) seen[i] = 0;
      }
#pragma unroll
      for (int k = 0; k < TAPS; k++) {
        const int far = j - k * S::BROAD, p = far / S::ACROSS;
        if (far < 0 || far % S::ACROSS || p >= COUNT) continue;
#pragma unroll
        for (int e = 0; e < E; e++)
#pragma unroll
          for (int o = 0; o < KO; o++)
#pragma unroll
            for (int i = 0; i < CI; i++) sums[k][(e * KO + o) * CI + i] += seen[e * CI + i] * given[p][e * KO + o];
      }
    }
  }

  /* Adds rows `first` to `last` - 1 of the batch, of ROWS per image, in STRIPS each: x(image) and g(image) are the lane's
     pixels of an image. */
  template <int ROWS, int STRIPS, class X, class G>
  WS_PART void add(bool works, int pair, int first, int last, int top, int left, X x, G g) {
    __shared__ __align__(16) T memory[SPLIT * VALUES];
    const int lane = threadIdx.x % LANES, mine = threadIdx.x / LANES % PAIRS, split = threadIdx.x / (LANES * PAIRS);
    const int r = pair / CHUNKS, k0 = pair % CHUNKS * TAPS;
    T sums[TAPS][N];
#pragma unroll
    for (int k = 0; k < TAPS; k++)
#pragma unroll
      for (int n = 0; n < N; n++) sums[k][n] = 0;
    const int items = works ? (last - first) * STRIPS : 0;
#pragma unroll 1
    for (int item = split; item < items; item += SPLIT) {
      const int line = first + item / STRIPS, row = line % ROWS, column = item % STRIPS * COUNT;
      const int y = row * S::DOWN + r * S::FAR - top;
      const ws_pixels<D> seen = x(line / ROWS);
      if (y < 0 || y >= seen.rows) continue;
      strip(sums, seen, y, column * S::ACROSS + k0 * S::BROAD - left, g(line / ROWS), row, column);
    }
    if (split < SPLIT) {
#pragma unroll
      for (int k = 0; k < TAPS; k++)
#pragma unroll
        for (int n = 0; n < N; n++) memory[split * VALUES + ((mine * TAPS + k) * N + n) * LANES + lane] = sums[k][n];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < MINE; i++) {
      const int at = threadIdx.x + i * THREADS;
      own[i] = 0;
      if (at >= VALUES) continue;
#pragma unroll 8
      for (int s = 0; s < SPLIT; s++) own[i] += memory[s * VALUES + at];
    }
  }

  /* give(lane, pair, tap, n, sum) stores each of this thread's values. */
  template <class G> WS_PART void finish(G give) {
#pragma unroll
    for (int i = 0; i < MINE; i++) {
      const int at = threadIdx.x + i * THREADS;
      if (at < VALUES) give(at % LANES, at / (LANES * N * TAPS), at / (LANES * N) % TAPS, at / LANES % N, own[i]);
    }
  }
};
