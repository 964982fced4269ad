/* NCCL's functions with the types of nccl.h, as far as they are called: each tells Python what it was given. */
#include <stddef.h>
#include <string.h>

typedef struct { char internal[128]; } ncclUniqueId;
typedef struct ncclComm *ncclComm_t;
typedef struct CUstream_st *cudaStream_t;
typedef int ncclResult_t;
typedef int ncclDataType_t;
typedef ncclResult_t (*listener)(const char *what, const void *data, size_t count, int number, void *comm, void *stream);

static listener listens;
static int version = 22803;
void fake_listen(listener to, int own_version) { listens = to, version = own_version; }

ncclResult_t ncclGetVersion(int *found) { *found = version; return 0; }
const char *ncclGetErrorString(ncclResult_t result) { return result == 6 ? "remote process exited" : "no such thing"; }
const char *ncclGetLastError(ncclComm_t comm) { return comm ? "" : "the last error"; }

ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
  for (int i = 0; i < 128; i++) id->internal[i] = (char)(i % 64); /* some of them zero */
  return 0;
}

ncclResult_t ncclCommInitRank(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank) {
  for (int i = 0; i < 128; i++)
    if (id.internal[i] != (char)(i % 64)) return 4;
  *comm = (ncclComm_t)(size_t)(0x7000000000 + rank); /* more than 32 bits */
  return listens("init", NULL, (size_t)ranks, rank, *comm, NULL);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *found) {
  *found = listens("error", NULL, 0, 0, comm, NULL);
  return 0;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) { return listens("abort", NULL, 0, 0, comm, NULL); }
ncclResult_t ncclCommDestroy(ncclComm_t comm) { return listens("destroy", NULL, 0, 0, comm, NULL); }
ncclResult_t ncclGroupStart(void) { return listens("start", NULL, 0, 0, NULL, NULL); }
ncclResult_t ncclGroupEnd(void) { return listens("end", NULL, 0, 0, NULL, NULL); }

ncclResult_t ncclSend(const void *data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  return type == 1 ? listens("send", data, count, peer, comm, stream) : 4;
}
ncclResult_t ncclRecv(void *data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  return type == 1 ? listens("receive", data, count, peer, comm, stream) : 4;
}
