/* Register tiles of direct convolutions for one element type and one vector width; conv.h includes it for each pair.

   A tile computes a few pixels x a few vectors of output channels with all accumulators in registers.  Images have
   their channels last, weights are packed as [panel][row][run][k][lane]; strides are in elements.
   Bits: every element of a result is one chain of fused multiply-adds (the portable target has none) whose order
   depends on the shapes alone, so vectors of any width give the same bits.  All `const int` parameters are literals
   wherever these functions are inlined: gcc specializes a kernel for each shape.  Inline assembly pins accumulators to
   registers. */
#define WIDTH (BYTES / (int)sizeof(REAL))
typedef REAL NAME(vec) __attribute__((vector_size(BYTES)));
typedef REAL NAME(loose) __attribute__((vector_size(BYTES), aligned(sizeof(REAL)), may_alias));
#define V NAME(vec)
#define LOOSE NAME(loose)
#if defined(WS_AVX)
#include "x86/conv_vector.h"
#elif defined(WS_NEON)
#include "arm64/conv_vector.h"
#else
#include "portable/conv_vector.h"
#endif

/* out[pixel][column] = sum over rows, runs, k of x[row*x_row + run*x_run + pixel*x_pixel + k] * w[row][run][k][column],
   for `pixels` pixels and vectors*WIDTH columns: 16 doubles are 8 vectors of NEON, more than any other type has. */
WS_TILE void NAME(conv_tile)(const int pixels, const int vectors, REAL *out, const long out_pixel, const REAL *x,
                               const long x_pixel, const int rows, const long x_row, const int runs, const long x_run,
                               const int length, const REAL *w) {
  V sum[12][8];
#pragma GCC unroll 12
  for (int i = 0; i < pixels; i++)
#pragma GCC unroll 8
    for (int v = 0; v < vectors; v++) sum[i][v] = (V){0};
  for (int r = 0; r < rows; r++)
    for (int q = 0; q < runs; q++) {
      const REAL *at = x + r * x_row + q * x_run;
      for (int k = 0; k < length; k++, at++, w += vectors * WIDTH) {
        V y[8];
#pragma GCC unroll 8
        for (int v = 0; v < vectors; v++) y[v] = *(const LOOSE *)(w + v * WIDTH);
#pragma GCC unroll 12
        for (int i = 0; i < pixels; i++) NAME(spread)(sum[i], at + i * x_pixel, y, vectors);
      }
    }
#pragma GCC unroll 12
  for (int i = 0; i < pixels; i++)
#pragma GCC unroll 8
    for (int v = 0; v < vectors; v++) *(LOOSE *)(out + i * out_pixel + v * WIDTH) = sum[i][v];
}

/* A row of `count` pixels, in tiles whose sizes differ by at most one pixel. */
WS_TILE void NAME(conv_row)(const int count, const int columns, REAL *out, const long out_pixel, const REAL *x,
                              const long x_pixel, const int rows, const long x_row, const int runs, const long x_run,
                              const int length, const REAL *w) {
  const int vectors = columns / WIDTH;
  const int most = REGISTERS / vectors < 12 ? REGISTERS / vectors : 12;
  const int tiles = (count + most - 1) / most, size = (count + tiles - 1) / tiles, large = count - tiles * (size - 1);
  for (int t = 0; t < large; t++, out += size * out_pixel, x += size * x_pixel)
    NAME(conv_tile)(size, vectors, out, out_pixel, x, x_pixel, rows, x_row, runs, x_run, length, w);
  for (int t = large; t < tiles; t++, out += (size - 1) * out_pixel, x += (size - 1) * x_pixel)
    NAME(conv_tile)(size - 1, vectors, out, out_pixel, x, x_pixel, rows, x_row, runs, x_run, length, w);
}

/* Depthwise convolution, every channel with its own kernel: out[pixel][c] = sum of x[... + pixel*x_pixel + c] *
   w[row][run][c], for `pixels` pixels, which share each load of w. */
WS_TILE void NAME(depth_tile)(const int pixels, const int vectors, REAL *out, const long out_pixel, const REAL *x,
                                const long x_pixel, const int rows, const long x_row, const int runs, const long x_run,
                                const REAL *w) {
  V sum[8][8];
#pragma GCC unroll 8
  for (int i = 0; i < pixels; i++)
#pragma GCC unroll 8
    for (int v = 0; v < vectors; v++) sum[i][v] = (V){0};
  for (int r = 0; r < rows; r++)
    for (int q = 0; q < runs; q++, w += vectors * WIDTH) {
      const REAL *at = x + r * x_row + q * x_run;
      V y[8];
#pragma GCC unroll 8
      for (int v = 0; v < vectors; v++) y[v] = *(const LOOSE *)(w + v * WIDTH);
#pragma GCC unroll 8
      for (int i = 0; i < pixels; i++)
#pragma GCC unroll 8
        for (int v = 0; v < vectors; v++) NAME(fma_at)(&sum[i][v], y[v], at + i * x_pixel + v * WIDTH);
    }
#pragma GCC unroll 8
  for (int i = 0; i < pixels; i++)
#pragma GCC unroll 8
    for (int v = 0; v < vectors; v++) *(LOOSE *)(out + i * out_pixel + v * WIDTH) = sum[i][v];
}

WS_TILE void NAME(depth_row)(const int count, const int columns, REAL *out, const long out_pixel, const REAL *x,
                               const long x_pixel, const int rows, const long x_row, const int runs, const long x_run,
                               const REAL *w) {
  const int vectors = columns / WIDTH;
  const int most = REGISTERS / vectors < 8 ? REGISTERS / vectors : 8;
  const int tiles = (count + most - 1) / most, size = (count + tiles - 1) / tiles, large = count - tiles * (size - 1);
  for (int t = 0; t < large; t++, out += size * out_pixel, x += size * x_pixel)
    NAME(depth_tile)(size, vectors, out, out_pixel, x, x_pixel, rows, x_row, runs, x_run, w);
  for (int t = large; t < tiles; t++, out += (size - 1) * out_pixel, x += (size - 1) * x_pixel)
    NAME(depth_tile)(size - 1, vectors, out, out_pixel, x, x_pixel, rows, x_row, runs, x_run, w);
}

/* into[j][v*WIDTH + l] += sum over the pixels of g[pixel*g_pixel + j*g_channel] * x[pixel*x_pixel + v*WIDTH + l]. */
WS_TILE void NAME(weight_tile)(const int outputs, const int vectors, REAL *into, const long into_output,
                                 const REAL *g, const long g_row, const long g_pixel, const long g_channel, const REAL *x, const long x_row,
                                 const long x_pixel, const int height, const int width) {
  V sum[8][3];
#pragma GCC unroll 8
  for (int j = 0; j < outputs; j++)
#pragma GCC unroll 3
    for (int v = 0; v < vectors; v++) sum[j][v] = (V){0};
  for (int i = 0; i < height; i++, g += g_row, x += x_row) {
    const REAL *gp = g, *xp = x;
    for (int p = 0; p < width; p++, gp += g_pixel, xp += x_pixel) {
      V y[3];
#pragma GCC unroll 3
      for (int v = 0; v < vectors; v++) y[v] = *(const LOOSE *)(xp + v * WIDTH);
#pragma GCC unroll 8
      for (int j = 0; j < outputs; j++) NAME(spread)(sum[j], gp + j * g_channel, y, vectors);
    }
  }
#pragma GCC unroll 8
  for (int j = 0; j < outputs; j++)
#pragma GCC unroll 3
    for (int v = 0; v < vectors; v++) {
      LOOSE *to = (LOOSE *)(into + j * into_output + v * WIDTH);
      *to = *to + sum[j][v];
    }
}

/* into[j][v*WIDTH + l] = sum over the images, one after the other, of the sums over their pixels, as above. */
WS_TILE void NAME(weight_of_images)(const int outputs, const int vectors, REAL *into, const long into_output, const long images,
                                      const REAL *g, const long g_image, const long g_row, const long g_pixel,
                                      const long g_channel, const REAL *x, const long x_image, const long x_row,
                                      const long x_pixel, const int height, const int width) {
  V total[4][3];
#pragma GCC unroll 4
  for (int j = 0; j < outputs; j++)
#pragma GCC unroll 3
    for (int v = 0; v < vectors; v++) total[j][v] = (V){0};
  for (long n = 0; n < images; n++, g += g_image, x += x_image) {
    V sum[4][3];
#pragma GCC unroll 4
    for (int j = 0; j < outputs; j++)
#pragma GCC unroll 3
      for (int v = 0; v < vectors; v++) sum[j][v] = (V){0};
    for (int i = 0; i < height; i++) {
      const REAL *gp = g + i * g_row, *xp = x + i * x_row;
      for (int p = 0; p < width; p++, gp += g_pixel, xp += x_pixel) {
        V y[3];
#pragma GCC unroll 3
        for (int v = 0; v < vectors; v++) y[v] = *(const LOOSE *)(xp + v * WIDTH);
#pragma GCC unroll 4
        for (int j = 0; j < outputs; j++) NAME(spread)(sum[j], gp + j * g_channel, y, vectors);
      }
    }
#pragma GCC unroll 4
    for (int j = 0; j < outputs; j++)
#pragma GCC unroll 3
      for (int v = 0; v < vectors; v++) total[j][v] = total[j][v] + sum[j][v];
  }
#pragma GCC unroll 4
  for (int j = 0; j < outputs; j++)
#pragma GCC unroll 3
    for (int v = 0; v < vectors; v++) *(LOOSE *)(into + j * into_output + v * WIDTH) = total[j][v];
}

/* One row of kernel taps of a weight's gradient: `length` elements for each of `outputs` outputs, in vectors. */
WS_TILE void NAME(weight_row)(const int outputs, const int length, REAL *into, const long into_output, const REAL *g,
                                const long g_row, const long g_pixel, const long g_channel, const REAL *x, const long x_row,
                                const long x_pixel, const int height, const int width) {
  const int vectors = (length + WIDTH - 1) / WIDTH;
  for (int v = 0; v + 3 <= vectors; v += 3)
    NAME(weight_tile)(outputs, 3, into + v * WIDTH, into_output, g, g_row, g_pixel, g_channel, x + v * WIDTH, x_row, x_pixel,
                      height, width);
  const int done = vectors / 3 * 3;
  if (vectors > done)
    NAME(weight_tile)(outputs, vectors - done, into + done * WIDTH, into_output, g, g_row, g_pixel, g_channel, x + done * WIDTH,
                      x_row, x_pixel, height, width);
}

/* Depthwise, every channel with its own kernel: into[row][tap][c] += sum over the pixels of
   g[pixel*g_pixel + c] * x[pixel*x_pixel + row*x_tap_row + tap*x_tap + c], for rows*taps of its taps. */
WS_TILE void NAME(depth_weight_tile)(const int rows, const int taps, const int vectors, REAL *into, const long into_row,
                                       const REAL *g, const long g_row, const long g_pixel, const REAL *x,
                                       const long x_tap_row, const long x_tap, const long x_row, const long x_pixel,
                                       const int height, const int width) {
  V sum[24];
#pragma GCC unroll 24
  for (int s = 0; s < rows * taps * vectors; s++) sum[s] = (V){0};
  for (int i = 0; i < height; i++, g += g_row, x += x_row) {
    const REAL *gp = g, *xp = x;
    for (int p = 0; p < width; p++, gp += g_pixel, xp += x_pixel) {
      V y[8];
#pragma GCC unroll 8
      for (int v = 0; v < vectors; v++) y[v] = *(const LOOSE *)(gp + v * WIDTH);
#pragma GCC unroll 24
      for (int s = 0; s < rows * taps * vectors; s++)
        NAME(fma_at)(&sum[s], y[s % vectors],
                     xp + s / (taps * vectors) * x_tap_row + s / vectors % taps * x_tap + s % vectors * WIDTH);
    }
  }
#pragma GCC unroll 24
  for (int s = 0; s < rows * taps * vectors; s++) {
    LOOSE *to = (LOOSE *)(into + s / (taps * vectors) * into_row + s % (taps * vectors) * WIDTH);
    *to = *to + sum[s];
  }
}

/* All taps of `columns` channels, as many at once as fit into the registers. */
WS_TILE void NAME(depth_weight)(const int rows, const int taps, const int columns, REAL *into, const REAL *g,
                                  const long g_row, const long g_pixel, const REAL *x, const long x_tap_row, const long x_tap,
                                  const long x_row, const long x_pixel, const int height, const int width) {
  const int vectors = columns / WIDTH, most = REGISTERS / vectors, some = taps < most ? taps : most;
  const int together = most / some < rows ? most / some : rows;
  const long into_row = taps * columns;
  for (int k = 0; k < taps; k += some)
    for (int r = 0; r < rows; r += together) {
      REAL *to = into + r * into_row + k * columns;
      const REAL *from = x + r * x_tap_row + k * x_tap;
      if (k + some <= taps && r + together <= rows)
        NAME(depth_weight_tile)(together, some, vectors, to, into_row, g, g_row, g_pixel, from, x_tap_row, x_tap, x_row,
                                x_pixel, height, width);
      else if (k + some <= taps)
        NAME(depth_weight_tile)(rows % together, some, vectors, to, into_row, g, g_row, g_pixel, from, x_tap_row, x_tap,
                                x_row, x_pixel, height, width);
      else
        NAME(depth_weight_tile)(1, taps % some, vectors, to, into_row, g, g_row, g_pixel, from, x_tap_row, x_tap, x_row,
                                x_pixel, height, width);
    }
}

/* Weight gradient through a max pool whose windows do not overlap: every pooled cell has one gradient, and the position
   of its maximum.

   into[j][r][v*WIDTH + l] += sum over the cells of g[cell + j*g_channel] * x[cell + offsets[index[cell][j]] + r*x_row + v*WIDTH + l]
   for `outputs` neighbouring outputs; a cell of index has `stride` elements. */
WS_TILE void NAME(pooled_weight_tile)(const int outputs, const int rows, const int vectors, REAL *into,
                                        const long into_output, const long into_row, const REAL *g,
                                        const long g_row, const long g_pixel, const long g_channel, const INDEX *index, const long stride, const REAL *x, const long x_row,
                                        const int height, const int width, const long cell_row, const long cell,
                                        const int *offsets) {
  V sum[2][12];
#pragma GCC unroll 2
  for (int j = 0; j < outputs; j++)
#pragma GCC unroll 12
    for (int s = 0; s < rows * vectors; s++) sum[j][s] = (V){0};
  for (int i = 0; i < height; i++, x += cell_row, g += g_row) {
    const REAL *at = x, *gp = g;
    for (int p = 0; p < width; p++, at += cell, gp += g_pixel, index += stride) {
#pragma GCC unroll 2
      for (int j = 0; j < outputs; j++) {
        const REAL *from = at + offsets[index[j]];
        const V gradient = NAME(all)(gp + j * g_channel);
#pragma GCC unroll 12
        for (int s = 0; s < rows * vectors; s++)
          NAME(fma_at)(&sum[j][s], gradient, from + s / vectors * x_row + s % vectors * WIDTH);
      }
    }
  }
#pragma GCC unroll 2
  for (int j = 0; j < outputs; j++)
#pragma GCC unroll 12
    for (int s = 0; s < rows * vectors; s++) {
      LOOSE *to = (LOOSE *)(into + j * into_output + s / vectors * into_row + s % vectors * WIDTH);
      *to = *to + sum[j][s];
    }
}

/* out[r][v*WIDTH + l] += sum over `outputs` outputs j of g[j*g_channel] * w[j][shifts[index[j]] + r*w_row + v*WIDTH +
   l]: the gradient of one cell in the part of the image that its windows read.  w is zero-padded, so a shift needs no
   bounds check. */
WS_TILE void NAME(pooled_input_tile)(const int rows, const int vectors, REAL *out, const long out_row, const REAL *g,
                                       const long g_channel, const INDEX *index, const int outputs, const REAL *w, const long w_output,
                                       const long w_row, const int *shifts) {
  V sum[24];
#pragma GCC unroll 24
  for (int s = 0; s < rows * vectors; s++) sum[s] = (V){0};
  for (int j = 0; j < outputs; j++, w += w_output) {
    const REAL *from = w + shifts[index[j]];
    const V gradient = NAME(all)(g + j * g_channel);
#pragma GCC unroll 24
    for (int s = 0; s < rows * vectors; s++)
      NAME(fma_at)(&sum[s], gradient, from + s / vectors * w_row + s % vectors * WIDTH);
  }
#pragma GCC unroll 24
  for (int s = 0; s < rows * vectors; s++) {
    LOOSE *to = (LOOSE *)(out + s / vectors * out_row + s % vectors * WIDTH);
    *to = *to + sum[s];
  }
}
/* All kernel rows of `outputs` outputs, as many at a time as fit into the registers. */
WS_TILE void NAME(pooled_weight)(const int outputs, const int rows, const int length, REAL *into,
                                   const long into_output, const long into_row, const REAL *g, const long g_row,
                                   const long g_pixel, const long g_channel, const INDEX *index, const long stride, const REAL *x, const long x_row, const int height,
                                   const int width, const long cell_row, const long cell, const int *offsets) {
  const int vectors = (length + WIDTH - 1) / WIDTH, most = 12 / outputs;
  const int part = vectors < most ? vectors : most, group = most / part;
  for (int v = 0; v < vectors; v += part) {
    const int left = vectors - v < part ? vectors - v : part;
    for (int r = 0; r < rows; r += group) {
      const int tall = rows - r < group ? rows - r : group;
      REAL *to = into + r * into_row + v * WIDTH;
      const REAL *from = x + r * x_row + v * WIDTH;
      if (tall == group && left == part)
        NAME(pooled_weight_tile)(outputs, group, part, to, into_output, into_row, g, g_row, g_pixel, g_channel, index, stride, from, x_row, height,
                                 width, cell_row, cell, offsets);
      else if (left == part)
        NAME(pooled_weight_tile)(outputs, rows % group, part, to, into_output, into_row, g, g_row, g_pixel, g_channel, index, stride, from, x_row,
                                 height, width, cell_row, cell, offsets);
      else if (tall == group)
        NAME(pooled_weight_tile)(outputs, group, vectors % part, to, into_output, into_row, g, g_row, g_pixel, g_channel, index, stride, from,
                                 x_row, height, width, cell_row, cell, offsets);
      else
        NAME(pooled_weight_tile)(outputs, rows % group, vectors % part, to, into_output, into_row, g, g_row, g_pixel, g_channel, index, stride,
                                 from, x_row, height, width, cell_row, cell, offsets);
    }
  }
}

/* All rows of one cell's contribution. */
WS_TILE void NAME(pooled_input)(const int rows, const int length, REAL *out, const long out_row, const REAL *g,
                                  const long g_channel, const INDEX *index, const int outputs, const REAL *w, const long w_output,
                                  const long w_row, const int *shifts) {
  const int vectors = (length + WIDTH - 1) / WIDTH, part = vectors < 12 ? vectors : 12, group = 12 / part;
  for (int v = 0; v < vectors; v += part) {
    const int left = vectors - v < part ? vectors - v : part;
    for (int r = 0; r < rows; r += group) {
      const int tall = rows - r < group ? rows - r : group;
      REAL *to = out + r * out_row + v * WIDTH;
      const REAL *from = w + r * w_row + v * WIDTH;
      if (tall == group && left == part)
        NAME(pooled_input_tile)(group, part, to, out_row, g, g_channel, index, outputs, from, w_output, w_row, shifts);
      else if (left == part)
        NAME(pooled_input_tile)(rows % group, part, to, out_row, g, g_channel, index, outputs, from, w_output, w_row, shifts);
      else if (tall == group)
        NAME(pooled_input_tile)(group, vectors % part, to, out_row, g, g_channel, index, outputs, from, w_output, w_row, shifts);
      else
        NAME(pooled_input_tile)(rows % group, vectors % part, to, out_row, g, g_channel, index, outputs, from, w_output, w_row,
                                shifts);
    }
  }
}
#include "conv_winograd.h"
#undef V
#undef LOOSE
#undef WIDTH
#undef REGISTERS
