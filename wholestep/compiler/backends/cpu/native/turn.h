/* The transpose of 16 x 16 floats, turned in registers: rows of the source are `row` apart, those of the result 16. */
#ifndef WS_TURN_H
#define WS_TURN_H

typedef float ws_v8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef int ws_i8 __attribute__((vector_size(32)));

/* 8 x 8: pairs of rows are interleaved, then pairs of pairs, then halves of vectors change places. */
static inline void ws_turn_8x8(float *restrict to, const float *restrict from, long row) {
  static const ws_i8 low[3] = {{0, 8, 1, 9, 4, 12, 5, 13}, {0, 1, 8, 9, 4, 5, 12, 13}, {0, 1, 2, 3, 8, 9, 10, 11}};
  static const ws_i8 high[3] = {{2, 10, 3, 11, 6, 14, 7, 15}, {2, 3, 10, 11, 6, 7, 14, 15}, {4, 5, 6, 7, 12, 13, 14, 15}};
  typedef float v8 __attribute__((vector_size(32)));
  v8 x[8], y[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; i++) x[i] = *(const ws_v8 *)(from + row * i);
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    y[2 * i] = __builtin_shuffle(x[2 * i], x[2 * i + 1], low[0]);
    y[2 * i + 1] = __builtin_shuffle(x[2 * i], x[2 * i + 1], high[0]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4) {
    x[i] = __builtin_shuffle(y[i], y[i + 2], low[1]);
    x[i + 1] = __builtin_shuffle(y[i], y[i + 2], high[1]);
    x[i + 2] = __builtin_shuffle(y[i + 1], y[i + 3], low[1]);
    x[i + 3] = __builtin_shuffle(y[i + 1], y[i + 3], high[1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    *(ws_v8 *)(to + 16 * i) = __builtin_shuffle(x[i], x[i + 4], low[2]);
    *(ws_v8 *)(to + 16 * (i + 4)) = __builtin_shuffle(x[i], x[i + 4], high[2]);
  }
}

static inline void ws_turn_16x16(float *restrict to, const float *restrict from, long row) {
  ws_turn_8x8(to, from, row), ws_turn_8x8(to + 8, from + 8 * row, row);
  ws_turn_8x8(to + 128, from + 8, row), ws_turn_8x8(to + 136, from + 8 + 8 * row, row);
}
#endif
