/* GEMM for a processor without AVX2 and FMA: plain loops over panels of 16 columns, which the compiler vectorizes as it
   can.
   Bits: one chain over k per element, never fused, so that every processor gives the same. */

#define PORTABLE_GEMM(name, REAL)                                                                        \
  static inline __attribute__((always_inline)) void                                                      \
  name##_row(const ws_gemm *g, long i, long panel, const int columns, long valid) {                      \
    const REAL *b = (const REAL *)g->b + panel * g->b_p, *a = (const REAL *)g->a + i * g->a_m;            \
    REAL *c = (REAL *)g->c + panel * g->c_p + i * g->c_m, sum[16] = {0};                                  \
    if (g->add)                                                                                          \
      for (int l = 0; l < valid; l++) sum[l] = c[l];                                                     \
    for (long k = 0; k < g->k; k++) {                                                                    \
      const REAL x = a[k / 16 * g->a_kp + k % 16 * g->a_k], *row = b + k * g->b_k;                        \
      for (int l = 0; l < (columns ? columns : valid); l++) sum[l] = x * row[l] + sum[l];                 \
    }                                                                                                    \
    for (int l = 0; l < valid; l++) c[l] = sum[l];                                                       \
  }                                                                                                      \
  void name(const ws_gemm *g) {                                                                          \
    for (long panel = 0; panel * 16 < g->n; panel++) {                                                   \
      const long valid = g->n - panel * 16 < 16 ? g->n - panel * 16 : 16;                                \
      for (long i = 0; i < g->m; i++)                                                                    \
        if (valid == 16) name##_row(g, i, panel, 16, 16);                                                \
        else name##_row(g, i, panel, 0, valid);                                                          \
    }                                                                                                    \
  }
#ifndef WS_DOUBLE
PORTABLE_GEMM(ws_gemm_f32, float)
#else
PORTABLE_GEMM(ws_gemm_f64, double)
#endif
