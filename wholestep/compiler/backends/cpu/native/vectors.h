/* Which vectors and instructions kernels use: AVX2 and AVX-512, NEON, or none (WS_PORTABLE, the same on every
   processor).  Only the folders x86/ and arm64/ contain inline assembly.

   WS_WIDE, WS_NARROW  bytes of the vectors of convolutions for 16 and for 8 channels
   WS_FMA              defined: a multiply-add is one instruction, which rounds once
   WS_PAIR_DOT         defined: an instruction adds the dot product of two pairs of bfloat16 to a float */
#ifndef WS_VECTORS_H
#define WS_VECTORS_H
#if !defined(WS_PORTABLE) && defined(__AVX2__) && defined(__FMA__)
#define WS_AVX 1
#define WS_FMA 1
#ifdef __AVX512BF16__
#define WS_PAIR_DOT 1
#endif
#ifdef __AVX512F__
#define WS_WIDE 64
#else
#define WS_WIDE 32
#endif
#define WS_NARROW 32
#elif !defined(WS_PORTABLE) && defined(__aarch64__)
#define WS_NEON 1
#ifdef __ARM_FEATURE_BF16_VECTOR_ARITHMETIC
#define WS_PAIR_DOT 1
#endif
#define WS_FMA 1
#define WS_WIDE 16
#define WS_NARROW 16
#else
#define WS_WIDE 32 /* compilers divide them into the vectors that the processor has */
#define WS_NARROW 32
#endif
#endif
