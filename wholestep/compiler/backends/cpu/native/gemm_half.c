/* C = A B of bfloat16 or float16 with sums in float, and the layout that B has for it: a library of its own, built when
   a plan first needs it.  Contracts: ws_gemm and ws_pairs in ws.h.

   With AVX512-BF16 an element of a product of bfloat16 is one chain of vdpbf16ps over pairs of k = 0, 2, ...; else halves
   are widened to float, and it is the chain of ws_gemm.  Neither tiles nor blocks can change a bit. */
#ifdef __AVX512BF16__
#define WS_PAIRS
#include "gemm.c"
#else
#include "runtime.h"
#endif
#include "half.h"

enum { HALF_ROWS = 48, HALF_K = 2048 };               /* of a block of A that is copied: 192 KiB, in L2 */
static const ws_api *api;

typedef uint16_t halves __attribute__((vector_size(32), aligned(2), may_alias));
typedef uint16_t both __attribute__((vector_size(64)));
typedef uint16_t loose_both __attribute__((vector_size(64), aligned(2), may_alias));

/* x0 y0 x1 y1 ...: 16 elements of two rows; NULL is a row of zeros. */
static inline __attribute__((always_inline)) void interleave(uint16_t *to, const uint16_t *x, const uint16_t *y) {
  static const both order = {0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23,
                             8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  both rows = {0};
  __builtin_memcpy(&rows, x, 32);
  if (y) __builtin_memcpy((char *)&rows + 32, y, 32);
  *(loose_both *)to = __builtin_shuffle(rows, order);
}

static void interleave_rows(uint16_t *to, const uint16_t *x, const uint16_t *y, long columns) {
  long l = 0;
  for (; l + 16 <= columns; l += 16) interleave(to + 2 * l, x + l, y ? y + l : NULL);
  for (; l < columns; l++) to[2 * l] = x[l], to[2 * l + 1] = y ? y[l] : 0;
}

WS_EXPORT void ws_pair_rows(const ws_pairs *g) {
  for (long p = 0; p * 16 < g->columns; p++) {
    const long width = g->columns - p * 16 < 16 ? g->columns - p * 16 : 16;
    for (long k = 0; k < g->rows; k += 2) {
      const uint16_t *x = (const uint16_t *)g->from + p * g->from_p + k * g->from_k;
      uint16_t *to = (uint16_t *)g->to + p * g->to_p + k * 16;
      interleave_rows(to, x, k + 1 < g->rows ? x + g->from_k : NULL, width);
      for (long l = 2 * width; l < 32; l++) to[l] = 0;
    }
  }
}

#ifdef __AVX512BF16__
/* A's block in pairs, [k/2][HALF_ROWS][2]: of a transposed A row by row, of any other one by one. */
static void pair_block(uint16_t *to, const ws_gemm *g, long row, long k0, long rows, long k) {
  const uint16_t *a = (const uint16_t *)g->a + row * g->a_m;
  const int by_rows = g->a_m == 1 && g->a_kp == 16 * g->a_k;
  for (long j = k0; j < k0 + k; j += 2, to += 2 * HALF_ROWS) {
    const uint16_t *x = a + j / 16 * g->a_kp + j % 16 * g->a_k, *y = j + 1 < k0 + k ? x + g->a_k : NULL;
    if (by_rows) interleave_rows(to, x, y, rows);
    else
      for (long i = 0; i < rows; i++) to[2 * i] = x[i * g->a_m], to[2 * i + 1] = y ? y[i * g->a_m] : 0;
  }
}

static void multiply_copied(const ws_gemm *g, ws_gemm p) {
  _Alignas(64) uint16_t packed[HALF_ROWS * HALF_K];
  p.a = packed, p.a_m = 1, p.a_k = HALF_ROWS, p.a_kp = A_PANEL * HALF_ROWS;
  for (long k0 = 0; k0 < g->k; k0 += HALF_K) {
    const long k = g->k - k0 < HALF_K ? g->k - k0 : HALF_K;
    p.k = (k + 1) / 2, p.b = (const uint32_t *)g->b + k0 / 2 * p.b_k, p.add = k0 > 0 || g->add;
    for (long i = 0; i < g->m; i += HALF_ROWS, p.aheads = 0) {  /* fetched once */
      p.m = g->m - i < HALF_ROWS ? g->m - i : HALF_ROWS, p.c = (float *)g->c + i * g->c_m;
      pair_block(packed, g, i, k0, p.m, k);
      ws_gemm_pairs(&p);
    }
  }
}

/* Two bfloat16 next to each other are an element of the tiles of gemm_tile.h: every step of k is a pair. */
static void multiply_bf16(const ws_gemm *g) {
  ws_gemm p = *g;
  p.b_k /= 2, p.b_p /= 2;
  if (g->k > 0 && (g->a_k != 1 || (g->k | g->a_m | g->a_kp) % 2)) {
    multiply_copied(g, p);
    return;
  }
  p.k /= 2, p.a_m /= 2, p.a_kp /= 2;
  ws_gemm_pairs(&p);
}
#endif

enum { WIDE_K = 256, WIDE_COLUMNS = 64 };             /* of the blocks that are widened: A's 48 KiB, B's 64 */

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
              a[r * WIDE_K + k - k0] =                                                                             \
                widened(((const uint16_t *)g->a)[(i + r) * g->a_m + k / 16 * g->a_kp + k % 16 * g->a_k]);          \
          api->gemm_f32(&p);                                                                                       \
        }                                                                                                          \
      }                                                                                                            \
    }                                                                                                              \
  }
WIDEN(multiply_f16, ws_f32_f16)
#ifndef __AVX512BF16__
WIDEN(multiply_bf16, ws_f32_bf16)
#endif

WS_EXPORT void ws_gemm_bf16(const ws_gemm *g) { multiply_bf16(g); }
WS_EXPORT void ws_gemm_f16(const ws_gemm *g) { multiply_f16(g); }

/* Fills in what the library's table leaves open. */
WS_EXPORT void ws_add_half(ws_api *table) {
  api = table;
  table->gemm_bf16 = ws_gemm_bf16, table->gemm_f16 = ws_gemm_f16, table->pair_rows = ws_pair_rows;
}
