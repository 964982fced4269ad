/* Messages between ranks over stream sockets, with the signatures of MPI_Isend, MPI_Irecv and MPI_Test.

   Each pair of ranks has one connection, which both sides have authenticated before it is used here
   (distributed/launch/authentication.py).  At most one message per peer and direction is in flight (group_processes.c), so
   there are no queues and no matching: if the next frame of a peer is not the expected one, the ranks run different
   programs.

   A frame is a header and a payload.  The header has the number of the frame on its connection and a SipHash-2-4 tag under a
   key of that connection and direction: frames cannot be forged, repeated, left out or taken from another connection.
   Small payloads and payloads of integers, which include Python's own messages, are followed by a tag of their own.  Large
   arrays have none: they are the bytes that TCP delivers between two authenticated headers. */
#include "group.h"
#include "group_messages.h"
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/uio.h>

#define EXPORT __attribute__((visibility("default")))

enum { SMALL = 4096 };                                /* bytes up to which every payload has a tag */
enum { SENDING, RECEIVING };
#define FAREWELL (~(uint64_t)0)                       /* `place` of a rank's last frame; its `bytes` encode an error */

typedef struct { uint64_t number, place, bytes, tag; } header;   /* place: number of the group and tag of the exchange */
typedef struct connection connection;

/* One message in one direction: its remaining parts, its header, and the tag of its payload. */
typedef struct {
  connection *of;
  struct iovec parts[3];
  header head;
  uint64_t payload_tag, place, bytes;                 /* place, bytes: expected values of a received header */
  char *payload;
  uint64_t key[2], number;                            /* key of this direction, number of its next frame */
  int active, error;
} transfer;

typedef struct mesh mesh;
struct connection { mesh *of; int file; transfer ways[2]; };
struct mesh { int size; connection connections[]; };  /* by rank; a rank has no connection to itself */

typedef struct { mesh *mesh; uint64_t group; int ranks[]; } communicator;

/* ---- tags ---- */

static uint64_t turn(uint64_t x, int bits) { return x << bits | x >> (64 - bits); }

static void sip_rounds(uint64_t v[4], int rounds) {
  while (rounds--) {
    v[0] += v[1], v[2] += v[3], v[1] = turn(v[1], 13) ^ v[0], v[3] = turn(v[3], 16) ^ v[2], v[0] = turn(v[0], 32);
    v[2] += v[1], v[0] += v[3], v[1] = turn(v[1], 17) ^ v[2], v[3] = turn(v[3], 21) ^ v[0], v[2] = turn(v[2], 32);
  }
}

/* SipHash-2-4 (Aumasson and Bernstein, 2012) of the word `before` followed by `count` bytes. */
EXPORT uint64_t ws_sockets_tag(const uint64_t key[2], uint64_t before, const void *data, uint64_t count) {
  uint64_t v[4] = {key[0] ^ 0x736f6d6570736575u, key[1] ^ 0x646f72616e646f6du, key[0] ^ 0x6c7967656e657261u,
                   key[1] ^ 0x7465646279746573u};
  v[3] ^= before, sip_rounds(v, 2), v[0] ^= before;
  const char *at = data;
  for (uint64_t left = count; left >= 8; left -= 8, at += 8) {
    uint64_t word;
    memcpy(&word, at, 8);
    v[3] ^= word, sip_rounds(v, 2), v[0] ^= word;
  }
  uint64_t last = (count + 8) << 56;
  for (uint64_t i = 0; i < count % 8; i++) last |= (uint64_t)(uint8_t)at[i] << (8 * i);
  v[3] ^= last, sip_rounds(v, 2), v[0] ^= last, v[2] ^= 0xff;
  sip_rounds(v, 4);
  return v[0] ^ v[1] ^ v[2] ^ v[3];
}

static uint64_t header_tag(const transfer *t, const header *h) {
  return ws_sockets_tag(t->key, h->number, &h->place, sizeof h->place + sizeof h->bytes);
}

static uint64_t payload_tag(const transfer *t) {
  return ws_sockets_tag(t->key, t->head.tag, t->payload, t->bytes);
}

static int is_tagged(uint64_t place, uint64_t bytes) { return bytes <= SMALL || (place & 15) == WS_GROUP_I64; }

/* ---- frames ---- */

static int first_part(const transfer *t) {
  int part = 0;
  while (part < 3 && t->parts[part].iov_len == 0) part++;
  return part;
}

static void advance(transfer *t, size_t done) {
  for (int part = 0; part < 3; part++) {
    const size_t here = done < t->parts[part].iov_len ? done : t->parts[part].iov_len;
    t->parts[part].iov_base = (char *)t->parts[part].iov_base + here;
    t->parts[part].iov_len -= here, done -= here;
  }
}

/* Check a received header: 0, an errno, or, if the peer has left the group, the errno and the missing rank that it sent. */
static int check_header(const transfer *t) {
  if (t->head.number != t->number || t->head.tag != header_tag(t, &t->head)) return EBADMSG;
  if (t->head.place == FAREWELL) return (int)t->head.bytes;
  return t->head.place == t->place && t->head.bytes == t->bytes ? 0 : EPROTO;
}

/* Send or receive as many bytes as the socket permits without blocking; `t` records the end of a message or an error. */
static void progress(transfer *t, int way) {
  while (t->active && !t->error) {
    const int part = first_part(t), is_header = way == RECEIVING && part == 0;
    struct msghdr message = {.msg_iov = t->parts + part, .msg_iovlen = is_header ? 1 : (size_t)(3 - part)};
    const ssize_t done = way == SENDING ? sendmsg(t->of->file, &message, MSG_DONTWAIT | MSG_NOSIGNAL)
                                        : recvmsg(t->of->file, &message, MSG_DONTWAIT);
    if (done < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) {
      t->error = EPIPE;
      return;
    }
    advance(t, (size_t)done);
    if (is_header && t->parts[0].iov_len == 0) t->error = check_header(t);
    if (t->error || first_part(t) < 3) continue;
    if (way == RECEIVING && is_tagged(t->place, t->bytes) && t->payload_tag != payload_tag(t)) t->error = EBADMSG;
    t->number++, t->active = t->error != 0;
  }
}

static int start(communicator *c, int peer, int way, void *data, int bytes, int tag, request *r) {
  connection *with = &c->mesh->connections[c->ranks[peer]];
  transfer *t = &with->ways[way];
  r->value = (handle)t;
  if (t->error) return -t->error;
  if (t->active) return -EPROTO;
  t->active = 1, t->payload = data, t->bytes = (uint64_t)bytes, t->place = c->group << 8 | (uint64_t)(tag & 255);
  if (way == SENDING) {
    t->head = (header){.number = t->number, .place = t->place, .bytes = t->bytes};
    t->head.tag = header_tag(t, &t->head);
    if (is_tagged(t->place, t->bytes)) t->payload_tag = payload_tag(t);
  }
  t->parts[0] = (struct iovec){&t->head, sizeof t->head};
  t->parts[1] = (struct iovec){data, (size_t)bytes};
  t->parts[2] = (struct iovec){&t->payload_tag, is_tagged(t->place, t->bytes) ? sizeof t->payload_tag : 0};
  progress(t, way);
  return 0;
}

/* ---- functions that a group calls ---- */

EXPORT int ws_sockets_isend(const void *data, int bytes, handle type, int to, int tag, handle comm, request *r) {
  (void)type;
  return start((communicator *)comm, to, SENDING, (void *)data, bytes, tag, r);
}

EXPORT int ws_sockets_irecv(void *data, int bytes, handle type, int from, int tag, handle comm, request *r) {
  (void)type;
  return start((communicator *)comm, from, RECEIVING, data, bytes, tag, r);
}

/* Is a message complete?  Also advances all other messages in flight, since a peer may be waiting for one of them. */
EXPORT int ws_sockets_test(request *r, int *done, void *status) {
  (void)status;
  transfer *t = (transfer *)r->value;
  const mesh *all = t->of->of;
  for (int i = 0; t->active && i < 2 * all->size; i++)
    progress((transfer *)&all->connections[i / 2].ways[i % 2], i % 2);
  *done = !t->active;
  return t->active ? -t->error : 0;
}

/* ---- functions that Python calls ---- */

/* The connections of a rank: for each other rank a file descriptor and two keys of two words each, for sending and for
   receiving. */
EXPORT mesh *ws_sockets_open(int size, const int *files, const uint64_t *keys) {
  mesh *m = calloc(1, sizeof *m + (size_t)size * sizeof *m->connections);
  if (!m) return NULL;
  m->size = size;
  for (int rank = 0; rank < size; rank++) {
    connection *c = &m->connections[rank];
    c->of = m, c->file = files[rank];
    for (int way = 0; way < 2; way++) {
      c->ways[way].of = c;
      memcpy(c->ways[way].key, keys + 4 * rank + 2 * way, sizeof c->ways[way].key);
    }
  }
  return m;
}

/* A communicator of some of the ranks; each of these ranks must pass the same number `group`. */
EXPORT communicator *ws_sockets_group(mesh *m, uint64_t group, const int *ranks, int count) {
  communicator *c = malloc(sizeof *c + (size_t)count * sizeof *c->ranks);
  if (!c) return NULL;
  c->mesh = m, c->group = group;
  memcpy(c->ranks, ranks, (size_t)count * sizeof *ranks);
  return c;
}

/* Leave the group: the other ranks stop waiting for this one; messages that it has sent still arrive.  If it leaves because
   another rank is missing, `why` is the errno plus 1 + the number of that rank << 8, and is sent to the others; 0: the rank
   has ended normally. */
EXPORT void ws_sockets_leave(mesh *m, int why) {
  for (int rank = 0; rank < m->size; rank++) {
    transfer *t = &m->connections[rank].ways[SENDING];
    if (m->connections[rank].file < 0) continue;
    const int is_between_frames = !t->active || t->parts[0].iov_len == sizeof t->head;
    if (why && is_between_frames && !t->error) {
      header last = {.number = t->number, .place = FAREWELL, .bytes = (uint64_t)why};
      last.tag = header_tag(t, &last);
      (void)!send(m->connections[rank].file, &last, sizeof last, MSG_DONTWAIT | MSG_NOSIGNAL);
    }
    t->error = EPIPE;
    shutdown(m->connections[rank].file, SHUT_WR);
  }
}
