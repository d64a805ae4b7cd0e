/* The machine's wall clock, CLOCK_AHEAD_S seconds ahead, for every program that loads this by LD_PRELOAD: `make test-at`.

   libfaketime 0.9.10 cannot do it for Python 3.11: with a moved monotonic clock threads wait for ever, and without one
   `time.sleep` fails (its issues 390 and 426). Here nothing but the wall clock moves, so every wait takes its own time. */

#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static time_t ahead_s;

__attribute__((constructor)) static void read_ahead(void) {
    const char *text = getenv("CLOCK_AHEAD_S");
    ahead_s = text ? atol(text) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    int failed = syscall(SYS_clock_gettime, clock, at);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) at->tv_sec += ahead_s;
    return failed;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    int failed = syscall(SYS_gettimeofday, at, zone);
    if (!failed) at->tv_sec += ahead_s;
    return failed;
}

time_t time(time_t *out) {
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    if (out) *out = at.tv_sec;
    return at.tv_sec;
}
