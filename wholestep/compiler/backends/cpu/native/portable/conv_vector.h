/* Multiplications and additions of one element type that round twice: part of conv_tile.h. */
#define REGISTERS 12

/* sum += x * y, with y in a register (fma) or in memory (fma_at). */
WS_TILE void NAME(fma)(V *sum, V x, V y) { *sum = *sum + x * y; }
WS_TILE void NAME(fma_at)(V *sum, V x, const REAL *p) { *sum = *sum + x * *(const LOOSE *)p; }
WS_TILE V NAME(all)(const REAL *p) { return *p - (V){0}; }

/* sum[v] += *p * y[v]: multiply by one broadcast element. */
WS_TILE void NAME(spread)(V *sum, const REAL *p, const V *y, const int vectors) {
  const V x = NAME(all)(p);
#pragma GCC unroll 4
  for (int v = 0; v < vectors; v++) NAME(fma)(&sum[v], x, y[v]);
}
