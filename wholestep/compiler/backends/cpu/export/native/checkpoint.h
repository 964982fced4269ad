/* Part of step.c: checkpoints as safetensors files, in the caller's memory.

   A file is 8 bytes with the length of its header, the header (JSON: name -> dtype, shape, offsets), then the tensors.
   The header of a written file is a constant.  A file to read may come from anyone, so every offset is checked. */

static void *part_of_file(void *block, const ws_file_tensor *t) {
  head *h = block;
  switch (t->kind) {
  case WS_FILE_STEP: return &h->step;
  case WS_FILE_EPOCH: return &h->epoch;
  case WS_FILE_COUNT: return &h->counts[t->number];
  case WS_FILE_SCALAR: return &h->scalars[t->number];
  default: return at(block, states[t->number].offset);
  }
}

static void copy_file_tensor(void *block, const ws_file_tensor *t, void *data, int out) {
  void *inside = part_of_file(block, t);
  if (t->kind == WS_FILE_STATE) copy_tensor(&states[t->number], inside, data, states[t->number].rows, out);
  else memcpy(out ? data : inside, out ? inside : data, (size_t)t->bytes);
}

long ws_checkpoint_bytes(void) { return WS_CHECKPOINT_BYTES; }

int ws_save(const void *block, void *file) {
  const uint64_t length = sizeof file_header - 1;
  char *to = at(file, 8);
  memcpy(file, &length, 8);
  memcpy(to, file_header, length);
  to += length;
  for (int k = 0; k < FILE_TENSORS; k++) {
    copy_file_tensor(at(block, 0), &file_tensors[k], to, 1);
    to += file_tensors[k].bytes;
  }
  return 0;
}

/* ---- parsing: each function returns the address after the text that it parsed, or 0 ---- */

static const char *skip_space(const char *s, const char *end) {
  while (s < end && (*s == ' ' || *s == '\n' || *s == '\t' || *s == '\r')) s++;
  return s;
}

static const char *skip_char(const char *s, const char *end, char c) {
  s = s ? skip_space(s, end) : 0;
  return s && s < end && *s == c ? skip_space(s + 1, end) : 0;
}

static const char *skip_string(const char *s, const char *end) {
  if (!s || s >= end || *s != '"') return 0;
  for (s++; s < end && *s != '"'; s++)
    if (*s == '\\') s++;
  return s < end ? s + 1 : 0;
}

/* A value in brackets or braces, or a string. */
static const char *skip_value(const char *s, const char *end) {
  long depth = 0;
  while (s && s < end) {
    const char c = *s;
    s = c == '"' ? skip_string(s, end) : s + 1;
    depth += (c == '{' || c == '[') - (c == '}' || c == ']');
    if (depth == 0 && (c == '"' || c == '}' || c == ']')) return s;
  }
  return 0;
}

static const char *read_number(const char *s, const char *end, uint64_t *number) {
  *number = 0;
  const char *start = s;
  for (; s && s < end && *s >= '0' && *s <= '9'; s++) {
    if (*number > (UINT64_MAX - 9) / 10) return 0;
    *number = 10 * *number + (uint64_t)(*s - '0');
  }
  return s && s > start ? s : 0;
}

static int is_text(const char *from, const char *to, const char *text) {
  for (; from < to; from++) {
    if (*from == ' ') continue;
    if (*text++ != *from) return 0;
  }
  return !*text;
}

/* A tensor's entry in the header.  A scalar may be an integer, as Python writes integral scalars. */
typedef struct { int fits, is_integer; uint64_t first, last; } file_fields;

static const char *read_fields(const char *s, const char *end, const ws_file_tensor *t, file_fields *f) {
  int fields = 0;
  for (s = skip_char(s, end, '{'); s; s = skip_char(s, end, ',')) {
    const char *key = s, *after = skip_string(s, end), *value = after ? skip_char(after, end, ':') : 0;
    if (!value) return 0;
    s = skip_value(value, end);
    if (!s) return 0;
    if (is_text(key, after, "\"dtype\"")) {
      fields |= 1, f->is_integer = t->kind == WS_FILE_SCALAR && is_text(value, s, "\"I64\"");
      f->fits &= f->is_integer || is_text(value, s, t->dtype);
    } else if (is_text(key, after, "\"shape\"")) fields |= 2, f->fits &= is_text(value, s, t->shape);
    else if (is_text(key, after, "\"data_offsets\"")) {
      const char *number = read_number(skip_char(value, s, '['), s, &f->first);
      number = number ? read_number(skip_char(number, s, ','), s, &f->last) : 0;
      if (!number) return 0;
      fields |= 4;
    }
    if (skip_char(s, end, '}')) return fields == 7 ? skip_char(s, end, '}') : 0;
  }
  return 0;
}

static const ws_file_tensor *file_tensor_named(const char *from, const char *to) {
  for (int k = 0; k < FILE_TENSORS; k++) {
    const char *name = file_tensors[k].name, *s = from;
    while (s < to && *name && *name == *s) name++, s++;
    if (s == to && !*name) return &file_tensors[k];
  }
  return 0;
}

static void take(void *block, const ws_file_tensor *t, void *data, int is_integer) {
  copy_file_tensor(block, t, data, 0);
  if (!is_integer) return;
  int64_t integer;
  memcpy(&integer, data, 8);
  ((head *)block)->scalars[t->number] = (double)integer;
}

/* Go through a file; with `write` take its tensors.  Returns how many are ours, or an error. */
static int read_file(void *block, const char *file, uint64_t bytes, int write) {
  uint64_t length;
  int count = 0;
  if (bytes < 8) return WS_BAD_FILE;
  memcpy(&length, file, 8);
  if (length > bytes - 8) return WS_BAD_FILE;
  const char *end = file + 8 + length, *s = skip_char(file + 8, end, '{');
  for (; s; s = skip_char(s, end, ',')) {
    const char *key = s, *after = skip_string(key, end), *value = after ? skip_char(after, end, ':') : 0;
    if (!value) return WS_BAD_FILE;
    const ws_file_tensor *t = file_tensor_named(key, after);
    file_fields f = {.fits = 1};
    s = t ? read_fields(value, end, t, &f) : skip_value(value, end);
    if (!s || f.first > f.last || f.last > bytes - 8 - length) return WS_BAD_FILE;
    if (t && (!f.fits || f.last - f.first != (uint64_t)t->bytes)) return WS_BAD_TENSOR;
    if (t && write) take(block, t, at(end, (long)f.first), f.is_integer);
    count += t != 0;
    if (skip_char(s, end, '}')) return count;
  }
  return WS_BAD_FILE;
}

/* An update count that the file lacks equals its step; parameters that share a counter must have equal counts. */
static int settle_counts(head *h) {
  const uint64_t unknown = UINT64_MAX;
  for (int i = 0; i < WS_COUNTS; i++)
    if (h->counts[i] == unknown) h->counts[i] = h->step;
  for (int i = 0; i < WS_COUNTS; i++)
    if (h->counts[i] != h->counts[cohorts[i]]) return WS_BAD_COUNTS;
  return 0;
}

int ws_load(void *block, const void *file, long bytes) {
  const int count = bytes < 0 ? WS_BAD_FILE : read_file(block, file, (uint64_t)bytes, 0);
  if (count < 0) return count;
  head *h = block;
  const uint64_t step = h->step;
  uint64_t counts[WS_COUNTS];
  memcpy(counts, h->counts, sizeof counts);
  h->step = UINT64_MAX;
  for (int i = 0; i < WS_COUNTS; i++) h->counts[i] = UINT64_MAX;
  read_file(block, file, (uint64_t)bytes, 1);
  h->version++;
  if (h->step != UINT64_MAX) return settle_counts(h) ? WS_BAD_COUNTS : count;
  h->step = step;                                     /* weights alone: the counters stay */
  memcpy(h->counts, counts, sizeof counts);
  return count;
}
