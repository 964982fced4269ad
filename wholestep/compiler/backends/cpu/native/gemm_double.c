/* The products of doubles.  A file of its own: a compiler works on both side by side, and a first start waits for it. */
#define WS_DOUBLE
#include "gemm.c"
