/* Part of step.c: states and outputs between their stored layout and dense rows. */

static long offset_in(const ws_tensor *t, long rows, long i, long j) {
  const long width = t->transposed ? rows : t->columns, height = t->transposed ? t->columns : rows;
  const long row = t->transposed ? j : i, column = t->transposed ? i : j;
  return t->panels ? column / 16 * (height * 16) + row * 16 + column % 16 : row * width + column;
}

/* Copy a tensor out of the block (`out`) or into it; `rows` is the height of its matrices, as users see them. */
static void copy_tensor(const ws_tensor *t, void *stored, void *dense, long rows, int out) {
  const long width = t->transposed ? rows : t->columns, height = t->transposed ? t->columns : rows;
  const long matrix = (t->panels ? (width + 15) / 16 * 16 : width) * height;
  if (!t->panels && !t->transposed) {
    memcpy(out ? dense : stored, out ? stored : dense, (size_t)(t->lead * rows * t->columns * t->bytes));
    return;
  }
  for (long m = 0; m < t->lead; m++)
    for (long i = 0; i < rows; i++)
      for (long j = 0; j < t->columns; j++) {
        char *inside = at(stored, (m * matrix + offset_in(t, rows, i, j)) * t->bytes);
        char *outside = at(dense, ((m * rows + i) * t->columns + j) * t->bytes);
        memcpy(out ? outside : inside, out ? inside : outside, (size_t)t->bytes);
      }
}

int ws_read_state(const void *block, int state, void *to) {
  if (state < 0 || state >= WS_STATES) return WS_BAD_NUMBER;
  copy_tensor(&states[state], at(block, states[state].offset), to, states[state].rows, 1);
  return 0;
}

int ws_write_state(void *block, int state, const void *from) {
  if (state < 0 || state >= WS_STATES) return WS_BAD_NUMBER;
  copy_tensor(&states[state], at(block, states[state].offset), at(from, 0), states[state].rows, 0);
  ((head *)block)->version++;
  return 0;
}

static void fill_states(void *block, const ws_fill *fills, int count) {
  for (int k = 0; k < count; k++) {
    const ws_tensor *t = &states[fills[k].state];
    const double value = fills[k].value;
    for (long i = 0; i < t->lead * t->rows * t->columns; i++) {
      void *element = at(block, t->offset + i * t->bytes);
      if (t->kind == WS_FLOAT) *(float *)element = (float)value;
      else if (t->kind == WS_DOUBLE) *(double *)element = value;
      else if (t->kind == WS_INT32) *(int32_t *)element = (int32_t)value;
      else if (t->kind == WS_INT64) *(int64_t *)element = (int64_t)value;
      else *(uint8_t *)element = (uint8_t)value;
    }
  }
}

/* An output of the last ws_predict, and its number of rows; `lead` and `rows` of its record may be negative. */
static ws_tensor output_now(const head *h, int output) {
  ws_tensor t = outputs[output];
  t.lead = t.lead < 0 ? -t.lead * h->predicted : t.lead;
  t.rows = t.rows < 0 ? h->predicted : t.rows;
  return t;
}

long ws_output_bytes(const void *block, int output) {
  if (output < 0 || output >= WS_OUTPUTS) return WS_BAD_NUMBER;
  const ws_tensor t = output_now(block, output);
  return t.lead * t.rows * t.columns * t.bytes;
}

int ws_read_output(const void *block, int output, void *to) {
  if (output < 0 || output >= WS_OUTPUTS || !((const head *)block)->predicted) return WS_BAD_NUMBER;
  const ws_tensor t = output_now(block, output);
  copy_tensor(&t, at(block, t.offset), to, t.rows, 1);
  return 0;
}
