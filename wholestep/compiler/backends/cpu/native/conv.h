/* Convolutions and their adjoints, for the shapes of one plan: see conv_tile.h. */
#ifndef WS_CONV_H
#define WS_CONV_H
#include "ws.h"

#define WS_TILE static inline __attribute__((always_inline))
#ifdef __AVX512F__
#define WS_WIDE 64
#else
#define WS_WIDE 32
#endif
#define INDEX uint8_t

/* Asks for `count` lines of memory, `step` bytes apart, that are read, or written, soon. */
WS_TILE void ws_fetch_read(const void *from, const long count, const long step) {
  for (long i = 0; i < count; i++) __builtin_prefetch((const char *)from + i * step, 0, 2);
}
WS_TILE void ws_fetch_own(const void *from, const long count, const long step) {
  for (long i = 0; i < count; i++) __builtin_prefetch((const char *)from + i * step, 1, 2);
}

#define REAL float
#define SUFFIX "ps"
#define BROADCAST "vbroadcastss"
#define TO_ALL "1to16"
#define NAME(x) ws_##x##_f32_wide
#define BYTES WS_WIDE
#include "conv_tile.h"
#undef NAME
#undef BYTES
#define NAME(x) ws_##x##_f32_narrow
#define BYTES 32
#include "conv_tile.h"
#undef NAME
#undef BYTES
#undef REAL
#undef SUFFIX
#undef BROADCAST
#undef TO_ALL

#define REAL double
#define SUFFIX "pd"
#define BROADCAST "vbroadcastsd"
#define TO_ALL "1to8"
#define NAME(x) ws_##x##_f64_wide
#define BYTES WS_WIDE
#include "conv_tile.h"
#undef NAME
#undef BYTES
#define NAME(x) ws_##x##_f64_narrow
#define BYTES 32
#include "conv_tile.h"
#undef NAME
#undef BYTES
#undef REAL
#undef SUFFIX
#undef BROADCAST
#undef TO_ALL

/* Frames, packed weights and pools for one element type. */
#define WS_WINDOWS(REAL, suffix) \
  /* An image into the middle of a frame; steps are in elements. */ \
  WS_APART void ws_frame_##suffix(REAL *frame, const REAL *x, const int height, const int width, const int channels, \
                                   const long row, const long x_row, const long x_pixel, const long x_channel) { \
    for (int i = 0; i < height; i++) { \
      REAL *to = frame + i * row; \
      const REAL *from = x + i * x_row; \
      if ((channels == 1 || x_channel == 1) && x_pixel == channels) \
        for (int j = 0; j < width * channels; j++) to[j] = from[j]; \
      else \
        for (int j = 0; j < width; j++) \
          for (int c = 0; c < channels; c++) to[j * channels + c] = from[j * x_pixel + c * x_channel]; \
    } \
  } \
  WS_APART void ws_clear_##suffix(REAL *to, const long count) { \
    for (long i = 0; i < count; i++) to[i] = 0; \
  } \
  /* [panel][row][column][k][lane] of the given taps; lanes behind the last output are zero. */ \
  WS_APART void ws_pack_##suffix(REAL *to, const REAL *w, const int outputs, const int lanes, const int rows, \
                                  const int *tap_rows, const int columns, const int *tap_columns, const int depth, \
                                  const long w_output, const long w_row, const long w_column, const long w_k) { \
    for (int p = 0; p < outputs; p += lanes) \
      for (int r = 0; r < rows; r++) \
        for (int c = 0; c < columns; c++) \
          for (int k = 0; k < depth; k++, to += lanes) { \
            const REAL *from = w + tap_rows[r] * w_row + tap_columns[c] * w_column + k * w_k + p * w_output; \
            for (int l = 0; l < lanes; l++) to[l] = p + l < outputs ? from[l * w_output] : 0; \
          } \
  }
WS_WINDOWS(float, f32)
WS_WINDOWS(double, f64)

#define WS_POOLS(REAL, suffix, POSITION, position) \
  /* A window of an image that may reach over its edge, all channels at once. */ \
  WS_APART void ws_pool_pixel_##suffix##_##position(REAL *best, POSITION *positions, const REAL *x, const int channels, \
                                        const int height, const int width, const int rows, const int columns, \
                                        const long top, const long left, const long x_row, const long x_pixel, \
                                        const long x_channel) { \
    int first = 1; \
    for (int r = 0; r < rows; r++) \
      for (int q = 0; q < columns; q++) { \
        if (top + r < 0 || top + r >= height || left + q < 0 || left + q >= width) continue; \
        const REAL *from = x + (top + r) * x_row + (left + q) * x_pixel; \
        _Pragma("omp simd") for (int c = 0; c < channels; c++) { \
          const REAL v = from[c * x_channel]; \
          const int wins = first | (v > best[c]) | (v != v); \
          best[c] = wins ? v : best[c]; \
          positions[c] = wins ? (POSITION)(r * columns + q) : positions[c]; \
        } \
        first = 0; \
      } \
  }
WS_POOLS(float, f32, uint8_t, u8)
WS_POOLS(float, f32, int32_t, i32)
WS_POOLS(double, f64, uint8_t, u8)
WS_POOLS(double, f64, int32_t, i32)
#endif
