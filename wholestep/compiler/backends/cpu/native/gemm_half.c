/* GEMM of bfloat16 or float16 with float accumulators, and the packing of B into pairs of rows for it.  A separate
   library, built when a plan first needs it.  Contracts: ws_gemm and ws_pairs in ws.h.

   Bits: with AVX512-BF16 and with BF16 of ARM64 an element of a bfloat16 product is one chain of vdpbf16ps or bfdot over
   pairs of k = 0, 2, ...; else halves are widened to float, and it is the chain of ws_gemm.  Neither tiles nor blocks
   change a bit. */
#include "vectors.h"
#ifdef WS_PAIR_DOT
#define WS_PAIRS
#include "gemm.c"
#else
#include "runtime.h"
#define INLINE static inline __attribute__((always_inline))
#endif
#include "half.h"

enum { HALF_ROWS = 48, HALF_K = 2048 };               /* rows of a packed block of A, which takes 192 KiB of L2 */
static const ws_api *api;

typedef uint16_t both __attribute__((vector_size(64)));
typedef uint16_t loose_both __attribute__((vector_size(64), aligned(2), may_alias));

/* x0 y0 x1 y1 ...: 16 elements of two rows. */
INLINE void interleave(uint16_t *to, const uint16_t *x, const uint16_t *y) {
  both rows;
  __builtin_memcpy(&rows, x, 32), __builtin_memcpy((char *)&rows + 32, y, 32);
  *(loose_both *)to = WS_SHUFFLE(both, rows, rows, WS_INTERLEAVED);
}

/* Write the pairs of a panel's rows, which are `step` apart, every `to_step` elements; missing columns are zero. */
static void pair_panel(uint16_t *to, long to_step, const uint16_t *x, long step, long rows, long columns) {
  static const uint16_t zeros[16];
  long k = 0;
  if (columns == 16)
    for (; k + 1 < rows; k += 2, to += to_step, x += 2 * step) interleave(to, x, x + step);
  for (; k < rows; k += 2, to += to_step, x += 2 * step) {
    const uint16_t *y = k + 1 < rows ? x + step : zeros;
    for (long l = 0; l < 16; l++) to[2 * l] = l < columns ? x[l] : 0, to[2 * l + 1] = l < columns ? y[l] : 0;
  }
}

WS_EXPORT void ws_pair_rows(const ws_pairs *g) {
  for (long p = 0; p * 16 < g->columns; p++) {
    const uint16_t *from = (const uint16_t *)g->from + p * g->from_p;
    const long columns = g->columns - p * 16 < 16 ? g->columns - p * 16 : 16;
    pair_panel((uint16_t *)g->to + p * g->to_p, 32, from, g->from_k, g->rows, columns);
  }
}

#ifdef WS_PAIR_DOT
/* Pack A's block into pairs, [k/2][HALF_ROWS][2], 16 rows at a time: a transposed A in vectors, else by elements. */
static void pair_block(uint16_t *to, const ws_gemm *g, long row, long k0, long rows, long k) {
  const long step = g->a_mp ? g->a_mp : 16 * g->a_m;
  const int transposed = g->a_m == 1 && g->a_kp == 16 * g->a_k;
  for (long i = row; i < row + rows; i += 16, to += 32) {
    const uint16_t *a = (const uint16_t *)g->a + i / 16 * step;
    const long width = row + rows - i < 16 ? row + rows - i : 16;
    if (transposed) pair_panel(to, 2 * HALF_ROWS, a + k0 * g->a_k, g->a_k, k, width);
    else
      for (long j = 0; j < (k + 1) / 2 * 2; j++)
        for (long l = 0; l < width; l++) {
          const uint16_t *x = a + (k0 + j) / 16 * g->a_kp + j % 16 * g->a_k + l * g->a_m;
          to[j / 2 * (2 * HALF_ROWS) + 2 * l + j % 2] = j < k ? *x : 0;
        }
  }
}

static void multiply_copied(const ws_gemm *g, ws_gemm p) {
  _Alignas(64) uint16_t packed[HALF_ROWS * HALF_K];
  p.a = packed, p.a_m = 1, p.a_k = HALF_ROWS, p.a_kp = A_PANEL * HALF_ROWS;
  for (long k0 = 0; k0 < g->k; k0 += HALF_K) {
    const long k = g->k - k0 < HALF_K ? g->k - k0 : HALF_K;
    p.k = (k + 1) / 2, p.b = (const uint32_t *)g->b + k0 / 2 * p.b_k, p.add = k0 > 0 || g->add;
    for (long i = 0; i < g->m; i += HALF_ROWS, p.aheads = 0) {  /* prefetch only once */
      p.m = g->m - i < HALF_ROWS ? g->m - i : HALF_ROWS, p.c = (float *)g->c + i * g->c_m;
      pair_block(packed, g, i, k0, p.m, k);
      ws_gemm_pairs(&p);
    }
  }
}

/* Two adjacent bfloat16 are one element of the tiles of gemm_tile.h: every step of k is a pair. */
static void multiply_bf16(const ws_gemm *g) {
  ws_gemm p = *g;
  p.b_k /= 2, p.b_p /= 2;
  if (g->k > 0 && (g->a_k != 1 || g->a_mp || (g->k | g->a_m | g->a_kp) % 2)) {
    multiply_copied(g, p);
    return;
  }
  p.k /= 2, p.a_m /= 2, p.a_kp /= 2;
  ws_gemm_pairs(&p);
}
#endif

static uint16_t a_element(const ws_gemm *g, long i, long k) {
  const long row = g->a_mp ? i / 16 * g->a_mp + i % 16 * g->a_m : i * g->a_m;
  return ((const uint16_t *)g->a)[row + k / 16 * g->a_kp + k % 16 * g->a_k];
}

enum { WIDE_K = 256, WIDE_COLUMNS = 64 };             /* sizes of the blocks widened to float: 48 KiB of A, 64 KiB of B */

#define WIDEN(name, widened)                                                                                       \
  static void name(const ws_gemm *g) {                                                                             \
    _Alignas(64) float a[HALF_ROWS * WIDE_K], b[WIDE_COLUMNS * WIDE_K];                                            \
    ws_gemm p = *g;                                                                                                \
    p.a = a, p.a_m = WIDE_K, p.a_k = 1, p.a_kp = 16, p.b = b, p.b_k = 16, p.b_p = 16 * WIDE_K, p.k = 0;            \
    if (g->k <= 0) api->gemm_f32(&p);                                                                              \
    for (long k0 = 0; k0 < g->k; k0 += WIDE_K) {                                                                   \
      p.k = g->k - k0 < WIDE_K ? g->k - k0 : WIDE_K, p.add = k0 > 0 || g->add;                                     \
      for (long j = 0; j < g->n; j += WIDE_COLUMNS) {                                                              \
        p.n = g->n - j < WIDE_COLUMNS ? g->n - j : WIDE_COLUMNS;                                                   \
        for (long q = 0; q * 16 < p.n; q++)                                                                        \
          for (long k = 0; k < p.k; k++) {                                                                         \
            const uint16_t *from = (const uint16_t *)g->b + (j / 16 + q) * g->b_p + (k0 + k) / 2 * g->b_k + k % 2;  \
            for (int l = 0; l < 16; l++) b[(q * WIDE_K + k) * 16 + l] = widened(from[2 * l]);                      \
          }                                                                                                        \
        for (long i = 0; i < g->m; i += HALF_ROWS, p.aheads = 0) {                                                 \
          p.m = g->m - i < HALF_ROWS ? g->m - i : HALF_ROWS;                                                       \
          p.c = (float *)g->c + j / 16 * g->c_p + i * g->c_m;                                                      \
          for (long r = 0; r < p.m; r++)                                                                           \
            for (long k = k0; k < k0 + p.k; k++)                                                                   \
              a[r * WIDE_K + k - k0] = widened(a_element(g, i + r, k));                                            \
          api->gemm_f32(&p);                                                                                       \
        }                                                                                                          \
      }                                                                                                            \
    }                                                                                                              \
  }
WIDEN(multiply_f16, ws_f32_f16)
#ifndef WS_PAIR_DOT
WIDEN(multiply_bf16, ws_f32_bf16)
#endif

WS_EXPORT void ws_gemm_bf16(const ws_gemm *g) { multiply_bf16(g); }
WS_EXPORT void ws_gemm_f16(const ws_gemm *g) { multiply_f16(g); }

/* Register the half-precision products in the library's function table. */
WS_EXPORT void ws_add_half(ws_api *table) {
  api = table;
  table->gemm_bf16 = ws_gemm_bf16, table->gemm_f16 = ws_gemm_f16, table->pair_rows = ws_pair_rows;
}
