/* Definitions of the frames and packed weights that conv.h declares, for one element type: shared_conv*.c include it once per
   machine, as copies in every plan would take gcc longer than the kernels.  Invariant: strides are in elements, and frames
   have their channels last. */
#define WS_SHARED_FRAMES(REAL, suffix) \
  void ws_frame_##suffix(REAL *frame, const REAL *x, int height, int width, int channels, long row, long x_row, \
                         long x_pixel) { \
    const int together = x_pixel == channels, pixels = together ? 1 : width, run = together ? width * channels : channels; \
    for (int i = 0; i < height; i++) \
      for (int j = 0; j < pixels; j++) { \
        REAL *restrict to = frame + i * row + (long)j * channels; \
        const REAL *restrict from = x + i * x_row + j * x_pixel; \
        for (int c = 0; c < run; c++) to[c] = from[c]; \
      } \
  } \
  void ws_clear_##suffix(REAL *to, long count) { \
    for (long i = 0; i < count; i++) to[i] = 0; \
  }

/* Full panels of 16 lanes are transposed, copied or gathered; partial ones are copied element by element. */
#define WS_SHARED_PACK(REAL, suffix, turn) \
  void ws_pack_##suffix(REAL *to, const REAL *w, int outputs, int lanes, int rows, const int *tap_rows, int columns, \
                        const int *tap_columns, int depth, long w_output, long w_row, long w_column, long w_k) { \
    for (int p = 0; p < outputs; p += lanes) \
      for (int r = 0; r < rows; r++) \
        for (int c = 0; c < columns; c++, to += (long)depth * lanes) { \
          const REAL *from = w + tap_rows[r] * w_row + tap_columns[c] * w_column + p * w_output; \
          if (lanes != 16 || p + 16 > outputs) { \
            for (int k = 0; k < depth; k++) \
              for (int l = 0; l < lanes; l++) to[k * lanes + l] = p + l < outputs ? from[k * w_k + l * w_output] : 0; \
          } else if (w_k == 1) { \
            turn(to, from, depth, w_output); \
          } else if (w_output == 1) { \
            for (int k = 0; k < depth; k++) \
              for (int l = 0; l < 16; l++) to[k * 16 + l] = from[k * w_k + l]; \
          } else { \
            for (int k = 0; k < depth; k++) \
              for (int l = 0; l < 16; l++) to[k * 16 + l] = from[k * w_k + l * w_output]; \
          } \
        } \
  }
