/* Primitives of generated kernels: pointwise functions with NumPy's semantics, casts, vector loads, Philox random
   numbers, and warp and block reductions in a fixed order.  Plain CUDA C++ without includes, so that NVRTC needs no
   headers.  The emulation in the tests compiles the same text with a C++ compiler; what only a GPU has is in gpu.h. */
typedef unsigned char ws_byte;
typedef unsigned short ws_half;
typedef unsigned int ws_word;
typedef unsigned long long ws_long_word;
#define WS_INLINE static __device__ __forceinline__
#define WS_PART __device__ __forceinline__
#define WS_ALL 0xffffffffu

/* Record of a step, in device memory: no kernel and no captured graph contains a size or a learning rate. */
struct ws_step {
  ws_long_word seed, step;
  long long position, rows; /* in an epoch: first row of the update, number of its rows */
  long long dims[16];
  double slots[1]; /* as many slots as the plan has */
};

/* Address table of a fused launch: the buffers of all of its kernels. */
template <int COUNT> struct ws_given {
  void *at[COUNT];
};

WS_INLINE float ws_inf(float) { return __uint_as_float(0x7f800000u); }
WS_INLINE double ws_inf(double) { return __longlong_as_double(0x7ff0000000000000ll); }
WS_INLINE float ws_nan(float) { return __uint_as_float(0x7fc00000u); }
WS_INLINE double ws_nan(double) { return __longlong_as_double(0x7ff8000000000000ll); }

/* -- pointwise ---------------------------------------------------------------------------------------------------- */
#define WS_FLOAT_FUNCTIONS(real, f)                                                                                    \
  WS_INLINE real ws_exp(real x) { return exp##f(x); }                                                                  \
  WS_INLINE real ws_exp2(real x) { return exp2##f(x); }                                                                \
  WS_INLINE real ws_expm1(real x) { return expm1##f(x); }                                                              \
  WS_INLINE real ws_log(real x) { return log##f(x); }                                                                  \
  WS_INLINE real ws_log2(real x) { return log2##f(x); }                                                                \
  WS_INLINE real ws_log1p(real x) { return log1p##f(x); }                                                              \
  WS_INLINE real ws_sin(real x) { return sin##f(x); }                                                                  \
  WS_INLINE real ws_cos(real x) { return cos##f(x); }                                                                  \
  WS_INLINE real ws_sqrt(real x) { return sqrt##f(x); }                                                                \
  WS_INLINE real ws_erf(real x) { return erf##f(x); }                                                                  \
  WS_INLINE real ws_atan(real x) { return atan##f(x); }                                                                \
  WS_INLINE real ws_tanh(real x) { return tanh##f(x); }                                                                \
  WS_INLINE real ws_floor(real x) { return floor##f(x); }                                                              \
  WS_INLINE real ws_pow(real x, real y) { return pow##f(x, y); }                                                       \
  WS_INLINE real ws_abs(real x) { return fabs##f(x); }                                                                 \
  WS_INLINE real ws_sigmoid(real x) { return (real)1 / ((real)1 + exp##f(-x)); }                                       \
  WS_INLINE real ws_sign(real x) { return x > 0 ? (real)1 : x < 0 ? (real)-1 : x == 0 ? (real)0 : x; }                 \
  /* NaN wins, as in numpy.maximum */                                                                                  \
  WS_INLINE real ws_max(real x, real y) { return ws_larger(x, y); }                                                    \
  WS_INLINE real ws_min(real x, real y) { return (x <= y) | (x != x) ? x : y; }                                        \
  /* Result has the divisor's sign, as in Python */                                                                    \
  WS_INLINE real ws_mod(real x, real y) {                                                                              \
    real r = fmod##f(x, y);                                                                                            \
    return r == 0 ? copysign##f((real)0, y) : (r < 0) != (y < 0) ? r + y : r;                                          \
  }                                                                                                                    \
  WS_INLINE real ws_add(real x, real y) { return x + y; }                                                              \
  WS_INLINE real ws_sub(real x, real y) { return x - y; }                                                              \
  WS_INLINE real ws_mul(real x, real y) { return x * y; }                                                              \
  WS_INLINE real ws_neg(real x) { return -x; }                                                                         \
  WS_INLINE real ws_lowest(real x) { return -ws_inf(x); }                                                              \
  /* Conversions to integers saturate, NaN becomes 0. */                                                               \
  WS_INLINE int ws_to_i32(real x) {                                                                                    \
    return x != x ? 0 : x <= (real)-2147483648.0 ? -2147483647 - 1 : x >= (real)2147483648.0 ? 2147483647 : (int)x;    \
  }                                                                                                                    \
  WS_INLINE long long ws_to_i64(real x) {                                                                              \
    return x != x                              ? 0                                                                     \
           : x <= (real)-9223372036854775808.0 ? -9223372036854775807ll - 1                                            \
           : x >= (real)9223372036854775808.0  ? 9223372036854775807ll                                                 \
                                               : (long long)x;                                                         \
  }                                                                                                                    \
  WS_INLINE ws_byte ws_to_u8(real x) { return x > 0 ? x >= 255 ? 255 : (ws_byte)x : 0; }                               \
  WS_INLINE bool ws_exceeds(real y, real x) { return (y > x) | ((y != y) & (x == x)); }
WS_FLOAT_FUNCTIONS(float, f)
WS_FLOAT_FUNCTIONS(double, )

/* Integers wrap around, as in NumPy: they are computed as unsigned. */
#define WS_INTEGER_FUNCTIONS(type, word, least)                                                                        \
  WS_INLINE type ws_add(type x, type y) { return (type)((word)x + (word)y); }                                          \
  WS_INLINE type ws_sub(type x, type y) { return (type)((word)x - (word)y); }                                          \
  WS_INLINE type ws_mul(type x, type y) { return (type)((word)x * (word)y); }                                          \
  WS_INLINE type ws_neg(type x) { return (type)((word)0 - (word)x); }                                                  \
  WS_INLINE type ws_abs(type x) { return x < (type)0 ? ws_neg(x) : x; }                                                \
  WS_INLINE type ws_sign(type x) { return (type)((x > (type)0) - (x < (type)0)); }                                     \
  WS_INLINE type ws_max(type x, type y) { return x > y ? x : y; }                                                      \
  WS_INLINE type ws_min(type x, type y) { return x < y ? x : y; }                                                      \
  WS_INLINE type ws_mod(type x, type y) {                                                                              \
    const type d = (y == 0) | (y == (type)-1 && (type)-1 < (type)1) ? (type)1 : y, r = (type)(x % d);                  \
    return r != 0 && (r < (type)0) != (d < (type)0) ? (type)(r + d) : r;                                               \
  }                                                                                                                    \
  WS_INLINE type ws_floor_divide(type x, type y) {                                                                     \
    const bool minus = y == (type)-1 && (type)-1 < (type)1;                                                            \
    const type d = (y == 0) | minus ? (type)1 : y, q = (type)(x / d), r = (type)(x % d);                               \
    const type down = r != 0 && (r < (type)0) != (d < (type)0) ? (type)(q - 1) : q;                                    \
    return y == 0 ? (type)0 : minus ? ws_neg(x) : down;                                                                \
  }                                                                                                                    \
  WS_INLINE type ws_left_shift(type x, type y) {                                                                       \
    return (word)y < sizeof(type) * 8 ? (type)((word)x << (word)y) : (type)0;                                          \
  }                                                                                                                    \
  WS_INLINE type ws_right_shift(type x, type y) {                                                                      \
    return (word)y < sizeof(type) * 8 ? (type)(x >> (word)y) : x < (type)0 ? (type)-1 : (type)0;                       \
  }                                                                                                                    \
  WS_INLINE type ws_lowest(type) { return least; }                                                                     \
  WS_INLINE bool ws_exceeds(type y, type x) { return y > x; }
WS_INTEGER_FUNCTIONS(int, ws_word, -2147483647 - 1)
WS_INTEGER_FUNCTIONS(long long, ws_long_word, -9223372036854775807ll - 1)
WS_INTEGER_FUNCTIONS(ws_byte, ws_word, 0)

WS_INLINE long long ws_clamp(long long i, long long last) { return i < 0 ? 0 : i > last ? last : i; }

/* -- half types: stored as bits, converted from and to float ------------------------------------------------------ */
WS_INLINE float ws_from_bf16(ws_half x) { return __uint_as_float((ws_word)x << 16); }
WS_INLINE ws_half ws_to_bf16(float x) { return ws_bf16_of_float(x); }
WS_INLINE float ws_from_f16(ws_half x) { return ws_float_of_f16(x); }
WS_INLINE ws_half ws_to_f16(float x) { return ws_f16_of_float(x); }

/* -- vector loads and stores -------------------------------------------------------------------------------------- */
struct alignas(16) ws_16 {
  ws_word x[4];
};
WS_INLINE void ws_split(const ws_16 &from, float *to) {
#pragma unroll
  for (int i = 0; i < 4; i++) to[i] = __uint_as_float(from.x[i]);
}
WS_INLINE void ws_split(const ws_16 &from, int *to) {
#pragma unroll
  for (int i = 0; i < 4; i++) to[i] = (int)from.x[i];
}
WS_INLINE void ws_split(const ws_16 &from, ws_half *to) {
#pragma unroll
  for (int i = 0; i < 8; i++) to[i] = (ws_half)(from.x[i / 2] >> i % 2 * 16);
}
WS_INLINE void ws_join(ws_16 &to, const float *from) {
#pragma unroll
  for (int i = 0; i < 4; i++) to.x[i] = __float_as_uint(from[i]);
}
WS_INLINE void ws_join(ws_16 &to, const int *from) {
#pragma unroll
  for (int i = 0; i < 4; i++) to.x[i] = (ws_word)from[i];
}
WS_INLINE void ws_join(ws_16 &to, const ws_half *from) {
#pragma unroll
  for (int i = 0; i < 4; i++) to.x[i] = (ws_word)from[2 * i] | (ws_word)from[2 * i + 1] << 16;
}
/* N adjacent elements, loaded and stored 16 bytes at a time; the address is a multiple of 16 bytes. */
template <class T, int N, bool SHORT = N * sizeof(T) == 8> struct ws_pack {
  static constexpr int EACH = 16 / sizeof(T);
  static_assert(N % EACH == 0, "N is a multiple of 16 bytes");
  ws_16 piece[N / EACH];
  WS_PART void read(const T *from) {
#pragma unroll
    for (int i = 0; i < N / EACH; i++) piece[i] = ws_begin(reinterpret_cast<const ws_16 *>(from), 16)[i];
  }
  WS_PART void write(T *to) const {
#pragma unroll
    for (int i = 0; i < N / EACH; i++) ws_begin(reinterpret_cast<ws_16 *>(to), 16)[i] = piece[i];
  }
  /* Asynchronous copy to shared memory, read by `take` after a wait; pieces have a stride of `apart` bytes. */
  WS_PART static void send(char *to, int apart, const T *from) {
#pragma unroll
    for (int i = 0; i < N / EACH; i++) ws_copy<16>(to + i * apart, from + i * EACH, true);
  }
  WS_PART void take(const char *from, int apart) {
#pragma unroll
    for (int i = 0; i < N / EACH; i++) piece[i] = *ws_begin(reinterpret_cast<const ws_16 *>(from + i * apart), 16);
  }
  WS_PART void split(T *to) const {
#pragma unroll
    for (int i = 0; i < N / EACH; i++) ws_split(piece[i], to + i * EACH);
  }
  WS_PART void join(const T *from) {
#pragma unroll
    for (int i = 0; i < N / EACH; i++) ws_join(piece[i], from + i * EACH);
  }
};

/* N adjacent integers or half types of 8 bytes in all. */
template <class T, int N> struct ws_pack<T, N, true> {
  ws_long_word piece;
  WS_PART void read(const T *from) { piece = *ws_begin(reinterpret_cast<const ws_long_word *>(from), 8); }
  WS_PART void write(T *to) const { *ws_begin(reinterpret_cast<ws_long_word *>(to), 8) = piece; }
  WS_PART void split(T *to) const {
#pragma unroll
    for (int i = 0; i < N; i++) to[i] = (T)(piece >> i * 8 * sizeof(T));
  }
  WS_PART void join(const T *from) {
    piece = 0;
#pragma unroll
    for (int i = 0; i < N; i++) piece |= (ws_long_word)from[i] << i * 8 * sizeof(T);
  }
};

/* -- random numbers: Philox4x32-10, a function of (seed, step, key, element) -------------------------------------- */
WS_INLINE ws_word ws_random_word(const ws_step *s, ws_long_word key, ws_long_word element) {
  ws_long_word x = s->seed + 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  key ^= x ^ (x >> 31);
  const ws_long_word block = element / 4;
  ws_word key0 = (ws_word)key, key1 = (ws_word)(key >> 32);
  ws_word x0 = (ws_word)block, x1 = (ws_word)(block >> 32), x2 = (ws_word)s->step, x3 = (ws_word)(s->step >> 32);
#pragma unroll
  for (int round = 0; round < 10; round++) {
    const ws_long_word p0 = (ws_long_word)0xD2511F53u * x0, p1 = (ws_long_word)0xCD9E8D57u * x2;
    const ws_word y0 = (ws_word)(p1 >> 32) ^ x1 ^ key0, y2 = (ws_word)(p0 >> 32) ^ x3 ^ key1;
    x1 = (ws_word)p1, x3 = (ws_word)p0, x0 = y0, x2 = y2;
    key0 += 0x9E3779B9u, key1 += 0xBB67AE85u;
  }
  const ws_word low = element & 1 ? x1 : x0, high = element & 1 ? x3 : x2;
  return element & 2 ? high : low;
}
WS_INLINE float ws_uniform_f32(const ws_step *s, ws_long_word key, ws_long_word element) {
  return (float)(int)(ws_random_word(s, key, element) >> 8) * 5.9604644775390625e-8f;
}
WS_INLINE double ws_uniform_f64(const ws_step *s, ws_long_word key, ws_long_word element) {
  return (double)(int)(ws_random_word(s, key, element) >> 8) * 5.9604644775390625e-8;
}

/* -- sum, max and argmax, in an order that depends on the number of threads alone --------------------------------- */
WS_INLINE float ws_across(float x, int lanes) { return __shfl_xor_sync(WS_ALL, x, lanes); }
WS_INLINE double ws_across(double x, int lanes) { return __shfl_xor_sync(WS_ALL, x, lanes); }
WS_INLINE int ws_across(int x, int lanes) { return __shfl_xor_sync(WS_ALL, x, lanes); }
WS_INLINE long long ws_across(long long x, int lanes) { return __shfl_xor_sync(WS_ALL, x, lanes); }
WS_INLINE ws_byte ws_across(ws_byte x, int lanes) { return (ws_byte)__shfl_xor_sync(WS_ALL, (int)x, lanes); }

struct ws_sum_op {
  template <class T> static __device__ __forceinline__ T join(T x, T y) { return ws_add(x, y); }
  template <class T> static __device__ __forceinline__ T first(T) { return (T)0; }
};
struct ws_max_op {
  template <class T> static __device__ __forceinline__ T join(T x, T y) { return ws_max(x, y); }
  template <class T> static __device__ __forceinline__ T first(T x) { return ws_lowest(x); }
};
/* The largest value and its first position; -1 if there is none. */
template <class T> struct ws_best {
  T value;
  int at;
};
template <class T> WS_INLINE ws_best<T> ws_better(ws_best<T> x, ws_best<T> y) {
  if (y.at < 0) return x;
  if (x.at < 0 || ws_exceeds(y.value, x.value)) return y;
  return !ws_exceeds(x.value, y.value) && y.at < x.at ? y : x;
}

/* Butterfly reduction over the 32 lanes of a warp; every lane has the result. */
template <class Op, int LANES, class T> WS_INLINE T ws_lanes(T x) {
#pragma unroll
  for (int lanes = LANES / 2; lanes; lanes >>= 1) x = Op::join(x, ws_across(x, lanes));
  return x;
}
template <int LANES, class T> WS_INLINE ws_best<T> ws_lanes_best(ws_best<T> x) {
#pragma unroll
  for (int lanes = LANES / 2; lanes; lanes >>= 1) {
    const ws_best<T> y = {ws_across(x.value, lanes), ws_across(x.at, lanes)};
    x = ws_better(x, y);
  }
  return x;
}
/* Reduction over all THREADS of a block; every thread has the result. */
template <class Op, int THREADS, class T> WS_INLINE T ws_block(T x) {
  __shared__ T parts[32];
  x = ws_lanes<Op, 32>(x);
  __syncthreads(); /* other threads may still read the parts of an earlier reduction */
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
  __syncthreads();
  x = threadIdx.x % 32 < THREADS / 32 ? parts[threadIdx.x % 32] : Op::first(x);
  return ws_lanes<Op, 32>(x);
}
template <int THREADS, class T> WS_INLINE ws_best<T> ws_block_best(ws_best<T> x) {
  __shared__ T values[32];
  __shared__ int places[32];
  x = ws_lanes_best<32>(x);
  __syncthreads();
  if (threadIdx.x % 32 == 0) values[threadIdx.x / 32] = x.value, places[threadIdx.x / 32] = x.at;
  __syncthreads();
  const bool is_part = threadIdx.x % 32 < THREADS / 32;
  const ws_best<T> part = {is_part ? values[threadIdx.x % 32] : x.value, is_part ? places[threadIdx.x % 32] : -1};
  return ws_lanes_best<32>(part);
}

/* Is this the last of `count` blocks to arrive?  Then all earlier writes of other blocks are visible, and the counter
   is reset to zero. */
WS_INLINE bool ws_is_last(int *counter, int count) {
  __shared__ int last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    last = atomicAdd(counter, 1) == count - 1;
    if (last) *counter = 0;
  }
  __syncthreads();
  __threadfence();
  return last;
}
