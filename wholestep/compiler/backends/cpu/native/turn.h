/* Transposes of 8 x 8 and 16 x 16 floats in registers, by three rounds of shuffles that exchange elements, pairs and halves.
   Rows of the source are `row` elements apart, rows of the result 16.  Values are moved, never computed. */
#ifndef WS_TURN_H
#define WS_TURN_H
#include "vectors.h"
#include "ws.h"

#ifdef WS_NEON
/* Transpose 4 x 4 elements: interleave pairs of rows, then exchange halves. */
typedef float ws_v4 __attribute__((vector_size(16), aligned(4), may_alias));
typedef int ws_i4 __attribute__((vector_size(16)));
static inline void ws_turn_4x4(float *restrict to, const float *restrict from, long row) {
  typedef float v4 __attribute__((vector_size(16)));
  v4 x[4], y[4];
  for (int i = 0; i < 4; i++) x[i] = *(const ws_v4 *)(from + row * i);
  for (int i = 0; i < 4; i += 2) {
    y[i] = WS_SHUFFLE(ws_i4, x[i], x[i + 1], 0, 4, 2, 6);
    y[i + 1] = WS_SHUFFLE(ws_i4, x[i], x[i + 1], 1, 5, 3, 7);
  }
  for (int i = 0; i < 2; i++) {
    *(ws_v4 *)(to + 16 * i) = WS_SHUFFLE(ws_i4, y[i], y[i + 2], 0, 1, 4, 5);
    *(ws_v4 *)(to + 16 * (i + 2)) = WS_SHUFFLE(ws_i4, y[i], y[i + 2], 2, 3, 6, 7);
  }
}
static inline void ws_turn_8x8(float *restrict to, const float *restrict from, long row) {
  ws_turn_4x4(to, from, row), ws_turn_4x4(to + 4, from + 4 * row, row);
  ws_turn_4x4(to + 64, from + 4, row), ws_turn_4x4(to + 68, from + 4 + 4 * row, row);
}
#else
typedef float ws_v8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef int ws_i8 __attribute__((vector_size(32)));
/* Interleave two vectors by single elements, by pairs of elements or by halves: the low and the high part of the result. */
#define WS_LOW_ONES(x, y) WS_SHUFFLE(ws_i8, x, y, 0, 8, 1, 9, 4, 12, 5, 13)
#define WS_HIGH_ONES(x, y) WS_SHUFFLE(ws_i8, x, y, 2, 10, 3, 11, 6, 14, 7, 15)
#define WS_LOW_PAIRS(x, y) WS_SHUFFLE(ws_i8, x, y, 0, 1, 8, 9, 4, 5, 12, 13)
#define WS_HIGH_PAIRS(x, y) WS_SHUFFLE(ws_i8, x, y, 2, 3, 10, 11, 6, 7, 14, 15)
#define WS_LOW_HALVES(x, y) WS_SHUFFLE(ws_i8, x, y, 0, 1, 2, 3, 8, 9, 10, 11)
#define WS_HIGH_HALVES(x, y) WS_SHUFFLE(ws_i8, x, y, 4, 5, 6, 7, 12, 13, 14, 15)

/* Transpose 8 x 8 elements: interleave pairs of rows, then pairs of pairs, then exchange halves of vectors. */
static inline void ws_turn_8x8(float *restrict to, const float *restrict from, long row) {
  typedef float v8 __attribute__((vector_size(32)));
  v8 x[8], y[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; i++) x[i] = *(const ws_v8 *)(from + row * i);
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    y[2 * i] = WS_LOW_ONES(x[2 * i], x[2 * i + 1]);
    y[2 * i + 1] = WS_HIGH_ONES(x[2 * i], x[2 * i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4) {
    x[i] = WS_LOW_PAIRS(y[i], y[i + 2]);
    x[i + 1] = WS_HIGH_PAIRS(y[i], y[i + 2]);
    x[i + 2] = WS_LOW_PAIRS(y[i + 1], y[i + 3]);
    x[i + 3] = WS_HIGH_PAIRS(y[i + 1], y[i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    *(ws_v8 *)(to + 16 * i) = WS_LOW_HALVES(x[i], x[i + 4]);
    *(ws_v8 *)(to + 16 * (i + 4)) = WS_HIGH_HALVES(x[i], x[i + 4]);
  }
}
#endif

static inline void ws_turn_16x16(float *restrict to, const float *restrict from, long row) {
  ws_turn_8x8(to, from, row), ws_turn_8x8(to + 8, from + 8 * row, row);
  ws_turn_8x8(to + 128, from + 8, row), ws_turn_8x8(to + 136, from + 8 + 8 * row, row);
}
#endif
