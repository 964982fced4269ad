/* GEMM for one element type; gemm.c includes it once per type, and has the contract.

   Register tiling: a tile of up to ROWS x 2 vectors of C stays in registers while k runs.  Cache blocking: k and the rows
   are divided into blocks, so that a block of A and two vectors of B stay in the second-level cache; operands whose strides
   would spread them over few cache sets or many pages are packed first.
   Invariant: a later block of k continues the chains that are in C, so blocking changes no bit. */
#define WIDTH (BYTES / (int)sizeof(REAL))
#ifdef WS_AVX
#include "x86/gemm_vector.h"
#else
#include "arm64/gemm_vector.h"
#endif

/* The operands of one tile.  Strides are in elements; A's k index runs in segments (all of k, or one panel each). */
typedef struct {
  const REAL *a; long a_row, a_k, a_skip;             /* a_skip: elements from the end of one segment to the next */
  long segment;
  const REAL *b; long b_k, b_vector;                  /* b_vector: elements from one vector of a row to the next */
  REAL *c; long c_row, c_vector;
  long k;
  int add;                                            /* does the tile continue the sums in C? */
  MASK valid;                                         /* columns of the last vector */
  fetcher fetcher; long share;                        /* cache lines to prefetch after each segment */
} NAME(tile);

/* `rows`, `vectors` and `masked` are constants wherever this is inlined. */
INLINE void NAME(run_tile)(NAME(tile) *t, const int rows, const int vectors, const int masked) {
  V sum[ROWS][2];
  const MASK valid = t->valid;
  const long a_row = t->a_row, a_k = t->a_k, b_k = t->b_k;
  const long b_vector = WIDTH < PANEL ? WIDTH : t->b_vector, c_vector = WIDTH < PANEL ? WIDTH : t->c_vector;
  const REAL *a[ROWS / 3], *b = t->b;                 /* one base per 3 rows: addressing adds 0, 1 or 2 strides */
#pragma GCC unroll 4
  for (int i = 0; i < ROWS / 3; i++) a[i] = t->a + 3 * i * a_row;
#pragma GCC unroll 12
  for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
    for (int v = 0; v < vectors; v++)
      sum[i][v] = t->add ? NAME(load)(t->c + i * t->c_row + v * c_vector, valid, masked && v == vectors - 1) : (V){0};
  for (long left = t->k; left > 0;) {
    long run = left < t->segment ? left : t->segment;
    left -= run;
    do {
      V y[2];
#pragma GCC unroll 2
      for (int v = 0; v < vectors; v++) y[v] = NAME(load)(b + v * b_vector, valid, masked && v == vectors - 1);
#pragma GCC unroll 12
      for (int i = 0; i < rows; i++) NAME(multiply)(sum[i], a[i / 3] + i % 3 * a_row, y, vectors);
#pragma GCC unroll 4
      for (int i = 0; i < ROWS / 3; i++) a[i] += a_k;
      b += b_k;
    } while (--run);
#pragma GCC unroll 4
    for (int i = 0; i < ROWS / 3; i++) a[i] += t->a_skip;
    if (t->share) fetch(&t->fetcher, t->share);
  }
#pragma GCC unroll 12
  for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
    for (int v = 0; v < vectors; v++)
      NAME(store)(t->c + i * t->c_row + v * c_vector, sum[i][v], valid, masked && v == vectors - 1);
}

typedef void NAME(kernel)(NAME(tile) *);
#define KERNEL(rows, vectors, masked) \
  static __attribute__((noinline)) void NAME(tile_##rows##_##vectors##_##masked)(NAME(tile) *t) { \
    NAME(run_tile)(t, rows, vectors, masked); \
  }
#define ENTRY(rows, vectors, masked) NAME(tile_##rows##_##vectors##_##masked),
/* Table of kernels, [vectors - 1][masked][rows].  With AVX-512 every kernel is masked. */
#if ALWAYS_MASKED
EACH_ROWS(KERNEL, 1, 1) EACH_ROWS(KERNEL, 2, 1)
#define KERNELS(vectors) {{0}, {0, EACH_ROWS(ENTRY, vectors, 1)}}
#else
EACH_ROWS(KERNEL, 1, 0) EACH_ROWS(KERNEL, 1, 1) EACH_ROWS(KERNEL, 2, 0) EACH_ROWS(KERNEL, 2, 1)
#define KERNELS(vectors) {{0, EACH_ROWS(ENTRY, vectors, 0)}, {0, EACH_ROWS(ENTRY, vectors, 1)}}
#endif
static NAME(kernel) *const NAME(kernels)[2][2][ROWS + 1] = {KERNELS(1), KERNELS(2)};
#undef KERNELS
#undef KERNEL
#undef ENTRY

/* Pack a strip of a row-major B that many tiles read: in place, its rows map to few sets of the cache. */
INLINE void NAME(pack_as)(REAL *to, const NAME(tile) *t, const int vectors, const int masked) {
  const REAL *from = t->b;
  for (long i = 0; i < t->k; i++, to += 2 * WIDTH, from += t->b_k) {
    *(V *)to = NAME(load)(from, t->valid, masked && vectors == 1);
    if (vectors == 2) *(V *)(to + WIDTH) = NAME(load)(from + WIDTH, t->valid, masked);
  }
}

static void NAME(pack_b)(REAL *to, NAME(tile) *t, int vectors, int masked) {
  if (vectors == 2 && !masked) NAME(pack_as)(to, t, 2, 0);
  else if (vectors == 2) NAME(pack_as)(to, t, 2, 1);
  else NAME(pack_as)(to, t, 1, 1);
  t->b = to, t->b_k = 2 * WIDTH;
}

/* Pack rows of a transposed A to [k][PACKED]: without packing, each k is in another cache line and page. */
INLINE void NAME(pack_rows)(REAL *to, const REAL *from, long a_k, long k, long rows) {
  const long whole = (rows - 1) / WIDTH * WIDTH;
  const MASK last = NAME(first)(rows - whole);
  for (long i = 0; i < k; i++, to += PACKED, from += a_k) {
    for (long l = 0; l < whole; l += WIDTH) *(V *)(to + l) = *(const LOOSE *)(from + l);
    *(V *)(to + whole) = NAME(load)(from + whole, last, 1);
  }
}

/* Pack a block of A for all strips: as one piece, so that its cache lines are read once, or tile by tile. */
static void NAME(pack_a)(REAL *to, const ws_gemm *g, long k0, long k, long tile0, long tile1, long tiles) {
  const REAL *from = (const REAL *)g->a + k0 / A_PANEL * g->a_kp;
  const long tiles_in_piece = PACKS_BLOCKS ? tile1 - tile0 : 1;
  for (long i = tile0; i < tile1; i += tiles_in_piece, to += PACKED * K_BLOCK) {
    const long row = tile_start(i, tiles, g->m), rows = tile_start(i + tiles_in_piece, tiles, g->m) - row;
    NAME(pack_rows)(to, from + row, g->a_k, k, rows);
  }
}

/* Offset of a tile in the packed block. */
static long NAME(packed_at)(const ws_gemm *g, long tile0, long tile, long tiles) {
  if (!PACKS_BLOCKS) return (tile - tile0) * PACKED * K_BLOCK;
  return tile_start(tile, tiles, g->m) - tile_start(tile0, tiles, g->m);
}

static int NAME(packs_a)(const ws_gemm *g) {
  const long stride = g->a_k * (long)sizeof(REAL);
  return g->a_m == 1 && g->a_kp == A_PANEL * g->a_k && g->n > PACK_A_STRIPS * 2 * WIDTH && g->k >= PACK_A_K &&
         stride >= PACK_A_STRIDE && stride % PACK_A_STEP == 0;
}

/* If the rows of a row-major A share a set of L1, tiles have only as many rows as fit: 86 -> 115 GFLOP/s with 12
   against 6. */
static long NAME(tile_rows)(const ws_gemm *g) {
  const int shared = g->a_k == 1 && g->a_m * (long)sizeof(REAL) % L1_WAY == 0;
  return shared && (int)ROWS > (int)L1_ROWS ? (int)L1_ROWS : (int)ROWS;
}

/* All row tiles of one block of A times `columns` (at most two vectors) of B. */
static void NAME(strip)(const ws_gemm *g, NAME(tile) *t, const REAL *packed_a, long column, long columns, long k0,
                        long tile0, long tile1, long tiles) {
  _Alignas(64) REAL packed[K_BLOCK * 2 * WIDTH];
  const long within = column % PANEL, panel = column / PANEL;
  const REAL *b = (const REAL *)g->b + panel * g->b_p + within + k0 * g->b_k;
  REAL *c = (REAL *)g->c + panel * g->c_p + within;
  const REAL *a = (const REAL *)g->a + k0 / A_PANEL * g->a_kp;
  const int vectors = columns > WIDTH ? 2 : 1, masked = ALWAYS_MASKED || columns % WIDTH != 0;
  NAME(kernel) *const *kernels = NAME(kernels)[vectors - 1][masked];
  t->valid = NAME(first)(columns - (vectors - 1) * WIDTH);
  t->b = b, t->b_k = g->b_k, t->b_vector = g->b_p;
  if (PACKS_B && g->b_k > PACK_B_STRIDE && tile1 - tile0 >= PACK_B_TILES) NAME(pack_b)(packed, t, vectors, masked);
  for (long i = tile0; i < tile1; i++) {
    long row = tile_start(i, tiles, g->m), rows = tile_start(i + 1, tiles, g->m) - row;
    if (packed_a) t->a = packed_a + NAME(packed_at)(g, tile0, i, tiles);
    else t->a = a + row * g->a_m;
    t->c = c + row * g->c_m;
    kernels[rows](t);
  }
}

static void NAME(clear)(const ws_gemm *g) {
  for (long j = 0; j < g->n; j += PANEL)
    for (long i = 0; i < g->m; i++)
      for (long l = 0; l < PANEL && j + l < g->n; l++) ((REAL *)g->c)[j / PANEL * g->c_p + i * g->c_m + l] = 0;
}

/* Prefetches are spread evenly over the segments of all tiles, so that no tile waits for them. */
static void NAME(deal_out)(const ws_gemm *g, NAME(tile) *t, long segments) {
  const long all = segments * ((g->n + 2 * WIDTH - 1) / (2 * WIDTH));
  t->fetcher = (fetcher){.next = g->ahead, .left = g->aheads};
  t->share = (lines_ahead(g) + all - 1) / all;
}

void NAME(ws_gemm)(const ws_gemm *g) {
  if (g->k <= 0) {
    if (!g->add) NAME(clear)(g);
    return;
  }
  const long rows = NAME(tile_rows)(g), tiles = (g->m + rows - 1) / rows, k_block = block_length(g->k);
  const int whole = g->a_kp == A_PANEL * g->a_k, pack = NAME(packs_a)(g);
  _Alignas(64) REAL packed[pack ? PACKED_PIECES * PACKED * K_BLOCK : 1];
  NAME(tile) t = {.a_row = g->a_m, .a_k = g->a_k, .c_row = g->c_m, .c_vector = g->c_p};
  if (pack) t.a_k = PACKED;
  const long segment = !whole ? A_PANEL : g->aheads ? AHEAD_STEP : k_block;
  if (g->aheads) NAME(deal_out)(g, &t, tiles * ((g->k + segment - 1) / segment));
  for (long k0 = 0; k0 < g->k; k0 += k_block) {
    t.k = g->k - k0 < k_block ? g->k - k0 : k_block;
    t.segment = segment;
    t.a_skip = whole ? 0 : g->a_kp - A_PANEL * g->a_k;
    t.add = k0 > 0 || g->add;
    for (long tile0 = 0; tile0 < tiles; tile0 += TILES_IN_BLOCK) {
      long tile1 = tiles - tile0 < TILES_IN_BLOCK ? tiles : tile0 + TILES_IN_BLOCK;
      if (pack) NAME(pack_a)(packed, g, k0, t.k, tile0, tile1, tiles);
      for (long j = 0; j < g->n; j += 2 * WIDTH) {
        long columns = g->n - j < 2 * WIDTH ? g->n - j : 2 * WIDTH;
        NAME(strip)(g, &t, pack ? packed : NULL, j, columns, k0, tile0, tile1, tiles);
      }
    }
  }
}
#undef V
#undef LOOSE
#undef MASK
#undef WIDTH
