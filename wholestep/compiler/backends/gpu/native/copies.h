/* Half-precision copy of a float32 state (mixed-precision training): one grid-stride thread per element, rounded to
   nearest even.  A row of `row` elements has `pitch` elements in the copy. */
extern "C" __global__ void __launch_bounds__(256) ws_round(const float *x, ws_half *y, long long n, int row, int pitch, int bf16) {
  for (long long i = (long long)blockIdx.x * 256 + threadIdx.x; i < n; i += (long long)gridDim.x * 256)
    y[i + i / row * (pitch - row)] = bf16 ? ws_to_bf16(x[i]) : ws_to_f16(x[i]);
}
