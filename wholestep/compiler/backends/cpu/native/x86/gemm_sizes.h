/* Sizes of tiles and blocks for AVX2 and AVX-512: part of gemm.c.  Measured on Zen 3 and Zen 4. */
#ifdef __AVX512F__
enum {
  BYTES = 64,                                         /* bytes of a vector */
  ROWS = 12,                                          /* largest tile: 24 accumulators, 2 of B, 6 spare registers */
  K_BLOCK = 1024,                                     /* 128 KiB of B in L2: a tile reads 128 bytes in 24 cycles */
  BLOCK_ROWS = 48,                                    /* a block of A takes 192 KiB of L2 */
  PACKS_B = 0,                                        /* packing B took 3-10 % longer on Zen 4 with all strides */
  PACKS_BLOCKS = 1,                                   /* a transposed A is packed 48 rows at a time: [k][48] */
  PACK_A_STRIDE = 2048, PACK_A_STEP = 1024            /* bytes: such strides map to few sets of L1; 80 -> 98 GFLOP/s */
};
#define ALWAYS_MASKED 1 /* masks have their own registers and cost nothing */
#define EACH_ROWS(X, ...) \
  X(1, __VA_ARGS__) X(2, __VA_ARGS__) X(3, __VA_ARGS__) X(4, __VA_ARGS__) X(5, __VA_ARGS__) X(6, __VA_ARGS__) \
  X(7, __VA_ARGS__) X(8, __VA_ARGS__) X(9, __VA_ARGS__) X(10, __VA_ARGS__) X(11, __VA_ARGS__) X(12, __VA_ARGS__)
#else
enum {
  BYTES = 32,
  ROWS = 6,                                           /* registers of a tile: 12 accumulators, 2 of B, 1 of A */
  K_BLOCK = 256,                                      /* a panel of B takes 16 KiB of L1 (float) */
  BLOCK_ROWS = 144,                                   /* a block of A has 144 rows x K_BLOCK, in L2 */
  PACKS_B = 1,
  PACKS_BLOCKS = 0,                                   /* a transposed A is packed tile by tile: [k][8] */
  PACK_A_STRIDE = 1024, PACK_A_STEP = sizeof(float)
};
#define ALWAYS_MASKED 0
#define EACH_ROWS(X, ...) \
  X(1, __VA_ARGS__) X(2, __VA_ARGS__) X(3, __VA_ARGS__) X(4, __VA_ARGS__) X(5, __VA_ARGS__) X(6, __VA_ARGS__)
#endif
