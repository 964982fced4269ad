/* How a group sends messages: three functions, of MPI or of group_sockets.c, with the signatures of MPI_Isend, MPI_Irecv and
   MPI_Test.  They return 0, a positive error code of MPI, or a negative errno of ours; an error of magnitude 256 or
   more also holds 1 + the number of the rank that caused it, << 8. */
#ifndef WS_GROUP_MESSAGES_H
#define WS_GROUP_MESSAGES_H
#include <stdint.h>

/* Handles of MPI are integers or pointers: either way they travel in a register.  Requests are written into cells that
   hold both. */
typedef uintptr_t handle;
typedef union { handle value; long cell; } request;
typedef struct {
  int (*isend)(const void *, int count, handle type, int to, int tag, handle comm, request *);
  int (*irecv)(void *, int count, handle type, int from, int tag, handle comm, request *);
  int (*test)(request *, int *done, void *status);
  handle comm, byte;
} messages;
#endif
