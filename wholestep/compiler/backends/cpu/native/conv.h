/* Convolutions, pools and their gradients: the functions that generated kernels call.

   A kernel copies each image into a zero-padded frame, packs the weights into panels of output channels, and computes the
   result in register tiles.  This header declares the copies and the packing, which shared_conv.c defines once per machine,
   and instantiates the tiles of conv_tile.h with wide (WS_WIDE bytes) and narrow (WS_NARROW bytes) vectors.
   Invariant: every read of a window is inside the frame or its slack, so tiles have no bounds checks. */
#ifndef WS_CONV_H
#define WS_CONV_H
#include "turn.h"
#include "vectors.h"
#include "ws.h"

#define WS_TILE static inline __attribute__((always_inline))
#define INDEX uint8_t

/* Prefetch `count` cache lines, `step` bytes apart, that will be read (or written) soon. */
WS_TILE void ws_fetch_read(const void *from, const long count, const long step) {
  for (long i = 0; i < count; i++) __builtin_prefetch((const char *)from + i * step, 0, 2);
}
WS_TILE void ws_fetch_own(const void *from, const long count, const long step) {
  for (long i = 0; i < count; i++) __builtin_prefetch((const char *)from + i * step, 1, 2);
}

#define REAL float
#define REAL_BYTES 4
#define NAME(x) ws_##x##_f32_wide
#define BYTES WS_WIDE
#include "conv_tile.h"
#undef NAME
#undef BYTES
#define NAME(x) ws_##x##_f32_narrow
#define BYTES WS_NARROW
#include "conv_tile.h"
#undef NAME
#undef BYTES
#undef REAL
#undef REAL_BYTES

/* Zero-padded frames, packed weights and pools for one element type; shared_conv*.c defines the functions that are only
   declared here.

   The `few` variants are for short runs of elements.  They are small, and gcc specializes them for the literals of a
   file's kernels: 3 channels in separate planes take a seventh of the time. */
#define WS_WINDOWS(REAL, suffix) \
  /* Copy an image into the middle of a frame with its channels last; strides are in elements. */ \
  WS_SHARED void ws_frame_##suffix(REAL *frame, const REAL *x, int height, int width, int channels, long row, long x_row, \
                                   long x_pixel); \
  WS_APART void ws_frame_few_##suffix(REAL *frame, const REAL *x, const int height, const int width, const int channels, \
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
  WS_SHARED void ws_clear_##suffix(REAL *to, long count); \
  /* Pack the given taps as [panel][row][column][k][lane]; lanes after the last output are zero. */ \
  WS_SHARED void ws_pack_##suffix(REAL *to, const REAL *w, int outputs, int lanes, int rows, const int *tap_rows, int columns, \
                                  const int *tap_columns, int depth, long w_output, long w_row, long w_column, long w_k); \
  WS_APART void ws_pack_few_##suffix(REAL *to, const REAL *w, const int outputs, const int lanes, const int rows, \
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

#define WS_POOLS(REAL, suffix, POSITION, position) \
  /* One window of an image, which may extend over its edge, all channels: maximum and its position; NaN wins. */ \
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
WS_WINDOWS(float, f32)
WS_POOLS(float, f32, uint8_t, u8)
WS_POOLS(float, f32, int32_t, i32)

/* A run of pixels of one tap: results `result` to `result + count` are computed from inputs `input` to
   `input + count`. */
typedef struct { int result, input, count; } ws_span;
typedef struct { int place, spans; } ws_tap;

/* Implicit GEMM: a convolution (or its adjoint) of `images` images, for `columns` channels of its result.  Pixels of
   the images are [pixel][image][k], the result's are [panel][pixel][image][lane], weights [output][channel][tap]. */
typedef struct {
  long adjoint, images, columns, depth;
  const float *x; long x_pixel;
  const float *w; long w_output;
  float *packed, *block; long pixels;
  long count; const ws_tap *taps; const ws_span *spans;
} ws_taps;

/* Bits: every element of the result is one chain over its taps, in the order of the table, and the channels of each. */
WS_SHARED void ws_add_taps(const ws_api *api, const ws_taps *t);

/* A weight's gradient, [output][tap][channel]: for each tap, `height` x `width` pixels of the gradient starting at g
   are multiplied with the pixels of the images starting at x. */
typedef struct { int g, x, height, width; } ws_met;
typedef struct {
  long images, channels;
  const float *g; long g_image, g_row, g_pixel, g_channel;
  const float *x; long x_image, x_row, x_pixel;
  float *into; int taps; const ws_met *met;
} ws_weights;

/* Computes the outputs from lo to hi. */
WS_SHARED void ws_weights_of_images(const ws_weights *t, long lo, long hi);
#endif
