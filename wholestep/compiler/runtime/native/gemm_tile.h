/* The AVX2 kernel for one element type; gemm.c includes it once for each.  Inline assembly ties each accumulator to one
   register: given plain expressions, gcc 12 copies and spills them (11-14 % of a GPT step). */
typedef REAL NAME(vec) __attribute__((vector_size(32)));
typedef REAL NAME(loose) __attribute__((vector_size(32), aligned(sizeof(REAL)), may_alias));
typedef BITS NAME(mask) __attribute__((vector_size(32)));
#define V NAME(vec)
#define LOOSE NAME(loose)
#define MASK NAME(mask)

/* A tile's operands.  Steps are in elements; A's k index runs in segments (whole, or panels of 16). */
typedef struct {
  const REAL *a; long a_row, a_k, a_skip;             /* a_skip: from the end of one segment to the next */
  long segment;
  const REAL *b; long b_k;
  REAL *c; long c_row;
  long k;
  int add;                                            /* continue the sums in C */
  MASK valid;                                         /* columns of the last vector */
} NAME(tile);

INLINE void NAME(fma)(V *sum, V x, V y) { __asm__("vfmadd231" SUFFIX " %2,%1,%0" : "+x"(*sum) : "x"(x), "x"(y)); }
INLINE V NAME(broadcast)(const REAL *p) { V v; __asm__(BROADCAST " %1,%0" : "=x"(v) : "m"(*p)); return v; }
INLINE V NAME(load)(const REAL *p, MASK valid, const int masked) {
  if (!masked) return *(const LOOSE *)p;
  V v;
  __asm__("vmaskmov" SUFFIX " %1,%2,%0" : "=x"(v) : "m"(*(const LOOSE *)p), "x"(valid));
  return v;
}
INLINE void NAME(store)(REAL *p, V v, MASK valid, const int masked) {
  if (!masked) *(LOOSE *)p = v;
  else __asm__ volatile("vmaskmov" SUFFIX " %2,%1,%0" : "+m"(*(LOOSE *)p) : "x"(valid), "x"(v));
}

/* `rows`, `vectors` and `masked` are constants wherever this is inlined. */
INLINE void NAME(run_tile)(const NAME(tile) *t, const int rows, const int vectors, const int masked) {
  V sum[ROWS][2];
  const MASK valid = t->valid;
  const long a_row = t->a_row, a_k = t->a_k, b_k = t->b_k;
  const REAL *a = t->a, *a3 = a + 3 * a_row, *b = t->b;
#pragma GCC unroll 6
  for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
    for (int v = 0; v < vectors; v++)
      sum[i][v] = t->add ? NAME(load)(t->c + i * t->c_row + v * WIDTH, valid, masked && v == vectors - 1) : (V){0};
  for (long left = t->k; left > 0; a += t->a_skip, a3 += t->a_skip) {
    long run = left < t->segment ? left : t->segment;
    left -= run;
    do {
      V y[2];
#pragma GCC unroll 2
      for (int v = 0; v < vectors; v++) y[v] = NAME(load)(b + v * WIDTH, valid, masked && v == vectors - 1);
#pragma GCC unroll 6
      for (int i = 0; i < rows; i++) {
        V x = NAME(broadcast)(i < 3 ? a + i * a_row : a3 + (i - 3) * a_row);
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++) NAME(fma)(&sum[i][v], x, y[v]);
      }
      a += a_k, a3 += a_k, b += b_k;
    } while (--run);
  }
#pragma GCC unroll 6
  for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
    for (int v = 0; v < vectors; v++)
      NAME(store)(t->c + i * t->c_row + v * WIDTH, sum[i][v], valid, masked && v == vectors - 1);
}

typedef void NAME(kernel)(const NAME(tile) *);
#define KERNEL(rows, vectors, masked) \
  static __attribute__((noinline)) void NAME(tile_##rows##_##vectors##_##masked)(const NAME(tile) *t) { \
    NAME(run_tile)(t, rows, vectors, masked); \
  }
#define KERNELS(vectors, masked) \
  KERNEL(1, vectors, masked) KERNEL(2, vectors, masked) KERNEL(3, vectors, masked) \
  KERNEL(4, vectors, masked) KERNEL(5, vectors, masked) KERNEL(6, vectors, masked)
#define ROW(vectors, masked) \
  {0, NAME(tile_1_##vectors##_##masked), NAME(tile_2_##vectors##_##masked), NAME(tile_3_##vectors##_##masked), \
   NAME(tile_4_##vectors##_##masked), NAME(tile_5_##vectors##_##masked), NAME(tile_6_##vectors##_##masked)}
KERNELS(1, 0) KERNELS(1, 1) KERNELS(2, 0) KERNELS(2, 1)
/* [vectors - 1][masked][rows] */
static NAME(kernel) *const NAME(kernels)[2][2][ROWS + 1] = {{ROW(1, 0), ROW(1, 1)}, {ROW(2, 0), ROW(2, 1)}};
#undef KERNEL
#undef KERNELS
#undef ROW

static MASK NAME(first)(long columns) {
  MASK mask;
  for (int l = 0; l < WIDTH; l++) mask[l] = l < columns ? -1 : 0;
  return mask;
}

/* A row-major B would put its rows in few sets of the cache: copy the strip that many tiles read. */
INLINE void
NAME(pack_as)(REAL *to, const REAL *from, long b_k, long k, MASK valid, const int vectors, const int masked) {
  for (long i = 0; i < k; i++, to += 2 * WIDTH, from += b_k) {
    *(V *)to = NAME(load)(from, valid, masked && vectors == 1);
    if (vectors == 2) *(V *)(to + WIDTH) = NAME(load)(from + WIDTH, valid, masked);
  }
}

static void NAME(pack_b)(REAL *to, const REAL *from, long b_k, long k, MASK valid, int vectors, int masked) {
  if (vectors == 2 && !masked) NAME(pack_as)(to, from, b_k, k, valid, 2, 0);
  else if (vectors == 2) NAME(pack_as)(to, from, b_k, k, valid, 2, 1);
  else NAME(pack_as)(to, from, b_k, k, valid, 1, 1);
}

/* A tile of a transposed A lies in as many cache lines and pages as it has k: copy it to [k][rows], for all strips. */
INLINE void NAME(copy_tile)(REAL *to, const REAL *from, long a_k, long k, const long rows) {
  for (long i = 0; i < k; i++, to += rows, from += a_k) __builtin_memcpy(to, from, sizeof(REAL) * (size_t)rows);
}

static void NAME(pack_a)(REAL *to, const ws_gemm *g, long k0, long k, long tile0, long tile1, long tiles) {
  for (long i = tile0; i < tile1; i++) {
    const long row = tile_start(i, tiles, g->m), rows = tile_start(i + 1, tiles, g->m) - row;
    const REAL *from = (const REAL *)g->a + k0 / PANEL * g->a_kp + row;
    if (rows == 6) NAME(copy_tile)(to, from, g->a_k, k, 6);
    else if (rows == 5) NAME(copy_tile)(to, from, g->a_k, k, 5);
    else NAME(copy_tile)(to, from, g->a_k, k, rows);
    to += ROWS * K_BLOCK;
  }
}

/* All row tiles of one block of A against `columns` (at most two vectors) of B. */
static void NAME(strip)(const ws_gemm *g, NAME(tile) *t, const REAL *packed_a, long column, long columns, long k0,
                        long tile0, long tile1, long tiles) {
  _Alignas(64) REAL packed[K_BLOCK * 2 * WIDTH];
  const long within = column % PANEL, panel = column / PANEL;
  const REAL *b = (const REAL *)g->b + panel * g->b_p + within + k0 * g->b_k;
  REAL *c = (REAL *)g->c + panel * g->c_p + within;
  const REAL *a = (const REAL *)g->a + k0 / PANEL * g->a_kp;
  const int vectors = columns > WIDTH ? 2 : 1, masked = columns % WIDTH != 0;
  NAME(kernel) *const *kernels = NAME(kernels)[vectors - 1][masked];
  t->valid = NAME(first)(columns - (vectors - 1) * WIDTH);
  t->b = b, t->b_k = g->b_k;
  if (g->b_k > PACK_B_STRIDE && tile1 - tile0 >= PACK_B_TILES) {
    NAME(pack_b)(packed, b, g->b_k, t->k, t->valid, vectors, masked);
    t->b = packed, t->b_k = 2 * WIDTH;
  }
  for (long i = tile0; i < tile1; i++) {
    long row = tile_start(i, tiles, g->m), rows = tile_start(i + 1, tiles, g->m) - row;
    if (packed_a) t->a = packed_a + (i - tile0) * ROWS * K_BLOCK, t->a_row = 1, t->a_k = rows;
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

void NAME(ws_gemm)(const ws_gemm *g) {
  if (g->k <= 0) { NAME(clear)(g); return; }
  const long tiles = (g->m + ROWS - 1) / ROWS, whole = g->a_kp == PANEL * g->a_k;
  const int wide = g->n > PACK_A_STRIPS * 2 * WIDTH;
  const int pack = g->a_m == 1 && whole && wide && g->a_k >= PACK_A_STRIDE && g->k >= PACK_A_K;
  _Alignas(64) REAL packed[pack ? TILES_IN_BLOCK * ROWS * K_BLOCK : 1];
  NAME(tile) t = {.a_row = g->a_m, .a_k = g->a_k, .c_row = g->c_m};
  for (long k0 = 0; k0 < g->k; k0 += K_BLOCK) {
    t.k = g->k - k0 < K_BLOCK ? g->k - k0 : K_BLOCK;
    t.segment = whole ? t.k : PANEL;
    t.a_skip = whole ? 0 : g->a_kp - PANEL * g->a_k;
    t.add = k0 > 0;
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
