/* What kernels of most plans call. */
#include "ws.h"
#include "reduce.h"
WS_COLUMNS(, f32, float)
