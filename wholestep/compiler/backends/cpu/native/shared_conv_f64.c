/* shared_conv.c for doubles. */
#include "conv_f64.h"
#include "shared_frames.h"
WS_SHARED_FRAMES(double, f64)

static void ws_turn_lanes(double *to, const double *from, const int depth, const long lane) {
  for (int k = 0; k < depth; k++)
    for (int l = 0; l < 16; l++) to[k * 16 + l] = from[l * lane + k];
}
WS_SHARED_PACK(double, f64, ws_turn_lanes)
