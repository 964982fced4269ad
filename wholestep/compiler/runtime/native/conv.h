/* Convolutions and their adjoints, for the shapes of one plan: see conv_tile.h. */
#ifndef WS_CONV_H
#define WS_CONV_H
#include "ws.h"

#define WS_INLINE static inline __attribute__((always_inline))
#ifdef __AVX512F__
#define WS_WIDE 64
#else
#define WS_WIDE 32
#endif
#define INDEX uint8_t

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
#endif
