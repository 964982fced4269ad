/* Functions that window kernels of all plans share, compiled once per machine: frames, weight packing, implicit GEMM,
   and weight gradients over small images.  As copies in every plan they took gcc longer than the kernels themselves. */
#include "conv.h"
#include "shared_frames.h"
WS_SHARED_FRAMES(float, f32)

/* Transpose 16 lanes of `depth` contiguous elements each to [k][lane]. */
static void ws_turn_lanes(float *to, const float *from, const int depth, const long lane) {
  int k = 0;
  for (; k + 16 <= depth; k += 16) ws_turn_16x16(to + k * 16, from + k, lane);
  for (; k < depth; k++)
    for (int l = 0; l < 16; l++) to[k * 16 + l] = from[l * lane + k];
}
WS_SHARED_PACK(float, f32, ws_turn_lanes)

/* Pack a weight as [panel][k][tap][lane]: lanes are outputs, or channels (for the adjoint). */
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
      ws_fetch_read(from + 8 * row, taps, 64); /* no hardware prefetch: rows are pages apart (920 -> 600 us) */
      for (long i = 0; i < whole; i += 8)
        ws_turn_8x8(to + i * 16, from + i, taps), ws_turn_8x8(to + i * 16 + 8, from + i + 8 * taps, taps);
      for (long i = whole; i < taps; i++)
        for (long l = 0; l < lanes; l++) to[i * 16 + l] = from[l * taps + i];
    }
  }
}

/* Bits: every element of the result is one chain over its taps, in the order of the table, and the channels of each. */
void ws_add_taps(const ws_api *api, const ws_taps *t) {
  const long panel = t->pixels * t->images * 16;
  const ws_span *s = t->spans;
  ws_clear_f32(t->block, (t->columns + 15) / 16 * panel);
  const int as_it_is = t->adjoint && t->count == 1; /* channels of the weight are contiguous: no packing */
  if (!as_it_is) ws_pack_taps(t);
  for (long i = 0; i < t->count; i++)
    for (int j = 0; j < t->taps[i].spans; j++, s++) {
      const ws_gemm product = {
          s->count * t->images, t->columns, t->depth,
          t->x + s->input * t->images * t->x_pixel, t->x_pixel, 1, 16,
          as_it_is ? t->w : t->packed + t->taps[i].place * 16,
          as_it_is ? t->w_output : t->count * 16, as_it_is ? 16 : t->count * t->depth * 16,
          t->block + s->result * t->images * 16, 16, panel, 1};
      api->gemm_f32(&product);
    }
}

/* Four outputs at a time, whose sums stay in registers over all images and are written once. */
void ws_weights_of_images(const ws_weights *t, const long lo, const long hi) {
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
