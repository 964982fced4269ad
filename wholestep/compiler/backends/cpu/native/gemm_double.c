/* GEMM of doubles: a separate library, built when a plan first needs it. */
#define WS_DOUBLE
#include "gemm.c"

/* Register the product of doubles in the library's function table. */
WS_EXPORT void ws_add_double(ws_api *table) { table->gemm_f64 = ws_gemm_f64; }
