/* Winograd's F(2x2, 3x3): 3 x 3 convolutions with four products per pixel instead of nine; conv_tile.h includes it.

   A tile is 2 x 2 pixels of the result and the 4 x 4 pixels of the frame that they depend on.  Along each dimension the
   frame's values d and the weights w are transformed to four values each, whose products m give both pixels:
     d0 - d2, d1 + d2, d2 - d1, d1 - d3;   w0, (w0 + w1 + w2)/2, (w0 - w1 + w2)/2, w2;   m0 + m1 + m2, m1 - m2 - m3.
   Each of the 16 positions is one product over the channels, computed by ordinary register tiles.  The weight's
   gradient is the adjoint of all this.  Layouts: [position][tile][channel], channels padded to full vectors.
   Bits: the transforms fix the order of additions; a weight's sum is one chain over the tiles of a block. */

/* The transforms of d, w and m above along one dimension; `to` and `from` must not overlap. */
WS_TILE void NAME(winograd_in)(V *to, const V *from) {
  to[0] = from[0] - from[2], to[1] = from[1] + from[2], to[2] = from[2] - from[1], to[3] = from[1] - from[3];
}
WS_TILE void NAME(winograd_kernel)(V *to, const V *from) {
  const V outer = (from[0] + from[2]) * (REAL)0.5, middle = from[1] * (REAL)0.5;
  to[0] = from[0], to[1] = outer + middle, to[2] = outer - middle, to[3] = from[2];
}
WS_TILE void NAME(winograd_out)(V *to, const V *from) {
  to[0] = from[0] + from[1] + from[2], to[1] = from[1] - from[2] - from[3];
}
/* The adjoints of the last two transforms. */
WS_TILE void NAME(winograd_spread)(V *to, const V *from) {
  to[0] = from[0], to[1] = from[0] + from[1], to[2] = from[0] - from[1], to[3] = -from[1];
}
WS_TILE void NAME(winograd_fold)(V *to, const V *from) {
  const V sum = (from[1] + from[2]) * (REAL)0.5;
  to[0] = from[0] + sum, to[1] = (from[1] - from[2]) * (REAL)0.5, to[2] = sum + from[3];
}

/* Transform weights w[tap][k] to u[position][k], for `step` values of k. */
WS_APART void NAME(winograd_weights)(REAL *u, const REAL *w, const long step) {
  for (long k = 0; k < step; k += WIDTH) {
    V down[3][4], across[4];
    for (int j = 0; j < 3; j++) {
      V taps[3];
      for (int i = 0; i < 3; i++) taps[i] = *(const LOOSE *)(w + (i * 3 + j) * step + k);
      NAME(winograd_kernel)(down[j], taps);
    }
    for (int i = 0; i < 4; i++) {
      const V taps[3] = {down[0][i], down[1][i], down[2][i]};
      NAME(winograd_kernel)(across, taps);
      for (int j = 0; j < 4; j++) *(LOOSE *)(u + (i * 4 + j) * step + k) = across[j];
    }
  }
}

/* Transform `count` adjacent tiles of an image to v[position][tile][channel]; a tile has `padded` channels. */
WS_APART void NAME(winograd_image)(REAL *v, const long position, const REAL *x, const long row, const int channels,
                                    const int padded, const int count) {
  for (int c = 0; c < padded; c += WIDTH) {
    V down[4][4];
    for (int t = 0; t < count; t++) {
      const REAL *from = x + t * 2 * channels + c;
#pragma GCC unroll 4
      for (int j = 0; j < 4; j++) {
        if (t && j < 2) { /* these columns were transformed for the previous tile */
          for (int i = 0; i < 4; i++) down[j][i] = down[j + 2][i];
          continue;
        }
        V d[4];
        for (int i = 0; i < 4; i++) d[i] = *(const LOOSE *)(from + i * row + j * channels);
        NAME(winograd_in)(down[j], d);
      }
#pragma GCC unroll 4
      for (int i = 0; i < 4; i++) {
        const V d[4] = {down[0][i], down[1][i], down[2][i], down[3][i]};
        V across[4];
        NAME(winograd_in)(across, d);
        for (int j = 0; j < 4; j++) *(LOOSE *)(v + (i * 4 + j) * position + (long)t * padded + c) = across[j];
      }
    }
  }
}

/* Transform m[position][tile][column] back to two rows of pixels with `columns` channels each. */
WS_APART void NAME(winograd_pixels)(REAL *out, const long out_row, const REAL *m, const long position, const int columns,
                                     const int count) {
  for (int t = 0; t < count; t++)
    for (int c = 0; c < columns; c += WIDTH) {
      V down[4][2];
#pragma GCC unroll 4
      for (int j = 0; j < 4; j++) {
        V d[4];
        for (int i = 0; i < 4; i++) d[i] = *(const LOOSE *)(m + (i * 4 + j) * position + (long)t * columns + c);
        NAME(winograd_out)(down[j], d);
      }
#pragma GCC unroll 2
      for (int i = 0; i < 2; i++) {
        const V d[4] = {down[0][i], down[1][i], down[2][i], down[3][i]};
        V across[2];
        NAME(winograd_out)(across, d);
        for (int j = 0; j < 2; j++) *(LOOSE *)(out + i * out_row + (t * 2L + j) * columns + c) = across[j];
      }
    }
}

/* Transform the gradient of `count` adjacent tiles to v[position][tile][channel]: the adjoint of winograd_pixels. */
WS_APART void NAME(winograd_gradient)(REAL *v, const long position, const int tile, const REAL *g, const long row,
                                       const long pixel, const int channels, const int count) {
  for (int t = 0; t < count; t++)
    for (int c = 0; c < channels; c += WIDTH) {
      V down[2][4];
#pragma GCC unroll 2
      for (int j = 0; j < 2; j++) {
        V d[2];
        for (int i = 0; i < 2; i++) d[i] = *(const LOOSE *)(g + i * row + (t * 2L + j) * pixel + c);
        NAME(winograd_spread)(down[j], d);
      }
#pragma GCC unroll 4
      for (int i = 0; i < 4; i++) {
        const V d[2] = {down[0][i], down[1][i]};
        V across[4];
        NAME(winograd_spread)(across, d);
        for (int j = 0; j < 4; j++) *(LOOSE *)(v + (i * 4 + j) * position + (long)t * tile + c) = across[j];
      }
    }
}

/* sums[output][channel] += sum over the tiles of g[tile][output] * x[tile][channel], for 8 outputs and one position:
   one chain over `count` tiles. */
WS_TILE void NAME(winograd_products)(const int channels, REAL *sums, const REAL *g, const int g_tile, const REAL *x,
                                      const int count) {
  const int vectors = channels / WIDTH, part = vectors % 2 ? vectors % 3 ? 1 : 3 : 2;
  const int outputs = REGISTERS / part < 8 ? 4 : 8;
  for (int v = 0; v < vectors; v += part)
    for (int o = 0; o < 8; o += outputs)
      NAME(weight_tile)(outputs, part, sums + o * 16 * channels + v * WIDTH, 16 * channels, g + o, 0, g_tile, 1,
                        x + v * WIDTH, 0, channels, 1, count);
}

/* Transform the sums of one output back to its weight's gradient, [tap][channel]: the adjoint of winograd_weights. */
WS_APART void NAME(winograd_taps)(REAL *to, const REAL *sums, const int channels, const int padded) {
  for (int c = 0; c < channels; c += WIDTH) {
    V down[4][3], taps[3];
    for (int j = 0; j < 4; j++) {
      V d[4];
      for (int i = 0; i < 4; i++) d[i] = *(const LOOSE *)(sums + (i * 4 + j) * padded + c);
      NAME(winograd_fold)(down[j], d);
    }
    for (int i = 0; i < 3; i++) {
      const V d[4] = {down[0][i], down[1][i], down[2][i], down[3][i]};
      NAME(winograd_fold)(taps, d);
      for (int j = 0; j < 3; j++)
        for (int l = 0; l < WIDTH && c + l < channels; l++) to[(i * 3 + j) * channels + c + l] = taps[j][l];
    }
  }
}
