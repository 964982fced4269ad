/* Windows: WaitOnAddress, slim locks; processes do not fork.  `long` has 32 bits here, so that an extent of a tensor is
   below 2^31 elements. */
#define WIN32_LEAN_AND_MEAN
#define NOMINMAX
#define NOGDI
#include <windows.h>
#include <errno.h>
#include <string.h>

#define WS_AT_LOAD __attribute__((constructor))
#define WS_THREAD_LOCAL __thread
#define WS_MUTEX SRWLOCK_INIT
#define WS_THREAD(name, argument) static DWORD WINAPI name(void *argument)
#define WS_THREAD_END return 0
typedef SRWLOCK ws_mutex;
typedef HANDLE ws_thread;

static inline int64_t ws_now_ns(void) {
  LARGE_INTEGER ticks, per_second;
  QueryPerformanceCounter(&ticks);
  QueryPerformanceFrequency(&per_second);
  const int64_t second = per_second.QuadPart;
  return ticks.QuadPart / second * 1000000000 + ticks.QuadPart % second * 1000000000 / second;
}

static inline int ws_core(void) { return (int)GetCurrentProcessorNumber(); }
static inline int ws_cores(void) {
  DWORD_PTR usable, all;
  if (!GetProcessAffinityMask(GetCurrentProcess(), &usable, &all) || !usable) return 1;
  return __builtin_popcountll((unsigned long long)usable);
}

static inline void ws_yield(void) { SwitchToThread(); }
static inline void ws_nap(int64_t ns) { Sleep((DWORD)(ns / 1000000 + 1)); }
static inline void ws_wait_word(int *word, int old, int64_t ns) {
  WaitOnAddress(word, &old, sizeof old, ns < 0 ? INFINITE : (DWORD)(ns / 1000000 + 1));
}
static inline void ws_wake_word(int *word) { WakeByAddressAll(word); }

static inline void ws_lock(ws_mutex *m) { AcquireSRWLockExclusive(m); }
static inline void ws_unlock(ws_mutex *m) { ReleaseSRWLockExclusive(m); }

static inline int ws_start_thread(ws_thread *thread, DWORD(WINAPI *body)(void *), void *argument) {
  *thread = CreateThread(NULL, 0, body, argument, 0, NULL);
  return *thread ? 0 : EAGAIN;
}
static inline void ws_detach_thread(ws_thread thread) { CloseHandle(thread); }
static inline void ws_join_thread(ws_thread thread) { WaitForSingleObject(thread, INFINITE), CloseHandle(thread); }
static inline void ws_at_fork(void (*before)(void), void (*in_parent)(void), void (*in_child)(void)) {
  (void)before, (void)in_parent, (void)in_child;
}

static inline int ws_has_ended(int pid) {
  const HANDLE process = OpenProcess(SYNCHRONIZE, FALSE, (DWORD)pid);
  if (!process) return GetLastError() == ERROR_INVALID_PARAMETER;
  const DWORD state = WaitForSingleObject(process, 0);
  CloseHandle(process);
  return state == WAIT_OBJECT_0;
}
