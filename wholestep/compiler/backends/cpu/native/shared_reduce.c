/* Column reductions that kernels of most plans share, compiled once per machine. */
#include "ws.h"
#include "reduce.h"
WS_COLUMNS(, f32, float)
