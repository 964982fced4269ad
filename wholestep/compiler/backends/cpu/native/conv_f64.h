/* conv.h for doubles: the same tiles and copies.  A separate header because few plans use them. */
#ifndef WS_CONV_F64_H
#define WS_CONV_F64_H
#include "conv.h"

#define REAL double
#define REAL_BYTES 8
#define NAME(x) ws_##x##_f64_wide
#define BYTES WS_WIDE
#include "conv_tile.h"
#undef NAME
#undef BYTES
#define NAME(x) ws_##x##_f64_narrow
#define BYTES WS_NARROW
#include "conv_tile.h"
#undef NAME
#undef BYTES
#undef REAL
#undef REAL_BYTES

WS_WINDOWS(double, f64)
WS_POOLS(double, f64, uint8_t, u8)
WS_POOLS(double, f64, int32_t, i32)
#endif
