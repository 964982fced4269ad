/* Convolutions and their adjoints, for the shapes of one plan: see conv_tile.h. */
#ifndef WS_CONV_H
#define WS_CONV_H
#include "turn.h"
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

/* Where pixels of results and of images meet in a tap of a kernel: `count` of each, one after the other. */
typedef struct { int made, read, count; } ws_span;
typedef struct { int place, spans; } ws_tap;

/* A convolution (or its adjoint) of `images` images, for `columns` channels of its result: pixels of the images are
   [pixel][image][k], those of the result [panel][pixel][image][lane], weights [output][channel][tap]. */
typedef struct {
  long adjoint, images, columns, depth;
  const float *x; long x_pixel;
  const float *w; long w_output;
  float *packed, *block; long pixels;
  long count; const ws_tap *taps; const ws_span *spans;
} ws_taps;

/* [panel][k][tap][lane] of a weight: lanes are outputs, or channels (of the adjoint). */
static inline void ws_pack_taps(const ws_taps *t) {
  const long taps = t->count, depth = t->depth, row = t->w_output;
  for (long p = 0; p < t->columns; p += 16) {
    const long lanes = t->columns - p < 16 ? t->columns - p : 16;
    float *to = t->packed + p * depth * taps;
    if (!t->adjoint) {
      const float *from = t->w + p * row;
      const long length = depth * taps, whole = lanes < 16 ? 0 : length / 16 * 16;
      for (long k = 0; k < whole; k += 16) ws_turn_16x16(to + k * 16, from + k, row);
      for (long k = whole; k < length; k++)
        for (long l = 0; l < lanes; l++) to[k * 16 + l] = from[l * row + k];
      continue;
    }
    for (long k = 0; k < depth; k++, to += taps * 16) {
      const float *from = t->w + k * row + p * taps;
      const long whole = lanes < 16 ? 0 : taps / 8 * 8;
      ws_fetch_read(from + 8 * row, taps, 64); /* rows are pages apart, where processors do not fetch ahead: 920 -> 600 us */
      for (long i = 0; i < whole; i += 8)
        ws_turn_8x8(to + i * 16, from + i, taps), ws_turn_8x8(to + i * 16 + 8, from + i + 8 * taps, taps);
      for (long i = whole; i < taps; i++)
        for (long l = 0; l < lanes; l++) to[i * 16 + l] = from[l * taps + i];
    }
  }
}

/* Every element of the result is one chain over its taps, in the order of the table, and the channels of each. */
WS_APART void ws_add_taps(const ws_api *api, const ws_taps *t) {
  const long panel = t->pixels * t->images * 16;
  const ws_span *s = t->spans;
  ws_clear_f32(t->block, (t->columns + 15) / 16 * panel);
  const int as_it_is = t->adjoint && t->count == 1; /* channels of the weight lie side by side */
  if (!as_it_is) ws_pack_taps(t);
  for (long i = 0; i < t->count; i++)
    for (int j = 0; j < t->taps[i].spans; j++, s++) {
      const ws_gemm product = {
          s->count * t->images, t->columns, t->depth,
          t->x + s->read * t->images * t->x_pixel, t->x_pixel, 1, 16,
          as_it_is ? t->w : t->packed + t->taps[i].place * 16,
          as_it_is ? t->w_output : t->count * 16, as_it_is ? 16 : t->count * t->depth * 16,
          t->block + s->made * t->images * 16, 16, panel, 1};
      api->gemm_f32(&product);
    }
}

/* The gradient of a weight, [output][tap][channel]: `height` x `width` pixels of the gradient from g on meet those of
   the images from x on. */
typedef struct { int g, x, height, width; } ws_met;
typedef struct {
  long images, channels;
  const float *g; long g_image, g_row, g_pixel, g_channel;
  const float *x; long x_image, x_row, x_pixel;
  float *into; int taps; const ws_met *met;
} ws_weights;

/* Some outputs at a time, so that their sums are written once. */
WS_APART void ws_weights_of_images(const ws_weights *t, const long lo, const long hi) {
  enum { LINE = WS_WIDE / (int)sizeof(float) };
  const long output = t->taps * t->channels;
#define WS_SOME(outputs, vectors) \
  ws_weight_of_images_f32_wide(outputs, vectors, into, output, t->images, g, t->g_image, t->g_row, t->g_pixel, t->g_channel, \
                               x + v, t->x_image, t->x_row, t->x_pixel, m->height, m->width)
  for (long o = lo; o < hi; o += 4)
    for (int i = 0; i < t->taps; i++) {
      const ws_met *m = t->met + i;
      const float *x = t->x + m->x;
      for (long v = 0; v < t->channels; v += 3 * LINE) {
        const long left = t->channels - v;
        for (long j = o; j < hi && j < o + 4; j += o + 4 <= hi ? 4 : 1) {
          const float *g = t->g + m->g + j * t->g_channel;
          float *into = t->into + j * output + i * t->channels + v;
          if (o + 4 <= hi && left >= 3 * LINE) WS_SOME(4, 3);
          else if (o + 4 <= hi && left == 2 * LINE) WS_SOME(4, 2);
          else if (o + 4 <= hi) WS_SOME(4, 1);
          else if (left >= 3 * LINE) WS_SOME(1, 3);
          else if (left == 2 * LINE) WS_SOME(1, 2);
          else WS_SOME(1, 1);
        }
      }
    }
#undef WS_SOME
}

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
